"""Update averages after every optimizer step: EMA and SMA."""

from typing import Any

import torch
from torch import Tensor

from peerdg.averages.base import Average, blend, frozen_copy, require_finite
from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier


class _Moving(Average):
    """A copy of the network that is updated after every step.

    The step count is a Python int, not a buffer, to avoid a device sync per step.
    """

    updates_every_step = True

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.averaged = frozen_copy(model)
        self.steps = 0

    @property
    def model(self) -> Classifier:
        return self.averaged

    @property
    def version(self) -> int:
        return self.steps

    def after_epoch(self, model: Classifier, epoch: int) -> dict[str, Any]:
        require_finite(self)  # a check after each step would cost a device sync
        return {}

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state)


class EMA(_Moving):
    """Exponential moving average θ̄ <- d θ̄ + (1 - d) θ after every step.

    With warm-up, d is min(decay, (1 + t) / (10 + t)) at step t, counted from 0. The constants are
    TensorFlow's. The average then covers about the last ninth of the steps, in a run of any length,
    until d reaches `decay`. Tarvainen and Valpola, "Mean teachers", NeurIPS 2017,
    https://arxiv.org/abs/1703.01780, use 0.999, a window of 1,000 steps. Batch statistics are
    averaged with the same d.
    """

    def __init__(self, model: Classifier, *, decay: float = 1.0, warm_up: bool = True) -> None:
        super().__init__(model)
        if decay == 1 and not warm_up:
            raise ConfigError("An EMA without warm-up needs a decay below 1.")
        self.decay = decay
        self.warm_up = warm_up

    def after_step(self, model: Classifier) -> None:
        """Update θ̄ <- d θ̄ + (1 - d) θ."""
        t = self.steps
        decay = min(self.decay, (1 + t) / (10 + t)) if self.warm_up else self.decay
        blend(self.averaged, model, 1 - decay)
        self.steps += 1

    @property
    def count(self) -> int:
        return self.steps


class SMA(_Moving):
    """Simple moving average, the uniform mean over all steps from t0 on.

    Arpit et al., "Ensemble of averages", NeurIPS 2022, https://arxiv.org/abs/2110.10832. Up to step
    t0 (`start`), it is the network itself. Batch statistics are averaged like weights, as the
    authors do.
    """

    def __init__(self, model: Classifier, *, start: int = 100) -> None:
        super().__init__(model)
        self.start = start

    def after_step(self, model: Classifier) -> None:
        """Copy θ up to t0, then update θ̄ <- (n θ̄ + θ) / (n + 1) with n = t - t0."""
        self.steps += 1
        n = self.steps - self.start
        blend(self.averaged, model, 1 / (n + 1) if n > 0 else 1)

    @property
    def count(self) -> int:
        return 0 if self.steps == 0 else max(1, self.steps - self.start + 1)
