"""Single-source domain generalization: train on one domain, generalize to unseen domains."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from peerdg._exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Importing peerdg must not import torch, so that --help is fast.
    if not name.startswith("_"):
        value = vars(importlib.import_module("peerdg._exports")).get(name)
        if value is not None:
            return value
    raise AttributeError(f"module 'peerdg' has no attribute '{name}'")


def __dir__() -> list[str]:
    exports = vars(importlib.import_module("peerdg._exports"))
    return sorted(["__version__", *(name for name in exports if not name.startswith("_"))])
