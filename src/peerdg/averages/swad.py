"""Average weights over the flat part of the validation loss curve (SWAD)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from peerdg.averages.base import Average, ValidationLoss, blend, frozen_copy, require_finite
from peerdg.models.classifier import Classifier


def valley(
    losses: Sequence[float], *, converge: int = 3, tolerance: int = 6, ratio: float = 0.3
) -> range | None:
    """Return the segments that SWAD averages, given the validation loss after each segment.

    Training has converged at the first segment c whose loss is the smallest of the `converge`
    losses from c on. The threshold is the mean of these losses times 1 + `ratio`. The valley starts
    at c, or earlier if segments directly before c are under the threshold and still in the queue of
    `tolerance` segments. It continues after c while the smallest loss of the next (up to)
    `tolerance` segments is under the threshold. Before convergence, the result is None.
    """
    for c in range(len(losses) - converge + 1):
        row = losses[c : c + converge]
        if min(row) == row[0]:
            threshold = sum(row) / converge * (1 + ratio)
            start = c
            while start > max(0, c + converge - tolerance) and losses[start - 1] <= threshold:
                start -= 1
            end = c + 1
            while end < len(losses) and min(losses[end : end + tolerance]) <= threshold:
                end += 1
            return range(start, end)
    return None


class SWAD(Average):
    """Stochastic weight averaging densely, from the first minimum of the loss to overfitting.

    Cha et al., "SWAD", NeurIPS 2021, https://arxiv.org/abs/2102.08604. A segment is the mean over
    `every` steps. At its end, the current network is validated. The average is the equal-weight
    mean of the segments in the `valley` of the validation losses, or the newest segment before
    convergence. Batch statistics are averaged like weights.

    Only the last `tolerance` segments are stored, so memory is constant. Whether a segment is in
    the valley is decided before it leaves this queue.

    Args:
        model: Network to average.
        loss: Function that returns a network's loss on the source's validation images.
        epochs: Number of training epochs. If set, the last one closes the open segment.
        every: Steps per segment, 100 in the paper and fewer in short runs.
        converge: Training has converged if the first of this many losses is the smallest (N_s).
        tolerance: Successive segments above the threshold that end the valley (N_e ≥ N_s).
        ratio: Relative height of the threshold above the converged loss (r).
    """

    updates_every_step = True

    def __init__(
        self,
        model: Classifier,
        *,
        loss: ValidationLoss,
        epochs: int | None = None,
        every: int = 100,
        converge: int = 3,
        tolerance: int = 6,
        ratio: float = 0.3,
    ) -> None:
        super().__init__()
        self.loss, self.epochs, self.every = loss, epochs, every
        self.tolerance = max(converge, tolerance)
        self._find = partial(valley, converge=converge, tolerance=self.tolerance, ratio=ratio)
        self.averaged = frozen_copy(model)
        self.segment = frozen_copy(model)  # mean over the steps since the last validation
        self.queue = nn.ModuleList(frozen_copy(model) for _ in range(self.tolerance))
        self.mean = frozen_copy(model)  # mean of the valley's segments that left the queue
        self.steps = 0
        self.losses: list[float] = []  # validation loss of every segment

    @property
    def valley(self) -> range | None:
        """The closed segments to average, or None before convergence."""
        return self._find(self.losses)

    @property
    def count(self) -> int:
        return len(self.valley or self.losses[-1:])

    @property
    def model(self) -> Classifier:
        """The mean over the valley, as if training had ended with the last closed segment."""
        return self.averaged

    @property
    def version(self) -> int:
        return len(self.losses)

    def after_step(self, model: Classifier) -> None:
        # The first segment has one step, as in the authors' code.
        blend(self.segment, model, 1 / (self._open + 1))
        self.steps += 1
        if self._open == 0:
            self._close(self.loss(model))

    def after_epoch(self, model: Classifier, epoch: int) -> dict[str, Any]:
        require_finite(self)
        # In the authors' runs, the last step always closes a segment. Close it only once.
        closed = 1 + (self.steps - 1) // self.every
        if epoch + 1 == self.epochs and self._open and len(self.losses) == closed:
            self._close(self.loss(model))
        segments = self.valley
        return {"swad": [segments.start, segments.stop] if segments else None}

    def epochs_seen(self, epoch: int) -> int:
        if epoch == self.epochs or not self.steps:
            return epoch
        return epoch * (self.steps - self._open) // self.steps

    @property
    def _open(self) -> int:
        """Number of steps in the open segment."""
        return (self.steps - 1) % self.every if self.steps else 0

    def _close(self, loss: float) -> None:
        """Queue the open segment. The oldest one moves into `mean` if it is in the valley."""
        number, segments = len(self.losses), self.valley
        leaving = number - self.tolerance
        if segments is not None and leaving in segments:
            blend(self.mean, self._queued(leaving), 1 / (leaving - segments.start + 1))
        blend(self._queued(number), self.segment, 1)
        self.losses.append(loss)
        self._average()

    def _average(self) -> None:
        """Compute the equal-weight mean of the valley's segments from `mean` and the queue."""
        count = len(self.losses)
        segments = self.valley or range(count - 1, count)
        oldest = max(0, count - self.tolerance)  # oldest segment in the queue
        if segments.start < oldest:
            blend(self.averaged, self.mean, 1)
        for number in range(max(segments.start, oldest), segments.stop):
            blend(self.averaged, self._queued(number), 1 / (number - segments.start + 1))

    def _queued(self, number: int) -> nn.Module:
        return self.queue[number % self.tolerance]

    def get_extra_state(self) -> Tensor:
        """Return the step count and the losses. Their number grows, so they cannot be a buffer."""
        return torch.tensor([self.steps, *self.losses], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        steps, *self.losses = state.tolist()
        self.steps = int(steps)
