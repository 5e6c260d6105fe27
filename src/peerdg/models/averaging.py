"""The running average of a model's snapshots, and what becomes of its batch statistics."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from peerdg.errors import ConfigError, DataError, NumericalError
from peerdg.models.classifier import Classifier, has_batch_statistics

BatchNormRule = Literal["recalibrate", "average", "copy", "frozen"]


class SnapshotAverage(nn.Module):
    """θ_f = mean(Θ), kept as a running mean and a count: memory does not grow with |Θ|.

    mean <- mean + (θ - mean) / (n + 1), in the parameters' own precision (float32), which equals
    the arithmetic mean of the snapshots to rounding. Integer buffers are those of the newest
    snapshot. Floating buffers, that is batch-normalisation statistics, follow `bn`:

    * `recalibrate`: one cumulative pass over clean source images after each update;
    * `average`: their running mean, like the parameters (EoA);
    * `copy`: those of the newest snapshot;
    * `frozen`: those the model had before the first snapshot.

    Args:
        model: Where the average starts; it serves as it is until the first snapshot.
        bn: The rule for floating buffers.
        clean: Batches of clean source images for `recalibrate`; iterated anew after each update.
    """

    def __init__(
        self, model: Classifier, *, bn: BatchNormRule, clean: Iterable[Tensor] | None = None
    ) -> None:
        super().__init__()
        if bn == "recalibrate" and clean is None and has_batch_statistics(model):
            raise ConfigError(
                "bn='recalibrate' needs clean source images to recompute the batch statistics.",
                hint="Pass clean= with the training images: a tensor [N, 3, H, W], a DataLoader or "
                "a list of batches. Or choose bn='copy', 'average' or 'frozen'.",
            )
        # AveragedModel copies on its first update (so the start is not part of the mean), keeps
        # requires_grad, starts in train mode, and copies the buffers of the newest snapshot.
        self.averaged = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
        self.averaged.requires_grad_(False).eval()
        self.bn = bn
        self.clean = clean

    @property
    def model(self) -> Classifier:
        """The averaged classifier."""
        return cast(Classifier, self.averaged.module)

    @property
    def count(self) -> int:
        """|Θ|, the number of snapshots in the mean."""
        return int(self.averaged.n_averaged)

    def train(self, mode: bool = True) -> "SnapshotAverage":
        """The average is never in train mode, whatever its owner is."""
        return super().train(False)

    def forget(self) -> None:
        """Empty Θ: the next snapshot replaces the average instead of joining it."""
        self.averaged.n_averaged.zero_()

    @torch.no_grad()
    def add(self, model: Classifier) -> None:
        """Θ <- Θ ∪ {θ}, θ_f <- mean(Θ); an error or interruption leaves both as they were.

        Raises:
            NumericalError: If θ is not finite; one NaN would stay in the mean for ever.
        """
        for name, parameter in model.named_parameters():
            if not torch.isfinite(parameter).all():
                raise NumericalError(f"The snapshot's weight '{name}' is not finite.")
        before = {name: tensor.clone() for name, tensor in self.averaged.state_dict().items()}
        buffers = {name: b.clone() for name, b in _floating_buffers(self.model).items()}
        try:
            self.averaged.update_parameters(model)
            self._settle_buffers(buffers)
        except BaseException:
            self.averaged.load_state_dict(before)
            raise

    def _settle_buffers(self, before: dict[str, Tensor]) -> None:
        """The update has copied the newest snapshot's buffers; apply the rule to them."""
        if self.bn == "recalibrate":
            if self.clean is not None:
                recalibrate(self.model, self.clean)
        elif self.bn != "copy":
            weight = 1 / self.count if self.bn == "average" else 0.0
            for name, buffer in _floating_buffers(self.model).items():
                buffer.copy_(torch.lerp(before[name], buffer, weight))


@torch.no_grad()
def recalibrate(
    model: nn.Module, clean: Iterable[Tensor], *, before_batch: Callable[[], None] = lambda: None
) -> None:
    """Recompute batch-normalisation statistics as the mean over batches, weighted by their images.

    Like `torch.optim.swa_utils.update_bn`, but a last, smaller batch counts less, and only the
    normalisation layers are in train mode: dropout stays off, so the result does not depend on any
    random state. A loader that shuffles leaves torch's global generator as it was.

    Args:
        model: The network; without batch normalisation nothing is done.
        clean: Batches of clean images.
        before_batch: Called before each of them; what it raises leaves the network as it was.

    Raises:
        DataError: If `clean` gives no batch.
    """
    layers = _normalisation_layers(model)
    if not layers:
        return
    device = next(model.parameters()).device
    seen = 0
    with _measuring(model, layers), torch.random.fork_rng(devices=[]):
        for images in clean:
            before_batch()
            seen += len(images)
            for layer in layers:
                layer.momentum = len(images) / seen
            model(images.to(device))
        if not seen:
            raise DataError(
                "There are no clean images to recompute batch statistics.",
                hint="Give clean images that can be iterated again, in batches of two or more.",
            )


@contextmanager
def recalibrated(
    models: Iterable[nn.Module],
    clean: Iterable[Tensor],
    *,
    before_batch: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Inside the block, networks have batch statistics of clean images; afterwards their own.

    Training is not affected, even if the block is interrupted. The arguments are those of
    `recalibrate`.
    """
    models = list(models)
    before = _statistics(layer for model in models for layer in _normalisation_layers(model))
    try:
        for model in models:
            recalibrate(model, clean, before_batch=before_batch)
        yield
    finally:
        _restore(before)


@contextmanager
def _measuring(model: nn.Module, layers: list[nn.modules.batchnorm._BatchNorm]) -> Iterator[None]:
    """Statistics are reset and then follow the batches; an error leaves them as they were."""
    modes = {part: part.training for part in model.modules()}
    momenta = [layer.momentum for layer in layers]
    before = _statistics(layers)
    try:
        model.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.train()
        yield
    except BaseException:
        _restore(before)
        raise
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for part, training in modes.items():
            part.training = training


def _normalisation_layers(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


def _statistics(
    layers: Iterable[nn.modules.batchnorm._BatchNorm],
) -> list[tuple[Tensor, Tensor]]:
    """Each buffer, and a copy of what it holds now."""
    return [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]


@torch.no_grad()
def _restore(statistics: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in statistics:
        buffer.copy_(before)


def _floating_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: b for name, b in model.named_buffers() if b.is_floating_point()}
