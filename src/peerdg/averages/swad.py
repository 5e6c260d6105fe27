"""SWAD: the mean over the flat part of the validation loss."""

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
    """The segments that SWAD averages, from the validation loss after each of them.

    Training has converged at segment c if its loss is the smallest of `converge` losses in a row of
    which it is the first. The threshold is their mean times 1 + `ratio`. The valley begins at c, or
    earlier: it takes in the segments right before c under the threshold, as far back as a queue of
    `tolerance` segments reaches at that moment. It goes on after c for as long as the smallest loss
    of the next `tolerance` segments (of those there are, at the end) is under the threshold. None
    before convergence.
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

    Cha et al., "SWAD", NeurIPS 2021, https://arxiv.org/abs/2102.08604. Every step joins the mean of
    a *segment*; every `every` steps the validation loss of the network itself closes the segment.
    The average is the equal-weight mean of the segments in the `valley` of these losses; before
    there is one it is the newest segment. Batch statistics are averaged like weights.

    Only the last `tolerance` segments are kept, so memory does not grow: a segment that leaves the
    queue is in the valley or can never be.

    Args:
        model: The network to follow.
        loss: The loss of a network on the source's validation images.
        epochs: Epochs of the training, whose end closes the last segment; None leaves it open.
        every: Steps in a segment; the paper's 100, fewer in short runs.
        converge: Losses in a row, of which the first is the smallest at convergence (N_s).
        tolerance: Segments above the threshold before the valley ends (N_e), at least N_s.
        ratio: Tolerance of the threshold (r).
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
        self.segment = frozen_copy(model)  # mean of the steps since the last evaluation
        self.queue = nn.ModuleList(frozen_copy(model) for _ in range(self.tolerance))
        self.mean = frozen_copy(model)  # of the valley's segments that have left the queue
        self.steps = 0
        self.losses: list[float] = []  # of every segment; the valley follows from them

    @property
    def valley(self) -> range | None:
        """The segments to average, of those closed so far."""
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
        # The first segment has one step, as the authors' has.
        blend(self.segment, model, 1 / (self._open + 1))
        self.steps += 1
        if self._open == 0:
            self._close(self.loss(model))

    def after_epoch(self, model: Classifier, epoch: int) -> dict[str, Any]:
        require_finite(self)
        # The authors' runs end with a step that closes a segment.
        if epoch + 1 == self.epochs and self._open:
            self._close(self.loss(model))
        found = self.valley
        return {"swad": [found.start, found.stop] if found else None}

    def epochs_seen(self, epoch: int) -> int:
        if epoch == self.epochs or not self.steps:
            return epoch
        return epoch * (self.steps - self._open) // self.steps

    @property
    def _open(self) -> int:
        """Steps since the last segment was closed."""
        return (self.steps - 1) % self.every if self.steps else 0

    def _close(self, loss: float) -> None:
        """Queue the segment. The oldest one moves into `mean` if it is in the valley."""
        number, found = len(self.losses), self.valley
        leaving = number - self.tolerance
        if found is not None and leaving in found:
            blend(self.mean, self._queued(leaving), 1 / (leaving - found.start + 1))
        blend(self._queued(number), self.segment, 1)
        self.losses.append(loss)
        self._average()

    def _average(self) -> None:
        """Equal-weight mean of the valley's segments, of which the old ones are in `mean`."""
        count = len(self.losses)
        found = self.valley or range(count - 1, count)
        oldest = max(0, count - self.tolerance)  # in the queue
        if found.start < oldest:
            blend(self.averaged, self.mean, 1)
        for number in range(max(found.start, oldest), found.stop):
            blend(self.averaged, self._queued(number), 1 / (number - found.start + 1))

    def _queued(self, number: int) -> nn.Module:
        return self.queue[number % self.tolerance]

    def get_extra_state(self) -> Tensor:
        """Steps and losses, whose number grows: a buffer would have a fixed shape."""
        return torch.tensor([self.steps, *self.losses], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        steps, *self.losses = state.tolist()
        self.steps = int(steps)
