"""Loss functions from tensors to a scalar, each documented with its equation."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def in_full_precision(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute `loss` outside of autocast, with half-precision arguments converted to float32.

    The sums need float32 even if the network runs in bfloat16.
    """

    @functools.wraps(loss)
    def computed(*z: Tensor, **options: Any) -> Tensor:
        with torch.autocast(z[0].device.type, enabled=False):
            return loss(*map(_widened, z), **options)

    return computed


def _widened(z: Tensor) -> Tensor:
    return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z
