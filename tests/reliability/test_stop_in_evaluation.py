"""A signal inside an evaluation stops it between two chunks, and the run still ends equal."""

import json
import signal
from pathlib import Path

import pytest

from peerdg.errors import Stopped
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from tests.reliability.stop_in_evaluation import Signalling, train

EVALUATIONS = 5  # of the 8 epochs with k = 2: before the first, and after every second


def newest(out: Path) -> dict[str, object]:
    return load_checkpoint(checkpoints(out / "checkpoint")[-1]).state


def evaluated_epochs(out: Path) -> list[int]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return sorted({r["epoch"] for r in records if r["kind"] == "evaluation"})


def test_a_run_stopped_inside_evaluations_ends_equal(tmp_path: Path):
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    train(whole)
    chunks = Signalling.passes // EVALUATIONS  # of one evaluation
    assert chunks > 6
    # Each time the evaluation that was given up is done again, then some more, then the next stop.
    for epoch, at, number in (
        (0, 2, signal.SIGTERM),
        (2, chunks + 3, signal.SIGINT),
        (6, 2 * chunks + 5, signal.SIGTERM),
        (8, chunks + chunks // 2 + 2, signal.SIGINT),
    ):
        with pytest.raises(Stopped) as stopped:
            train(out, at=at, number=number)
        assert stopped.value.exit_code == 128 + number
        assert Signalling.passes == at  # no chunk after the signal
        state = newest(out)
        assert (state["phase"], state["epoch"], state["step"]) == ("train", epoch, 0)
        assert epoch not in evaluated_epochs(out)
    train(out)
    for name in ("metrics.jsonl", "model/model.safetensors", "model/model.json", "done.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
