"""Find a method by name; torch is imported only when one is built."""

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

from peerdg.config import did_you_mean
from peerdg.errors import ConfigError
from peerdg.methods import settings


@cache
def method_names() -> tuple[str, ...]:
    """Every method there is: one file under `methods/settings` each."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(settings.__path__)))


def settings_of(name: str) -> type[Any]:
    """The dataclass of a method's options.

    Raises:
        ConfigError: If there is no such method, with the nearest name.
    """
    kind: type[Any] = _module(name).Settings
    return kind


def implementation_of(name: str) -> type[Any]:
    """The class that implements a method."""
    module, _, attribute = _module(name).IMPLEMENTED_BY.partition(":")
    kind: type[Any] = getattr(importlib.import_module(module), attribute)
    return kind


def summary_of(name: str) -> str:
    """One line about a method."""
    return (inspect.getdoc(settings_of(name)) or "").splitlines()[0]


def _module(name: str) -> Any:
    if name not in method_names():
        raise ConfigError(f"Unknown method '{name}'.", hint=did_you_mean(name, method_names()))
    return importlib.import_module(f"{settings.__name__}.{name}")
