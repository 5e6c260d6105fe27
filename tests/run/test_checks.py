"""What a run needs is known before it begins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.errors import DataError, OutputError
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from peerdg.run.checks import check_fit
from peerdg.run.folder import RunFolder
from peerdg.run.settings import RunConfig
from tests.conftest import tiny_classifier, tiny_splits

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
