import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.cli import train as command
from peerdg.cli.main import run
from peerdg.errors import NumericalError
from peerdg.methods.base import Batch
from peerdg.methods.erm import ERM
from peerdg.methods.peer import PEER
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from peerdg.run.folder import RunFolder
from peerdg.train import loop
from peerdg.train.step import Guard
from tests.conftest import tiny_classifier, tiny_splits

STEPS = 12  # 4 epochs of 3 steps
OPTIONS = {
    "checkpoint_minutes": 0,
    "pretrain": {"epochs": 0, "batch_size": 8},
    "train": {"epochs": 4, "batch_size": 8, "lr": 0.01},
}
Terms = dict[str, torch.Tensor]
Fault = Callable[[torch.nn.Module, Callable[[], Terms]], Terms]


def nan_loss(method: torch.nn.Module, terms: Callable[[], Terms]) -> Terms:
    return {**terms(), "loss": terms()["loss"] * float("nan")}


def infinite_loss(method: torch.nn.Module, terms: Callable[[], Terms]) -> Terms:
    return {**terms(), "loss": terms()["loss"] + float("inf")}


def nan_gradient(method: torch.nn.Module, terms: Callable[[], Terms]) -> Terms:
    """The loss is finite, its gradient is not: the derivative of sqrt at 0 times 0."""
    weight = next(p for p in method.parameters() if p.requires_grad)
    return {**terms(), "loss": terms()["loss"] + torch.sqrt((weight * 0).sum())}


def infinite_weight(method: torch.nn.Module, terms: Callable[[], Terms]) -> Terms:
    """Set a weight to infinity, as an overflowing step does."""
    weight = next(p for p in method.parameters() if p.requires_grad)
    weight.data.flatten()[0] = float("inf")
    return terms()


FAULTS: dict[str, Fault] = {
    "nan-loss": nan_loss,
    "infinite-loss": infinite_loss,
    "nan-gradient": nan_gradient,
    "infinite-weight": infinite_weight,
}
# First, last and between, on both sides of a snapshot: each kind of fault at two moments.
MOMENTS = (0, 2, 3, 5, 6, STEPS - 1)
CASES = [
    (fault, step)
    for number, fault in enumerate(FAULTS)
    for place, step in enumerate(MOMENTS)
    if (place - number) % 3 == 0
]


class Injected:
    """Makes a method's loss go wrong at one step, and remembers what came before."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: type, fault: Fault, step: int
    ) -> None:
        self.calls, self.method, self.before = 0, None, {}
        loss = kind.loss

        def wrong(method: torch.nn.Module, batch: Batch) -> Terms:
            self.calls += 1
            self.method = method
            if self.calls - 1 != step:
                return loss(method, batch)
            self.before = {k: v.clone() for k, v in method.state_dict().items()}
            return fault(method, lambda: loss(method, batch))

        monkeypatch.setattr(kind, "loss", wrong)


def fit(out: Path, method: str = "peer", **options: object) -> None:
    config = {**OPTIONS, **options}
    if method == "peer":
        # The published scale computes the loss once in each step.
        config["peer"] = {"k": 1, "head_dim": 4, "head_hidden": 8, "scale": "sum"}
    peerdg.fit(
        tiny_splits(), out=out, model=tiny_classifier(), method=method, existing="resume", **config
    )


@pytest.mark.parametrize(("fault", "step"), CASES)
def test_a_fault_stops_the_run_before_it_reaches_a_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, step: int
):
    injected = Injected(monkeypatch, PEER, FAULTS[fault], step)
    with pytest.raises(NumericalError) as caught:
        fit(tmp_path / "run")
    assert injected.calls == step + 1
    method = injected.method
    assert isinstance(method, PEER)
    assert all(torch.isfinite(p).all() for p in method.task.parameters())
    if fault != "infinite-weight":  # which is itself a change of the weights
        after = method.state_dict()
        same = [torch.equal(after[k], v) for k, v in injected.before.items() if "running" not in k]
        assert sum(same) >= len(same) - 1  # except the count of batches

    failure = json.loads((tmp_path / "run/failure.json").read_text())
    assert failure["error"] == caught.value.message
    assert (failure["epoch"], failure["step"]) == divmod(step, 3)
    assert len(failure["rows"]) == 8
    assert failure["lr"] == 0.01
    values = (failure["terms"]["loss"], failure["gradient_norm"])
    finite = all(math.isfinite(float(value)) for value in values)
    assert not finite
    assert RunFolder(tmp_path / "run").status() == "failed"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    fit(out)
    return out


@pytest.mark.parametrize("step", [1, STEPS - 1])
def test_the_last_good_state_is_saved_and_can_be_resumed(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    Injected(monkeypatch, PEER, nan_loss, step)
    with pytest.raises(NumericalError):
        fit(tmp_path / "run")
    monkeypatch.undo()
    newest = load_checkpoint(checkpoints(tmp_path / "run/checkpoint")[-1])
    assert newest.state["epoch"] * 3 + newest.state["step"] == step
    assert all(t.isfinite().all() for t in newest.tensors.values() if t.is_floating_point())
    fit(tmp_path / "run")
    assert not (tmp_path / "run/failure.json").exists()
    for name in ("model/model.safetensors", "metrics.jsonl"):
        a, b = undisturbed / name, tmp_path / "run" / name
        assert a.read_bytes() == b.read_bytes()


def test_a_checkpoint_has_no_step_skipped_by_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A checkpoint must not count updates that a GPU skipped."""
    monkeypatch.setattr(loop, "Guard", partial(Guard, every=100))
    Injected(monkeypatch, ERM, nan_loss, step=1)
    with pytest.raises(NumericalError, match="step 2"):
        fit(tmp_path / "run", "erm")
    newest = load_checkpoint(checkpoints(tmp_path / "run/checkpoint")[-1])
    assert (newest.state["epoch"], newest.state["step"]) == (0, 1)


@pytest.mark.parametrize("method", ["erm", "peer"])
def test_a_weight_that_the_last_step_made_infinite_is_not_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
):
    step, calls = torch.optim.Adam.step, []

    def overflow(self: torch.optim.Adam) -> None:
        step(self)
        calls.append(self)
        if len(calls) == STEPS:
            with torch.no_grad():
                self.param_groups[0]["params"][0].flatten()[0] = float("inf")

    monkeypatch.setattr(torch.optim.Adam, "step", overflow)
    with pytest.raises(NumericalError, match="not finite") as caught:
        fit(tmp_path / "run", method)
    assert caught.value.details["epoch"] == 3
    assert not (tmp_path / "run/done.json").exists()
    stored = tmp_path / "run/model/model.safetensors"  # of the evaluation before
    assert all(value.isfinite().all() for value in load_file(stored).values())


def test_the_command_line_ends_with_6_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def train(config: object, out: Path, *_: object, **__: object) -> None:
        fit(out)

    Injected(monkeypatch, PEER, nan_gradient, 2)
    monkeypatch.setattr(command, "run_and_report", train)
    assert run(["train", "digits-mini", "--out", str(tmp_path / "run")], debug=False) == 6
    output = capsys.readouterr().err
    assert "The gradient is not finite in train epoch 1, step 3." in output
    assert "--train.lr" in output
    assert "Traceback" not in output
