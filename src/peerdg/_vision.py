"""The only place that imports torchvision.

A torchvision wheel built for CUDA beside a CPU-only torch fails on import, because its compiled
detection operators do not load and it then cannot register their fake versions. peerdg needs none
of these operators. So when the import fails for exactly that reason, their two schemas are
declared here, and the import succeeds; any other failure is the user's to see.
"""

import importlib
import warnings

import torch

_MISSING = "operator torchvision::nms does not exist"


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
        _declare_detection_operators()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to load image Python extension")
            importlib.import_module("torchvision")


def _declare_detection_operators() -> None:
    """Give `nms` and `qnms` a schema without a kernel: calling them fails, importing does not."""
    global _library  # must live as long as the process: the schemas go with the object
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_library: torch.library.Library | None = None
_import_torchvision()

import torchvision as torchvision  # noqa: E402, TID251
from torchvision import models as models  # noqa: E402, TID251
from torchvision.transforms import v2 as transforms  # noqa: E402, TID251

__all__ = ["models", "torchvision", "transforms"]
