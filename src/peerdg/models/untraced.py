"""Functions that torch.compile leaves alone, without its import of a second and a half."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.compiler.disable`, which imports the compiler, only where something is compiled."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        disabled: Callable[P, R] = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return call
