import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from peerdg.stages import REST, stage, write_profile


class Clock:
    """Clock that advances only when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("peerdg.stages.time.perf_counter", clock)
    return clock


@pytest.fixture
def profile(tmp_path):
    @contextmanager
    def measure(device: str = "cpu") -> Iterator[dict[str, dict[str, float]]]:
        stages: dict[str, dict[str, float]] = {}
        with write_profile(tmp_path / "profile.json", torch.device(device)):
            yield stages
        stages |= json.loads((tmp_path / "profile.json").read_text())["stages"]

    return measure


def test_time_counts_for_the_innermost_stage(clock: Clock, profile):
    with profile() as stages:
        clock.now += 1
        with stage("outer"):
            clock.now += 2
            with stage("inner"):
                clock.now += 6
            clock.now += 2
        with pytest.raises(ValueError), stage("failing"):
            clock.now += 5
            raise ValueError
        clock.now += 3
    with stage("later"):
        clock.now += 9
    seconds = {name: spent["seconds"] for name, spent in stages.items()}
    assert seconds == {REST: 4, "outer": 4, "inner": 6, "failing": 5}


def test_a_decorated_function_is_counted_at_each_call(profile):
    @stage("work")
    def work(x: int) -> int:
        return x + 1

    with profile() as stages:
        assert [work(1), work(2)] == [2, 3]
    assert stages["work"]["calls"] == 2


def test_the_device_is_synchronized_before_reading_the_clock(profile, monkeypatch):
    waits = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waits.append(1))
    with profile("meta"), stage("queued"):
        pass
    assert len(waits) == 3
