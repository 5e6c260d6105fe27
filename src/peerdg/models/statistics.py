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
    """Recompute batch-normalization statistics as the mean over batches, weighted by batch size.

    Like `torch.optim.swa_utils.update_bn`, but a smaller last batch counts less and only the
    normalization layers are in train mode. Dropout stays off, so the result is deterministic.
    Torch's global RNG state, which a shuffling loader may change, is restored.

    Without batch normalization, nothing is done. On an error, the old statistics are restored.
    """
    layers = _batch_norm_layers(model)
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
                "There are no clean images to recompute batch statistics with.",
                hint="Pass an iterable that can be restarted, with batches of at least two images.",
            )
    except BaseException:
        _restore(before)
        raise
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


@contextmanager
def clean_statistics(models: Iterable[nn.Module], clean: Iterable[Tensor]) -> Iterator[None]:
    """Use batch statistics from clean images inside the block, then restore the old ones.

    Training is not affected, even if the block is interrupted. See `recompute_statistics`.
    """
    models = list(models)
    before = _statistics(layer for model in models for layer in _batch_norm_layers(model))
    try:
        for model in models:
            recompute_statistics(model, clean)
        yield
    finally:
        _restore(before)


def _batch_norm_layers(model: nn.Module) -> list[_BatchNorm]:
    return [part for part in model.modules() if isinstance(part, _BatchNorm)]


def _statistics(layers: Iterable[_BatchNorm]) -> list[tuple[Tensor, Tensor]]:
    """Return each buffer with a copy of its values."""
    return [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]


@torch.no_grad()
def _restore(statistics: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in statistics:
        buffer.copy_(before)
