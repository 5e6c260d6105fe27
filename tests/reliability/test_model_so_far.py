"""A run that was stopped has left a model that can be used, and says how far it was trained."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import peerdg
from peerdg.cli.main import run
from peerdg.errors import PeerdgWarning, Stopped
from peerdg.methods.base import Batch
from peerdg.models.stored import load_stored
from peerdg.options import merge
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from peerdg.run.progress import ProgressDisplay
from tests.cli.stored_models import save_photos
from tests.conftest import tiny_splits
from tests.reliability.tiny_run import OPTIONS, tiny_model


class StopAt(ProgressDisplay):
    """Sends the process a signal after one of the steps, as a scheduler would."""

    def __init__(self, phase: str, epoch: int, step: int) -> None:
        self.moment = (phase, epoch, step)
        self.phase = ""

    def start_phase(self, name: str, **_: Any) -> None:
        self.phase = name

    def step(self, epoch: int, step: int, **_: Any) -> None:
        if (self.phase, epoch, step) == self.moment:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(out: Path, *moment: Any, **options: Any) -> str:
    """Train until the signal; returns what is said."""
    given = merge(OPTIONS, options)
    with pytest.raises(Stopped) as caught:
        peerdg.fit(tiny_splits(), out=out, model=tiny_model(), progress=StopAt(*moment), **given)
    return caught.value.message


def described(out: Path) -> dict[str, Any]:
    return json.loads((out / "model/model.json").read_text())


def test_the_model_is_the_deployed_one_of_the_last_evaluation(tmp_path: Path):
    """k is 2: stopped in the sixth epoch, the task model is the mean of two snapshots."""
    out = tmp_path / "run"
    message = stopped(out, "train", 5, 1, keep_snapshots=True)
    assert f"peerdg predict {out}" in message
    with pytest.warns(PeerdgWarning, match="trained for 4 of 8 epochs: its run is not finished"):
        model = peerdg.load_model(out, network=tiny_model())
    assert model.how_far == "trained for 4 of 8 epochs"
    assert model.description["progress"]["complete"] is False
    checkpoint = load_checkpoint(checkpoints(out / "checkpoint")[-1])
    for name, value in model.classifier.state_dict().items():
        assert value.equal(checkpoint.tensors[f"method.average.averaged.module.{name}"]), name
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for domain, result in described(out)["training"]["accuracy"].items():
        (found,) = (
            r for r in records
            if r["kind"] == "evaluation" and r["epoch"] == 4 and r["model"] == "task"
            and r["domain"] == domain
        )  # fmt: skip
        assert result["accuracy"] == found["accuracy"]
    card = (out / "model/MODEL_CARD.md").read_text()
    assert "it was trained for 4 of 8 epochs" in card
    assert "After the last epoch" not in card


@pytest.mark.parametrize(
    ("moment", "far"),
    [
        (("train", 1, 2), "pre-trained only, for 2 of 2 epochs"),
        (("train", 2, 1), "trained for 2 of 8 epochs"),
    ],
)
def test_it_says_how_far(tmp_path: Path, moment: tuple[Any, ...], far: str):
    stopped(tmp_path / "run", *moment, evaluate_every=1)
    with pytest.warns(PeerdgWarning, match=far):
        assert peerdg.load_model(tmp_path / "run", network=tiny_model()).how_far == far


def test_before_the_first_evaluation_there_is_no_model(tmp_path: Path):
    message = stopped(tmp_path / "a", "pretrain", 1, 1)
    assert "predict" not in message
    stopped(tmp_path / "b", "train", 1, 1, pretrain={"epochs": 0}, evaluate_every=1)
    for out in (tmp_path / "a", tmp_path / "b"):
        assert not (out / "model").exists()


def test_a_finished_run_has_the_model_of_one_that_was_not_stopped(tmp_path: Path):
    out, whole = tmp_path / "run", tmp_path / "whole"
    stopped(out, "train", 5, 1)
    for place in (out, whole):
        done = peerdg.fit(
            tiny_splits(), out=place, model=tiny_model(), existing="resume", **OPTIONS
        )
        assert done.model.how_far is None
        assert done.model.description["progress"]["complete"] is True
    for name in ("model.safetensors", "model.json", "MODEL_CARD.md"):
        assert (out / "model" / name).read_bytes() == (whole / "model" / name).read_bytes()


def test_what_is_written_is_not_what_is_trained_on_meanwhile(tmp_path: Path, monkeypatch):
    """The weights are copied before the next step changes them, however slow the disk is."""
    import threading

    from peerdg.run import model

    release, real = threading.Event(), model.write_model
    expected: list[dict[str, torch.Tensor]] = []

    def slow(folder: Path, tensors: dict[str, torch.Tensor], description: dict[str, Any]) -> str:
        release.wait(20)
        return real(folder, tensors, description)

    class Watch(StopAt):
        def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
            if epoch == 1:
                expected.append({k: v.clone() for k, v in network.state_dict().items()})

        def step(self, epoch: int, step: int, **values: Any) -> None:
            if (self.phase, epoch, step) == ("train", 1, 2):
                release.set()
            super().step(epoch, step, **values)

    monkeypatch.setattr(model, "write_model", slow)
    network = tiny_model()
    options = merge({k: v for k, v in OPTIONS.items() if k != "peer"}, {"method": "erm"})
    options |= {"evaluate_every": 1, "checkpoint_minutes": 60, "pretrain": {"epochs": 0}}
    watch = Watch("train", 1, 2)
    with pytest.raises(Stopped):
        peerdg.fit(tiny_splits(), out=tmp_path / "run", model=network, progress=watch, **options)
    stored, _ = load_stored(tmp_path / "run/model", tiny_model())
    for name, value in stored.state_dict().items():
        assert value.equal(expected[0][name]), name
    assert not network.head.weight.equal(stored.head.weight)  # training went on


# fmt: off
COMMAND = (
    "--backbone", "digits-cnn-half", "--weights", "none", "--transform.size", "32", "--threads",
    "1", "--pretrain.epochs", "1", "--epochs", "4", "--peer.k", "2", "--evaluate-every", "2",
    "--peer.head-dim", "8", "--peer.scale", "sum",
)
# fmt: on


def test_the_commands_use_it_and_resume_says_where_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from peerdg.methods.peer import PEER

    out, photos = tmp_path / "run", save_photos(tmp_path / "photos")
    real = PEER.loss

    def loss(self: PEER, batch: Batch) -> Any:
        if self.epochs_seen(0) == 2:  # in the first step after the snapshot
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, batch)

    monkeypatch.setattr(PEER, "loss", loss)
    assert run(["train", str(photos), "--out", str(out), *COMMAND], debug=False) == 130
    monkeypatch.setattr(PEER, "loss", real)
    said = capsys.readouterr().err
    assert "All weights start fresh." in said
    image = str(next(photos.rglob("*.png")))
    for arguments in (
        ["predict", str(out), image],
        ["evaluate", str(out)],
        ["export", str(out), "--format", "safetensors", "-o", str(tmp_path / "exported")],
    ):
        # The command line prints warnings on standard error; here they are errors unless expected.
        with pytest.warns(PeerdgWarning, match="trained for 2 of 4 epochs"):
            assert run(arguments, debug=False) == 0, arguments
    assert "trained for 2 of 4 epochs" in (tmp_path / "exported/MODEL_CARD.md").read_text()
    capsys.readouterr()
    assert run(["resume", str(out)], debug=False) == 0
    said = capsys.readouterr().err
    assert "train after epoch 2, step 1" in said
    assert "start fresh" not in said
    assert run(["predict", str(out), image], debug=False) == 0  # and without a warning
