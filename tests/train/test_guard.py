import pytest
import torch

from peerdg.errors import NumericalError
from peerdg.methods.erm import ERM
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.source import Source
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain


def fresh(optimizer: str) -> TrainState:
    method = ERM(tiny_classifier())
    settings = PhaseSettings(optimizer=optimizer, lr=0.1)  # type: ignore[arg-type]
    return TrainState("train", method, make_optimizers(method, settings))


def steps(state: TrainState, guard: Guard, count: int) -> None:
    source = Source(tiny_domain())
    for number in range(count):
        rows, key = torch.arange(8), ("train", 0, number)
        batch = source.batch(rows, seed=0, key=key)
        train_step(state, batch, rows, guard=guard, seed=0, key=key)
        state.step += 1


def spoil(state: TrainState, *bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the loss of some steps infinite."""
    loss = type(state.method).loss

    def wrong(method, batch):
        terms = loss(method, batch)
        return {**terms, "loss": terms["loss"] * (float("inf") if state.step in bad else 1)}

    monkeypatch.setattr(type(state.method), "loss", wrong)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_late_check_leaves_the_weights_before_the_bad_step(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
):
    """Check every 6th step, as on a GPU, after a bad step 2."""
    before = fresh(optimizer)
    steps(before, Guard(before), 2)
    state = fresh(optimizer)
    spoil(state, 2, 4, monkeypatch=monkeypatch)
    with pytest.raises(NumericalError, match="step 3") as caught:
        steps(state, Guard(state, every=6), 6)
    assert caught.value.details["step"] == 2
    for name, value in before.method.state_dict().items():
        assert torch.equal(state.method.state_dict()[name], value), name


def test_the_check_interval_does_not_change_training(monkeypatch: pytest.MonkeyPatch):
    often, rarely = fresh("adam"), fresh("adam")
    steps(often, Guard(often), 5)
    guard = Guard(rarely, every=100)
    steps(rarely, guard, 5)
    guard.check_weights()
    for name, value in often.tensors().items():
        assert torch.equal(rarely.tensors()[name], value), name


def test_a_bad_step_is_noticed_before_a_checkpoint(monkeypatch: pytest.MonkeyPatch):
    state = fresh("adam")
    spoil(state, 1, monkeypatch=monkeypatch)
    guard = Guard(state, every=100)
    steps(state, guard, 3)
    with pytest.raises(NumericalError, match="step 2"):
        guard.check()
