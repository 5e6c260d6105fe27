"""Loss functions that map tensors to a scalar. Each docstring states the equation."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def in_full_precision(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate a loss to run without autocast, and convert half-precision arguments to float32.

    Sums over a batch need float32 even if the network runs in bfloat16.
    """

    @functools.wraps(loss)
    def computed(*z: Tensor, **options: Any) -> Tensor:
        with torch.autocast(z[0].device.type, enabled=False):
            return loss(*(x.float() if x.dtype.itemsize == 2 else x for x in z), **options)

    return computed
