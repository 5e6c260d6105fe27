"""A stop interrupts passes over all clean images, and the resumed run ends equal."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import peerdg
from peerdg.averages.snapshots import Snapshots
from peerdg.errors import NumericalError, Stopped
from peerdg.long_work import interruptible
from peerdg.methods.clean import CleanImages
from peerdg.methods.peer import PEER
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from tests.conftest import tiny_classifier, tiny_splits

STEPS = 3  # of an epoch: 24 images in batches of 8


@pytest.fixture(autouse=True)
def chunks_of_six(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peerdg.methods.clean.images_per_pass", lambda side: 6)


def fit(out: Path, peer: dict[str, Any], rule: str, existing: Any = "refuse") -> None:
    peerdg.fit(
        tiny_splits(),
        out=out,
        model=tiny_classifier(batch_norm=True, dropout=0.3),
        existing=existing,
        method="peer",
        peer={"k": 2, "head_dim": 4, **peer},
        batch_statistics=rule,
        checkpoint_minutes=60,
        pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 4, "batch_size": 8, "lr": 0.02},
        progress=False,
    )


def fit_until(
    out: Path, peer: dict[str, Any], rule: str, where: str, epoch: int, chunk: int
) -> int:
    """Stop before a chunk inside `where` and return the number of later chunks."""
    inside: list[int] = []  # the chunks of the wanted call
    after = 0
    method, chunks = getattr(PEER, where), CleanImages.chunks

    def watched(self: PEER, number: int) -> Any:
        if number == epoch:
            inside.append(0)
        try:
            return method(self, number)
        finally:
            inside.clear()

    def counted(self: CleanImages) -> Iterator[Any]:
        nonlocal after
        for part in chunks(self):
            if inside:
                inside[0] += 1
                after += inside[0] > chunk
                if inside[0] == chunk:
                    signal.raise_signal(signal.SIGTERM)
            yield part

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PEER, where, watched)
        patch.setattr(CleanImages, "chunks", counted)
        with pytest.raises(Stopped):
            fit(out, peer, rule)
    return after


CASES: list[tuple[dict[str, Any], str, int, int, tuple[int, int]]] = [
    ({}, "start_epoch", 0, 2, (0, 0)),
    ({}, "end_epoch", 1, 1, (1, STEPS)),
    ({}, "end_epoch", 3, 3, (3, STEPS)),
    ({}, "start_epoch", 2, 3, (2, 0)),
    ({"include_init": True}, "start_epoch", 2, 2, (2, 0)),  # in the snapshot's statistics
    ({"include_init": True}, "start_epoch", 2, 6, (2, 0)),  # in the features after it
    ({"average": False}, "end_epoch", 3, 2, (3, STEPS)),
    ({"reset_proxy": True}, "end_epoch", 1, 2, (1, STEPS)),
]


@pytest.mark.parametrize(
    ("peer", "where", "epoch", "chunk", "position", "rule"),
    [(*case, ("clean", "trained")[number % 2]) for number, case in enumerate(CASES)],
)
def test_a_stop_interrupts_the_pass_and_the_resumed_run_is_equal(
    tmp_path: Path,
    peer: dict[str, Any],
    where: str,
    epoch: int,
    chunk: int,
    position: tuple[int, int],
    rule: str,
):
    out, whole = tmp_path / "stopped", tmp_path / "whole"
    assert fit_until(out, peer, rule, where, epoch, chunk) == 0
    state = load_checkpoint(checkpoints(out / "checkpoint")[-1]).state
    assert (state["phase"], state["epoch"], state["step"]) == ("train", *position)
    fit(out, peer, rule, existing="resume")
    fit(whole, peer, rule)
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_an_interrupted_snapshot_leaves_the_average_as_it_was():
    clean = CleanImages(tiny_splits().train.images)
    average = Snapshots(tiny_classifier(batch_norm=True), bn="recalibrate", clean=clean)
    average.add(tiny_classifier(batch_norm=True, seed=1))
    before = {name: value.clone() for name, value in average.state_dict().items()}
    calls = iter(range(10))

    def interrupt(label: str, share: float) -> None:
        if next(calls) == 2:
            raise NumericalError("interrupted")

    with interruptible(interrupt), pytest.raises(NumericalError):
        average.add(tiny_classifier(batch_norm=True, seed=2))
    after = average.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    average.add(tiny_classifier(batch_norm=True, seed=2))  # the interruption is over
    assert average.count == 2
