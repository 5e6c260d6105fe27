"""Before a run begins and after a phase: disk space, images that fit, a network that learned."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.api import Run
from peerdg.data.splits import Splits
from peerdg.errors import DataError, PeerdgWarning
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from peerdg.run.prepare import check_fit
from peerdg.run.run import MIN_STEPS_TO_LEARN, space_needed
from peerdg.stages import REST, write_profile
from peerdg.train import source
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits
from tests.reliability.photo_run import photo_run

EPOCHS = 3


def fit(out: Path, **options: Any) -> Run:
    return peerdg.fit(
        tiny_splits(),
        out=out,
        model=tiny_classifier(batch_norm=True),
        progress=False,
        crafted="off",
        evaluate_every=1,
        pretrain={"epochs": 0},
        **{"train": {"epochs": EPOCHS, "batch_size": 8}, **options},
    )


@pytest.mark.parametrize("method", ["erm", "peer"])
def test_the_disk_has_room_for_what_a_run_leaves(method: str, tmp_path: Path):
    """Three checkpoints and two models at a time, and the snapshots."""
    out = tmp_path / "run"
    own = {"peer": {"k": 1, "head_dim": 4}} if method == "peer" else {}
    run = fit(out, method=method, keep_snapshots=method == "erm", **own)
    tensors = load_checkpoint(checkpoints(out / "checkpoint")[-1]).tensors
    network = tuple(f"method.{name}" for name in ("model.", "proxy.", "task.", "average."))
    state = sum(t.nbytes for name, t in tensors.items() if name.startswith(network))
    model = sum(t.nbytes for t in load_file(out / "model/model.safetensors").values())
    snapshots = sum(t.nbytes for file in out.glob("snapshots/*") for t in load_file(file).values())
    assert (snapshots > 0) == (method == "erm")
    needed = space_needed(run.config, tiny_classifier(batch_norm=True))
    assert 3 * state + 2 * model + snapshots <= needed < 20 * model + snapshots


def test_a_network_that_cannot_take_the_images_is_left_in_the_mode_it_was_in():
    model = tiny_classifier().train()
    model.head = torch.nn.Linear(1, 3)  # takes no features
    with pytest.raises(DataError, match="fails on the 12 x 12 images"):
        check_fit(model, tiny_splits(), 12)
    assert all(part.training for part in model.modules())


def test_a_run_on_mapped_images_is_bitwise_the_same(tmp_path: Path, monkeypatch: Any):
    """Images that exceed the memory budget stay on disk and are read ahead."""
    normal = photo_run(tmp_path / "normal", "--transform.crop", "0.5", "1")
    read_ahead = Mock(wraps=source.in_parallel)
    monkeypatch.setattr(source, "in_parallel", read_ahead)
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", "1KB")
    mapped = photo_run(tmp_path / "mapped", "--transform.crop", "0.5", "1")
    assert read_ahead.called
    weights = [(run / "model/model.safetensors").read_bytes() for run in (normal, mapped)]
    assert weights[0] == weights[1]


def one_sided_splits() -> Splits:
    """Sixteen images, twelve of them of one class: the best constant answer has a loss of 0.735."""
    images = tiny_domain(n=16).images.clone()
    images[:12] //= 2  # dark: the class can be learnt
    labels = torch.tensor([0] * 12 + [1] * 2 + [2] * 2)
    return replace(tiny_splits(), train=replace(tiny_domain(n=16), images=images, labels=labels))


def learn(
    out: Path,
    phase: str,
    *,
    lr: float,
    steps: int = MIN_STEPS_TO_LEARN,
    epochs: int | None = None,
) -> None:
    """Train one phase, an epoch for each step by default, and hardly anything of the other."""
    model = tiny_classifier()
    with torch.no_grad():  # logits are the logarithms of the classes' shares, for every image
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([12 / 16, 2 / 16, 2 / 16]).log())
    count = {"pretrain": 0, "train": 1} | {phase: epochs or steps}
    schedules: dict[str, Any] = {n: {"epochs": e, "batch_size": 16} for n, e in count.items()}
    schedules[phase]["lr"] = lr
    if epochs is not None:
        schedules[phase]["steps_per_epoch"] = steps // epochs
    peerdg.fit(
        one_sided_splits(),
        out=out,
        model=model,
        method="erm",
        progress=False,
        crafted="off",
        evaluate_every=count["train"],
        **schedules,
    )


@pytest.mark.parametrize("phase", ["pretrain", "train"])
def test_a_phase_that_answers_every_image_alike_is_named_with_its_rate(phase, tmp_path: Path):
    entropy = -(12 / 16 * math.log(12 / 16) + 4 / 16 * math.log(2 / 16))
    with pytest.warns(PeerdgWarning, match="has learned nothing") as warned:
        learn(tmp_path / "run", phase, lr=1e-12)
    (message,) = [str(w.message) for w in warned]
    assert f"{entropy:.2f}, is the same as for a constant prediction ({entropy:.2f})" in message
    assert f"--{phase}.lr 1e-12" in message and "raise it" in message
    events = (tmp_path / "run/events.jsonl").read_text()
    assert "nothing_learnt" in events


def test_a_phase_that_learns_or_is_very_short_is_not_warned_of(tmp_path: Path):
    """Warnings are errors here."""
    learn(tmp_path / "learns", "pretrain", lr=0.01)
    learn(tmp_path / "short", "pretrain", lr=1e-12, steps=MIN_STEPS_TO_LEARN - 1)
    learn(tmp_path / "one epoch", "pretrain", lr=1e-12, steps=MIN_STEPS_TO_LEARN, epochs=1)


def test_the_stages_of_a_profile_add_up_to_its_time_and_change_nothing(tmp_path: Path):
    own = {"peer": {"k": 1, "head_dim": 4}}
    plain, timed = fit(tmp_path / "a", **own), fit(tmp_path / "b", profile=True, **own)
    assert plain.records == timed.records
    assert not (tmp_path / "a/profile.json").exists()
    record = json.loads((tmp_path / "b/profile.json").read_text())
    stages = record["stages"]
    assert sum(spent["seconds"] for spent in stages.values()) == pytest.approx(record["seconds"])
    assert stages["backward"]["calls"] == 3 * EPOCHS
    assert stages["evaluation"]["calls"] == 1 + EPOCHS
    assert {"batch", "forward", "regularizer", "optimizer", REST} <= {*stages}


def test_a_profile_is_written_when_the_work_fails(tmp_path: Path):
    with pytest.raises(KeyError), write_profile(tmp_path / "p.json", torch.device("cpu")):
        raise KeyError
    assert json.loads((tmp_path / "p.json").read_text())["stages"].keys() == {REST}


def test_a_script_gets_the_result_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = photo_run(tmp_path, "--json")
    shown = json.loads(capsys.readouterr().out)
    done = json.loads((out / "done.json").read_text())
    assert shown == {k: v for k, v in done.items() if k != "weights_sha256"} | {"run": str(out)}
