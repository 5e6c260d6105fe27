"""Optimizers from closed forms, and the rate that they see in each epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

import peerdg
from peerdg.methods.base import Method
from peerdg.train.optim import learning_rate, make_optimizers
from peerdg.train.settings import PhaseSettings
from tests.conftest import tiny_classifier, tiny_splits

START, RATE, STEPS = 2.0, 0.01, 5


class Around(Method):
    """A method that is nothing but a module with parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @classmethod
    def build(cls, model: Any, settings: Any, context: Any) -> "Around":
        return cls(model)

    @property
    def networks(self) -> dict[str, Any]:
        return {}


def optimizer_of(module: nn.Module, settings: PhaseSettings) -> torch.optim.Optimizer:
    return make_optimizers(Around(module), settings)["main"]


def after_steps(gradient: float, **options: Any) -> float:
    """One weight after five steps with a constant gradient."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, START)
    optimizer = optimizer_of(layer, PhaseSettings(lr=RATE, **options))
    for _ in range(STEPS):
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
    return float(layer.weight.detach())


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_sums_up_past_gradients(momentum: float):
    """b_t = g (1 + m + ... + m^(t-1)), and a step is rate times b_t."""
    moved = sum(sum(momentum**i for i in range(t)) for t in range(1, STEPS + 1))
    weight = after_steps(3.0, optimizer="sgd", momentum=momentum, weight_decay=0.0)
    assert weight == pytest.approx(START - RATE * 3.0 * moved, rel=1e-6)


def test_weight_decay_of_sgd_shrinks_a_weight_without_gradient():
    """Each step multiplies it by 1 - rate decay."""
    weight = after_steps(0.0, optimizer="sgd", momentum=0.0, weight_decay=0.3)
    assert weight == pytest.approx(START * (1 - RATE * 0.3) ** STEPS, rel=1e-6)


def test_adam_moves_by_the_rate_under_a_constant_gradient_whatever_its_size():
    for gradient in (1e-3, -7.0):
        weight = after_steps(gradient, optimizer="adam", weight_decay=0.0)
        sign = 1 if gradient > 0 else -1
        assert weight == pytest.approx(START - STEPS * RATE * sign, rel=1e-4)


def test_weight_decay_of_adam_is_part_of_the_gradient():
    """A gradient of minus decay times the weight is cancelled by it: the weight stays."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, START)
    optimizer = optimizer_of(layer, PhaseSettings(optimizer="adam", lr=RATE, weight_decay=0.3))
    for _ in range(STEPS):
        layer.weight.grad = -0.3 * layer.weight.detach().clone()
        optimizer.step()
    assert float(layer.weight.detach()) == START
    # And alone it pulls to zero by the rate, as any constant sign does.
    weight = after_steps(0.0, optimizer="adam", weight_decay=0.3)
    assert weight == pytest.approx(START - STEPS * RATE, rel=1e-3)


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


def test_without_a_schedule_the_rate_is_constant():
    assert {learning_rate(PhaseSettings(lr=0.2), epoch) for epoch in range(50)} == {0.2}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_step_of_a_run_sees_the_rate_of_its_epoch(optimizer: str, tmp_path: Path):
    seen: list[float] = []
    hook = register_optimizer_step_pre_hook(
        lambda used, *_: seen.extend({group["lr"] for group in used.param_groups})
    )
    try:
        run = peerdg.fit(
            tiny_splits(),
            out=tmp_path / "run",
            model=tiny_classifier(),
            method="erm",
            pretrain={"epochs": 3, "batch_size": 8, "lr": 0.2, "lr_step": 2, "lr_gamma": 0.1,
                      "optimizer": optimizer},
            train={"epochs": 5, "batch_size": 12, "lr": 0.01, "lr_step": 2, "lr_gamma": 0.5,
                   "optimizer": optimizer},
            crafted="off",
        )  # fmt: skip
    finally:
        hook.remove()
    pretrain = [0.2] * 3 + [0.2] * 3 + [0.02] * 3  # three steps in each epoch
    train = [0.01] * 4 + [0.005] * 4 + [0.0025] * 2  # two steps in each epoch
    assert seen == pytest.approx(pretrain + train)
    recorded = [record["lr"] for record in run.records if record["kind"] == "epoch"]
    assert recorded == pytest.approx([0.2, 0.2, 0.02, 0.01, 0.01, 0.005, 0.005, 0.0025])
