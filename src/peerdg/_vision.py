"""Import torchvision. All other modules import it from here.

A torchvision wheel built for CUDA fails on import with a CPU-only torch: its compiled detection
operators do not load, so it cannot register their fake versions. peerdg needs none of these
operators. If the import fails for exactly that reason, their two schemas are declared here and the
import is repeated. Any other error is raised.
"""

import importlib
import warnings

import torch

_MISSING = "operator torchvision::nms does not exist"


try:
    importlib.import_module("torchvision")
except RuntimeError as error:
    if _MISSING not in str(error):
        raise
    # Schemas without kernels are enough for the import. They exist as long as `_library` does.
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        importlib.import_module("torchvision")

import torchvision as torchvision  # noqa: E402, TID251
from torchvision import models as models  # noqa: E402, TID251
from torchvision.transforms import v2 as transforms  # noqa: E402, TID251

__all__ = ["models", "torchvision", "transforms"]
