"""Methods with several optimizers and parameter groups, and their resume."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.errors import NumericalError
from peerdg.methods.base import (
    Batch,
    Method,
    OptimizerPlan,
    OptimizerStep,
    ParamGroup,
    Terms,
)
from peerdg.models.classifier import Classifier
from peerdg.train.optim import make_optimizers, set_learning_rate
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain

PHASE = PhaseSettings(optimizer="sgd", lr=0.1, momentum=0.5, weight_decay=0.0)


class Adversary(Method):
    """A gain per channel with its own optimizer raises the loss that the network lowers."""

    def __init__(self, model: Classifier, *, factor: float = 1.0) -> None:
        super().__init__(model)
        self.gain = nn.Parameter(torch.ones(3, 1, 1))
        self.factor = factor

    def optimizers(self) -> dict[str, OptimizerPlan]:
        encoder, head = self.model.encoder.parameters(), self.model.head.parameters()
        return {
            "main": OptimizerPlan(
                [ParamGroup(list(encoder)), ParamGroup(list(head), lr_scale=10.0)]
            ),
            "gain": OptimizerPlan([ParamGroup([self.gain])], kind="adam", lr=0.03),
        }

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        worse = -self._loss(batch)
        update("gain", worse)
        loss = self._loss(batch)
        update("main", loss, {"worse": worse})
        return {"loss": loss.detach(), "worse": worse.detach()}

    def _loss(self, batch: Batch) -> Tensor:
        images = batch.images.float() / 255 * self.gain * self.factor
        return F.cross_entropy(self.model(images), batch.labels)


def batches(count: int) -> list[Batch]:
    domain = tiny_domain(n=8 * count)
    return [
        Batch(domain.images[8 * i : 8 * i + 8], domain.labels[8 * i : 8 * i + 8])
        for i in range(count)
    ]


def train(state: TrainState, data: list[Batch], *, rate: float = 0.1) -> None:
    guard = Guard(state)
    set_learning_rate(state.method, state.optimizers, rate)
    for batch in data:
        train_step(state, batch, torch.arange(8), guard=guard, seed=0, key=("t", state.step))
        state.step += 1


def state_of(method: Method) -> TrainState:
    return TrainState("train", method, make_optimizers(method, PHASE))


def test_two_optimizers_equal_a_plain_alternating_loop():
    model = tiny_classifier()
    state = state_of(Adversary(copy.deepcopy(model)))
    train(state, batches(4), rate=0.05)

    gain = torch.ones(3, 1, 1, requires_grad=True)
    adam = torch.optim.Adam([gain], lr=0.03)
    sgd = torch.optim.SGD(
        [
            {"params": list(model.encoder.parameters()), "lr": 0.05},
            {"params": list(model.head.parameters()), "lr": 0.5},
        ],
        momentum=0.5,
    )
    for batch in batches(4):
        for optimizer, sign in ((adam, -1), (sgd, 1)):
            loss = sign * F.cross_entropy(model(batch.images.float() / 255 * gain), batch.labels)
            adam.zero_grad(), sgd.zero_grad()
            loss.backward()
            optimizer.step()
    trained = state.method
    assert isinstance(trained, Adversary)
    torch.testing.assert_close(trained.gain, gain, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(trained.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_schedule_moves_the_phases_optimizer_and_leaves_one_with_its_own_rate():
    method = Adversary(tiny_classifier())
    optimizers = make_optimizers(method, PHASE)
    set_learning_rate(method, optimizers, 0.02)
    assert [g["lr"] for g in optimizers["main"].param_groups] == pytest.approx([0.02, 0.2])
    assert [g["lr"] for g in optimizers["gain"].param_groups] == [0.03]


def test_a_restored_state_has_the_moments_of_every_optimizer():
    model, data = tiny_classifier(), batches(5)
    whole = state_of(Adversary(copy.deepcopy(model)))
    train(whole, data)
    first = state_of(Adversary(copy.deepcopy(model)))
    train(first, data[:2])
    second = state_of(Adversary(copy.deepcopy(model)))
    second.restore({k: v.clone() for k, v in first.tensors().items()}, first.metadata())
    train(second, data[2:])
    ours, theirs = second.tensors(), whole.tensors()
    assert ours.keys() == theirs.keys()
    assert {k.split(".")[1] for k in ours if k.startswith("optimizer.")} == {"main", "gain"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_loss_that_is_not_finite_changes_neither_network_and_names_its_terms():
    method = Adversary(tiny_classifier(), factor=float("inf"))
    before = {name: value.clone() for name, value in method.state_dict().items()}
    state = state_of(method)
    with pytest.raises(NumericalError) as caught:
        train(state, batches(1))
    assert "not finite" in caught.value.message
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


class Twice(Adversary):
    """Two updates of the same network in one step."""

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        first = self._loss(batch)
        update("main", first)
        second = self._loss(batch)
        update("main", second)
        return {"loss": first.detach(), "second": second.detach()}


def test_a_second_update_in_bfloat16_sees_the_weights_of_the_first():
    """Autocast caches copies of weights, which must not outlive an update."""

    def second_loss(rate: float) -> float:
        state, batch = state_of(Twice(tiny_classifier())), batches(1)[0]
        set_learning_rate(state.method, state.optimizers, rate)
        guard, rows = Guard(state), torch.arange(8)
        terms = train_step(state, batch, rows, guard=guard, seed=0, key=("t", 0), bf16=True)
        return float(terms["second"])

    assert second_loss(1e-6) != second_loss(0.5)
