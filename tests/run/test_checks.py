"""What a run needs is known before it begins."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.data.splits import Splits
from peerdg.errors import DataError, OutputError, PeerdgWarning
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from peerdg.run.checks import FAIR_STEPS, check_fit
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

EPOCHS = 3


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that runs ask for."""
    bytes_asked: list[int] = []
    monkeypatch.setattr(RunFolder, "check_space", lambda self, needed: bytes_asked.append(needed))
    return bytes_asked


def fit(out: Path, **options: Any) -> None:
    peerdg.fit(
        tiny_splits(),
        out=out,
        model=tiny_classifier(batch_norm=True),
        progress=False,
        crafted="off",
        evaluate_every=1,
        pretrain={"epochs": 0},
        **{"train": {"epochs": EPOCHS, "batch_size": 8}, **options},
    )


CASES: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "sgd": {"method": "erm", "train": {"epochs": 1, "batch_size": 8, "optimizer": "sgd"}},
    "peer": {"method": "peer", "peer": {"k": 1, "head_dim": 4}},
    "peer, trained statistics": {
        "method": "peer",
        "peer": {"k": 1, "head_dim": 4},
        "batch_statistics": "trained",
    },
    "peer, five snapshots": {"method": "peer", "peer": {"k": 1}, "average": {"last": 5}},
    "swad": {"method": "swad", "randaugment": {"k": 1}, "average": {"tolerance": 4}},
    "miro": {"method": "miro"},
    "snapshots kept": {"method": "erm", "keep_snapshots": True},
}


@pytest.mark.parametrize("case", CASES)
def test_the_disk_space_is_that_of_checkpoints_models_and_snapshots(
    case: str, tmp_path: Path, asked: list[int]
):
    """Read from the files that a whole run leaves: three checkpoints and two models at a time."""
    out = tmp_path / "run"
    fit(out, **CASES[case])
    tensors = load_checkpoint(checkpoints(out / "checkpoint")[-1]).tensors
    counters = ("sums.", "step", "_extra_state")  # a few numbers
    state = sum(t.nbytes for name, t in tensors.items() if not name.endswith(counters))
    model = sum(t.nbytes for t in load_file(out / "model/model.safetensors").values())
    kept = sum(t.nbytes for file in out.glob("snapshots/*") for t in load_file(file).values())
    assert (kept > 0) == ("kept" in case)
    (needed,) = asked
    assert 0 <= needed - (3 * state + 2 * model + kept) < 200


def test_space_is_asked_for_the_epochs_that_fit_into_the_minutes(
    tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
):
    def one_epoch(config: RunConfig, *_: Any) -> tuple[RunConfig, None]:
        return replace(config, train=replace(config.train, epochs=1)), None

    def refuse(self: RunFolder, needed: int) -> None:
        asked.append(needed)
        raise OutputError("full")

    monkeypatch.setattr("peerdg.run.runner.fit_run", one_epoch)
    monkeypatch.setattr(RunFolder, "check_space", refuse)
    given = {"method": "ada", "ada": {"k": 2, "steps": 1}}
    times: list[dict[str, Any]] = [
        {"train": {"epochs": EPOCHS, "batch_size": 8}},
        {"train": {"epochs": 1, "batch_size": 8}},
        {"train": {"batch_size": 8}, "minutes": 1},
    ]
    for number, time in enumerate(times):
        with pytest.raises(OutputError):
            fit(tmp_path / str(number), **given, **time)
    long, short, fitted = asked
    assert fitted == short < long


def test_a_network_that_cannot_take_the_images_is_left_in_the_mode_it_was_in():
    model = tiny_classifier().train()
    model.head = torch.nn.Linear(1, 3)  # takes no features
    with pytest.raises(DataError, match="cannot take the 12 x 12 images"):
        check_fit(model, tiny_splits(), 12)
    assert all(part.training for part in model.modules())


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
    steps: int = FAIR_STEPS,
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
    with pytest.warns(PeerdgWarning, match="has learnt nothing") as warned:
        learn(tmp_path / "run", phase, lr=1e-12)
    (message,) = [str(w.message) for w in warned]
    assert f"{entropy:.2f}, is that of the same answer for every image ({entropy:.2f})" in message
    assert f"--{phase}.lr 1e-12" in message and "raise it" in message
    events = (tmp_path / "run/events.jsonl").read_text()
    assert "nothing_learnt" in events


def test_a_phase_that_learns_or_is_very_short_is_not_warned_of(tmp_path: Path):
    """Warnings are errors here."""
    learn(tmp_path / "learns", "pretrain", lr=0.01)
    learn(tmp_path / "short", "pretrain", lr=1e-12, steps=FAIR_STEPS - 1)
    learn(tmp_path / "one epoch", "pretrain", lr=1e-12, steps=FAIR_STEPS, epochs=1)


def test_a_shared_pretraining_that_learnt_nothing_is_warned_of_in_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PEERDG_PRETRAINING_BUDGET")
    for run in ("first", "second"):
        with pytest.warns(PeerdgWarning, match="Pre-training has learnt nothing"):
            learn(tmp_path / run, "pretrain", lr=1e-12)
    assert "shared_pretraining" in (tmp_path / "second/events.jsonl").read_text()
