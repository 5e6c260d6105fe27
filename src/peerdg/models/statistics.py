"""Recompute batch-normalization statistics on clean images."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from peerdg.errors import DataError
from peerdg.models.classifier import in_eval_mode


@torch.no_grad()
def recompute_statistics(model: nn.Module, clean: Iterable[Tensor]) -> None:
    """Recompute batch-normalization statistics as the mean over batches, weighted by their images.

    Like `torch.optim.swa_utils.update_bn`, but a last, smaller batch counts less, and only the
    normalization layers are in train mode: dropout stays off, so the result does not depend on any
    random state. A loader that shuffles leaves torch's global generator as it was.

    Without batch normalization nothing is done. An error leaves the statistics as they were.
    """
    layers = _normalisation_layers(model)
    if not layers:
        return
    device = next(model.parameters()).device
    seen, before, momenta = 0, _statistics(layers), [layer.momentum for layer in layers]
    try:
        with in_eval_mode(model), torch.random.fork_rng(devices=[]):
            for layer in layers:
                layer.reset_running_stats()
                layer.train()
            for images in clean:
                seen += len(images)
                for layer in layers:
                    layer.momentum = len(images) / seen
                model(images.to(device))
        if not seen:
            raise DataError(
                "There are no clean images to recompute batch statistics.",
                hint="Give clean images that can be iterated again, in batches of two or more.",
            )
    except BaseException:
        _restore(before)
        raise
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


@contextmanager
def clean_statistics(models: Iterable[nn.Module], clean: Iterable[Tensor]) -> Iterator[None]:
    """Give networks batch statistics of clean images inside the block, their own afterwards.

    Training is not affected, even if the block is interrupted. The arguments are those of
    `recompute_statistics`.
    """
    models = list(models)
    before = _statistics(layer for model in models for layer in _normalisation_layers(model))
    try:
        for model in models:
            recompute_statistics(model, clean)
        yield
    finally:
        _restore(before)


def _normalisation_layers(model: nn.Module) -> list[_BatchNorm]:
    return [part for part in model.modules() if isinstance(part, _BatchNorm)]


def _statistics(layers: Iterable[_BatchNorm]) -> list[tuple[Tensor, Tensor]]:
    """Return each buffer, and a copy of what it holds now."""
    return [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]


@torch.no_grad()
def _restore(statistics: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in statistics:
        buffer.copy_(before)
