"""The time of a run is that of its epochs, whatever interrupted them."""

from pathlib import Path
from typing import Any

import pytest

from peerdg.errors import Stopped
from peerdg.report.result import RunResult
from peerdg.report.runs import read_run
from tests.run.test_resume_all import STEPS, fit, stop_after

CONFIG: dict[str, Any] = {"method": "erm", "benchmark": "digits-mini", "seed": 0}


def epoch(number: int, seconds: float, *, phase: str = "train", **values: Any) -> dict[str, Any]:
    return {"event": "epoch", "phase": phase, "epoch": number, "steps": 10,
            "seconds": seconds, **values}  # fmt: skip


def timed(*events: dict[str, Any]) -> RunResult:
    return RunResult(Path("run"), CONFIG, "done", [], list(events))


WHOLE = timed(epoch(1, 7.0, phase="pretrain"), epoch(1, 2.0), epoch(2, 2.0), epoch(3, 2.0))


def test_an_epoch_that_was_done_again_counts_once():
    killed = timed(*WHOLE.events[:3], {"event": "resume"}, *WHOLE.events[1:])
    assert killed.seconds == WHOLE.seconds == 13.0
    assert killed.step_seconds == WHOLE.step_seconds == 0.2


@pytest.mark.parametrize("left", [9, 4, 1])
def test_steps_before_a_stop_count_as_the_others(left: int):
    stopped = timed(*WHOLE.events[:2], epoch(2, 0.2 * left, timed_steps=left), WHOLE.events[3])
    assert stopped.step_seconds == pytest.approx(0.2)
    assert stopped.seconds == pytest.approx(13.0)


def test_records_without_steps_or_epochs_are_added_up():
    old = timed({"event": "epoch", "seconds": 1.5}, {"event": "epoch", "seconds": 2.5})
    assert old.seconds == 4.0 and old.step_seconds is None


def test_a_resumed_epoch_says_how_many_steps_its_time_is_of(tmp_path: Path):
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, STEPS + 1)  # one step into the main phase
        with pytest.raises(Stopped):
            fit(tmp_path / "run", "erm", {})
    fit(tmp_path / "run", "erm", {}, existing="resume")
    events = [e for e in read_run(tmp_path / "run").events if e["event"] == "epoch"]
    assert [(e["phase"], e["steps"], e.get("timed_steps")) for e in events] == [
        ("pretrain", STEPS, None), ("train", STEPS, STEPS - 1),
        ("train", STEPS, None), ("train", STEPS, None),
    ]  # fmt: skip
