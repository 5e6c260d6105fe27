"""Optimizers against closed forms, and their learning rate in each epoch."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from peerdg.methods.base import Method
from peerdg.train.optim import learning_rate, make_optimizers
from peerdg.train.settings import PhaseSettings


class Around(Method):
    """A method that is nothing but a module with parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def optimizer_of(module: nn.Module, settings: PhaseSettings) -> torch.optim.Optimizer:
    return make_optimizers(Around(module), settings)["main"]


def test_weights_that_need_no_gradient_are_left_alone():
    method = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    optimizer = optimizer_of(method, PhaseSettings())
    known = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in known} == {id(p) for p in method[0].parameters()}


@pytest.mark.parametrize(("every", "gamma"), [(1, 0.9), (3, 0.5), (5, 0.1)])
def test_the_rate_is_that_of_torchs_step_schedule(every: int, gamma: float):
    settings = PhaseSettings(lr=0.2, lr_step=every, lr_gamma=gamma)
    reference = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    schedule = StepLR(reference, step_size=every, gamma=gamma)
    for epoch in range(12):
        assert learning_rate(settings, epoch) == pytest.approx(reference.param_groups[0]["lr"])
        reference.step()
        schedule.step()
