"""Divide the work of a run among processes, with the results of one process up to rounding.

Every process runs the same program on the whole batch, with the same random numbers. Only the
encoders, which take nearly all of the time, divide it: each process computes its share of the rows
and gets the features of all rows. Losses, projection heads, generators and averages are the same in
all processes, so methods need not know about them:

    whole batch -> `scatter` -> own rows -> encoder -> `gather` -> features of the whole batch

The gradient of `gather` is `scatter`, and vice versa. An encoder's weights therefore get a part of
their gradient in each process, and `share_gradients` adds the parts before the optimizer uses them.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from peerdg.errors import ConfigError, PeerdgError
from peerdg.terminal import one_line

# torchvision's and timm's layers that skip images, and one of torch that draws slopes
_RANDOM = ("StochasticDepth", "DropPath", "RReLU")

# A process that waits for the first one while it decodes images must not give up.
PATIENCE = timedelta(hours=2)

_TYPES = [torch.uint8, torch.float32, torch.float64, torch.float16, torch.bfloat16]

_divides = False  # whether encoders divide their batches
_rows = 0  # rows of the whole batch inside an encoder that divides it, else 0


def is_divided() -> bool:
    """Whether this process shares a run with others now."""
    return _divides


def size() -> int:
    """Return the number of processes that share the run."""
    return int(os.environ.get("WORLD_SIZE", 1))


def rank() -> int:
    """Return the number of this process. Process 0 writes all files."""
    return int(os.environ.get("RANK", 0))


def connect(device: torch.device) -> None:
    """Connect to the other processes, with gloo on CPUs and NCCL on CUDA devices."""
    if size() > 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with _all_present():
            dist.init_process_group(backend, timeout=PATIENCE)


def disconnect() -> None:
    """Wait for all processes at the end of the run, and leave the group."""
    if dist.is_initialized():
        with _all_present():
            dist.barrier()
        dist.destroy_process_group()


@contextmanager
def _all_present() -> Iterator[None]:
    """Raise a clear error if a process is lost during the communication in the block."""
    try:
        yield
    except RuntimeError as error:
        reason = one_line(error).partition(". ")[0]
        raise PeerdgError(
            f"Process {rank()} of {size()} lost the connection to another one: {reason}.",
            hint="See the messages of the others. `peerdg resume` continues from the last "
            "checkpoint.",
        ) from error


def from_first(text: str) -> str:
    """Return the text of process 0 in all processes."""
    if size() == 1:
        return text
    content = torch.tensor(bytearray(text.encode()), dtype=torch.uint8)
    length = torch.tensor(len(content))
    with _all_present():
        dist.broadcast(length, 0)
        content = content if rank() == 0 else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, 0)
    return content.numpy().tobytes().decode()


def exchange(own: list[Tensor], count: int) -> list[Tensor]:
    """Return `count` tensors of one shape. Each process has made every n-th of them."""
    made = []
    for number in range(count):
        owner, place = number % size(), number // size()
        tensor = own[place if owner == rank() else 0].contiguous()
        kind = torch.tensor(_TYPES.index(tensor.dtype))  # it may differ between batches
        with _all_present():
            dist.broadcast(kind, owner)
            if owner != rank():
                tensor = torch.empty_like(tensor, dtype=_TYPES[int(kind)])
            dist.broadcast(tensor, owner)
        made.append(tensor)
    return made


def highest(value: int) -> int:
    """Return the highest value of all processes."""
    if not _divides:
        return value
    found = torch.tensor(value)
    with _all_present():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def require_same(what: str, text: str) -> None:
    """Raise in all processes if `text` is not the same everywhere."""
    if size() == 1:
        return
    own = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
    hashes = [torch.empty_like(own) for _ in range(size())]
    with _all_present():
        dist.all_gather(hashes, own)
    others = [str(number) for number, each in enumerate(hashes) if not each.equal(hashes[0])]
    if others:
        raise ConfigError(
            f"Process {', '.join(others)} has other {what} than process 0.",
            hint="Start all processes with the same command, on the same data.",
        )


@contextmanager
def divided(method: nn.Module) -> Iterator[None]:
    """Divide the batches of all encoders inside the block.

    The modules of a method's encoders that look across a batch or draw random numbers are changed
    to work on the whole batch. Functions such as `F.dropout` are not known.
    """
    global _divides
    if size() == 1:
        yield
        return
    hooks = []
    for module in method.modules():
        if type(module).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
            module.forward = MethodType(_normalize_whole, module)
        elif _needs_whole_batch(module):
            own = type(module).forward
            module.forward = MethodType(partial(_on_whole, own), module)
            # Each process gets their whole gradient, and `share_gradients` will add these.
            weights = [p for p in module.parameters() if p.requires_grad]
            hooks += [p.register_hook(lambda g: g / size()) for p in weights]
    _divides = True
    try:
        yield
    finally:
        _divides = False
        for hook in hooks:
            hook.remove()


def encode(encoder: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `encoder(x)`. Each process computes its share of the rows."""
    global _rows
    if not _divides or _rows or len(x) < size():
        return encoder(x)
    _rows = len(x)
    try:
        return gather(encoder(scatter(x)))
    finally:
        _rows = 0


def on_whole_batch(layer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Make a layer inside an encoder work on the whole batch."""
    return lambda x: scatter(layer(gather(x)))


def gather(x: Tensor) -> Tensor:
    """Inside an encoder, return the rows of all processes, with gradient."""
    return _Gather.apply(x, _rows) if _rows else x  # type: ignore[no-untyped-call]


def scatter(x: Tensor) -> Tensor:
    """Inside an encoder, return the rows of this process, with gradient."""
    return _Scatter.apply(x, _rows) if _rows else x  # type: ignore[no-untyped-call]


def add_up(x: Tensor) -> Tensor:
    """Return the sum over all processes, with gradient."""
    return cast(Tensor, _Sum.apply(x))  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int) -> Tensor:
        ctx.rows = rows
        counts = [len(part) for part in torch.empty(rows).tensor_split(size())]
        if len(x) != counts[rank()]:
            raise ConfigError(
                f"A layer with random numbers gets {len(x)} rows for {counts[rank()]} images, so "
                "several processes cannot share this network.",
                hint="Use one process.",
            )
        padded = x.new_zeros((max(counts), *x.shape[1:]))
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in counts]
        with _all_present():
            dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Scatter.apply(gradient, ctx.rows), None  # type: ignore[no-untyped-call]


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int) -> Tensor:
        ctx.rows = rows
        return x.tensor_split(size())[rank()].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(gradient, ctx.rows), None  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        with _all_present():
            dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.apply(gradient)  # type: ignore[no-untyped-call,no-any-return]


# Layers inside an encoder.


def _needs_whole_batch(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    # timm's batch normalization also applies an activation.
    is_known = isinstance(module, _BatchNorm) or type(module).__name__ in _RANDOM
    return is_known or hasattr(module, "needs_whole_batch")


def _on_whole(forward: Callable[..., Tensor], module: nn.Module, x: Tensor) -> Tensor:
    layer = partial(forward, module)
    acts = module.training or isinstance(module, _BatchNorm) or hasattr(module, "needs_whole_batch")
    return on_whole_batch(layer)(x) if acts else layer(x)


def _normalize_whole(layer: _BatchNorm, x: Tensor) -> Tensor:
    """Normalize with the mean and variance of the whole batch: Chan et al., 1979.

    mean = Σ_r n_r mean_r / n and var = Σ_r n_r (var_r + (mean_r - mean)²) / n over processes r.
    """
    if not (_rows and (layer.training or layer.running_mean is None)):
        return type(layer).forward(layer, x)
    wide = x.float() if x.dtype.itemsize == 2 else x
    var, mean = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
    count = mean.new_full((1,), x.numel() // x.shape[1])
    everyone = mean.new_zeros(size(), 2 * len(mean) + 1)  # one row per process
    own = torch.arange(size(), device=x.device)[:, None] == rank()
    everyone = add_up(torch.where(own, torch.cat((mean, var, count)), everyone))
    means, variances, counts = everyone.split((len(mean), len(mean), 1), dim=1)
    n = counts.sum()
    mean = (counts * means).sum(0) / n
    var = (counts * (variances + (means - mean).square())).sum(0) / n
    if layer.running_mean is not None and layer.running_var is not None:
        assert layer.num_batches_tracked is not None  # noqa: S101  (it exists with the others)
        layer.num_batches_tracked += 1
        momentum = layer.momentum
        share = 1 / float(layer.num_batches_tracked) if momentum is None else momentum
        with torch.no_grad():
            layer.running_mean.lerp_(mean.to(layer.running_mean), share)
            layer.running_var.lerp_((var * n / (n - 1)).to(layer.running_var), share)
    shape = (1, -1, *[1] * (x.dim() - 2))
    scale, shift = (var + layer.eps).rsqrt(), torch.zeros_like(mean)
    if layer.weight is not None:
        scale, shift = scale * layer.weight, layer.bias
    y: Tensor = (wide - mean.view(shape)) * scale.view(shape) + shift.view(shape)
    return y.to(x.dtype)


# Gradients.


def whole_gradient(part: Tensor) -> Tensor:
    """Return the gradient of an encoder's weight, given the part from this process's rows."""
    return add_up(part) if _divides else part


def share_gradients(parameters: Iterable[Tensor], divided: Collection[Tensor]) -> None:
    """Add the parts of the gradients of `divided` weights, in one message per type.

    All other gradients are the same in each process, except in the last bits on some devices. Their
    mean keeps the processes equal.
    """
    if not _divides:
        return
    pairs = [(p, p.grad) for p in parameters if p.grad is not None]
    for p, gradient in pairs:
        if p not in divided:
            gradient /= size()
    gradients = [gradient for _, gradient in pairs]
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        same = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.reshape(-1) for gradient in same])
        with _all_present():
            dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in same])
        torch._foreach_copy_(same, [p.view_as(g) for p, g in zip(parts, same, strict=True)])
