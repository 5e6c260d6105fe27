"""Average snapshots taken every k epochs, for PEER's task model, P-ENS and SWA."""

from collections.abc import Iterable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn

from peerdg.averages.base import Average, frozen_copy, require_finite
from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.models.statistics import recompute_statistics

BatchNormRule = Literal["recalibrate", "average", "copy", "frozen"]


class Snapshots(Average):
    """Mean θ_f = mean(Θ) of snapshots, stored as a running mean in constant memory.

    mean <- mean + (θ - mean) / (n + 1), in the precision of the parameters (float32), which equals
    the arithmetic mean of the snapshots up to rounding. Integer buffers are copied from the newest
    snapshot. Floating-point buffers (batch-normalization statistics) follow `bn`:

    * `recalibrate`: recomputed in one pass over clean source images after each update
    * `average`: running mean, like the parameters (as in Ensemble of Averages)
    * `copy`: copied from the newest snapshot
    * `frozen`: kept from the initial network

    Args:
        model: Initial network, which is the average until the first snapshot.
        k: Epochs between two snapshots.
        bn: Rule for floating-point buffers.
        clean: Batches of clean source images for `recalibrate`, iterated after each update.
        include_init: Follow Algorithm 1 of PEER literally. Snapshots are taken at the start of a
            period, so the mean includes the initial weights and not the last ones.
        start: Number of initial snapshots to skip. Until then, the newest one is the mean.
        last: Number of newest snapshots to average, each stored as a copy. 1 disables averaging.
        deployed_bn: Rule for `deployed`, a second mean of the same snapshots. None deploys
            `model` itself.
    """

    epoch: Tensor
    taken: Tensor

    def __init__(
        self,
        model: Classifier,
        *,
        k: int = 10,
        bn: BatchNormRule = "average",
        clean: Iterable[Tensor] | None = None,
        include_init: bool = False,
        start: int = 0,
        last: int | None = None,
        deployed_bn: BatchNormRule | None = None,
    ) -> None:
        super().__init__()
        if bn == "recalibrate" and clean is None and has_batch_statistics(model):
            raise ConfigError(
                "bn='recalibrate' needs clean source images to recompute the batch statistics.",
                hint="Pass clean= with the training images, or choose another rule for bn.",
            )
        # AveragedModel copies on its first update (so the mean excludes the initial weights), keeps
        # requires_grad, starts in train mode, and copies the buffers of the newest snapshot.
        self.averaged = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
        self.averaged.requires_grad_(False).eval()
        self.k, self.bn, self.clean = k, bn, clean
        self.include_init, self.start, self.last = include_init, start, last
        self.needs_epoch_start = include_init
        copies = last if last is not None and last > 1 else 0
        self.newest = nn.ModuleList(frozen_copy(model) for _ in range(copies)).eval()
        # `epoch` counts the completed epochs at the last snapshot, to avoid taking it again after a
        # resume. `taken` counts all snapshots.
        self.register_buffer("epoch", torch.tensor(-1))
        self.deployed_snapshots: Snapshots | None = None
        if deployed_bn not in (None, bn) and has_batch_statistics(model):
            self.deployed_snapshots = Snapshots(
                model, k=k, bn=deployed_bn, clean=clean, start=start, last=last
            )
        self.register_buffer("taken", torch.tensor(0))

    @property
    def model(self) -> Classifier:
        return cast(Classifier, self.averaged.module)

    @property
    def count(self) -> int:
        """|Θ|, the number of snapshots in the mean."""
        return int(self.averaged.n_averaged)

    @property
    def version(self) -> int:
        return int(self.taken)

    @property
    def deployed(self) -> Classifier:
        return self.model if self.deployed_snapshots is None else self.deployed_snapshots.model

    @property
    def has_clean_statistics(self) -> bool:
        is_recalibrated = self.bn == "recalibrate" and self.clean is not None
        return is_recalibrated and self.deployed_snapshots is None and self.count > 0

    def before_epoch(self, model: Classifier, epoch: int) -> None:
        """With `include_init`, take the snapshot θ_p^(epoch) at the start of each period."""
        if self.include_init and epoch % self.k == 0 and int(self.epoch) != epoch:
            self.add(model)
            self.epoch.fill_(epoch)

    def after_epoch(self, model: Classifier, epoch: int) -> dict[str, Any]:
        """Update Θ <- Θ ∪ {θ}, θ_f <- mean(Θ) after every k-th epoch."""
        if self.include_init or (epoch + 1) % self.k:
            return {}
        if int(self.epoch) != epoch + 1:  # not taken before an interruption
            self.add(model)
            self.epoch.fill_(epoch + 1)
        return {"snapshots": self.count}

    def epochs_seen(self, epoch: int) -> int:
        """Return the number of epochs up to the last snapshot, or 0 before the first."""
        return max(0, int(self.epoch))

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.k)

    def set_extra_state(self, state: Tensor) -> None:
        """Reject a state that was saved with a different k, because its snapshots would not fit."""
        if int(state) != self.k:
            raise ConfigError(f"The state was saved with k = {int(state)}, not k = {self.k}.")

    @torch.no_grad()
    def add(self, model: Classifier) -> None:
        """Update Θ <- Θ ∪ {θ}, θ_f <- mean(Θ). Restore Θ and θ_f after an error or interruption."""
        require_finite(model)
        before = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        try:
            self._add(model)
        except BaseException:
            self.load_state_dict(before)
            raise

    def _add(self, model: Classifier) -> None:
        before = {name: b.clone() for name, b in _floating_buffers(self.model).items()}
        self._average(model)
        self._settle_buffers(before)
        if self.deployed_snapshots is not None:
            self.deployed_snapshots._add(model)

    def _average(self, model: Classifier) -> None:
        if self.newest:
            self.newest[int(self.taken) % len(self.newest)].load_state_dict(model.state_dict())
        self.taken += 1
        if int(self.taken) <= self.start + 1 or self.last == 1:
            self.averaged.n_averaged.zero_()  # the next update replaces the mean
        if self.count < len(self.newest) or not self.newest:
            self.averaged.update_parameters(model)
            return
        self.averaged.n_averaged.zero_()
        for snapshot in self._window(len(self.newest)):
            self.averaged.update_parameters(snapshot)

    def _window(self, count: int) -> list[nn.Module]:
        """Return the newest `count` snapshots, oldest first."""
        size, taken = len(self.newest), int(self.taken)
        return [self.newest[number % size] for number in range(taken - count, taken)]

    def _settle_buffers(self, before: dict[str, Tensor]) -> None:
        """Apply the `bn` rule to the buffers that were copied from the newest snapshot."""
        if self.bn == "recalibrate":
            if self.clean is not None:
                recompute_statistics(self.model, self.clean)
        elif self.bn == "average" and self.newest:
            window = [_floating_buffers(snapshot) for snapshot in self._window(self.count)]
            for name, buffer in _floating_buffers(self.model).items():
                buffer.copy_(torch.stack([statistics[name] for statistics in window]).mean(0))
        elif self.bn != "copy":
            weight = 1 / self.count if self.bn == "average" else 0.0
            for name, buffer in _floating_buffers(self.model).items():
                buffer.copy_(torch.lerp(before[name], buffer, weight))


def _floating_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: b for name, b in model.named_buffers() if b.is_floating_point()}
