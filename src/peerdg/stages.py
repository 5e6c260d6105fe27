"""Time named stages of a run, but only while a profile is recorded.

    with stage("backward"):      # or @stage("augment") on a function
        loss.backward()

    with write_profile(path, device):  # {"stages": {"backward": {"seconds": 12.3, "calls": 79}, ...
        train()

Time in nested stages counts only for the innermost one. Outside of `write_profile`, a stage costs
about a microsecond.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from peerdg.files import write_json

if TYPE_CHECKING:
    import torch

REST = "everything else"  # time outside of all stages


class _Clock:
    def __init__(self, wait: Callable[[], None]) -> None:
        self.stages: dict[str, dict[str, float]] = {REST: {"seconds": 0.0, "calls": 1}}
        self._open = [REST]
        self._wait = wait  # synchronizes the device, so that queued work counts for the right stage
        self._since = time.perf_counter()

    def enter(self, name: str) -> None:
        self.read()
        self._open.append(name)
        self.stages.setdefault(name, {"seconds": 0.0, "calls": 0})["calls"] += 1

    def leave(self) -> None:
        self.read()
        self._open.pop()

    def read(self) -> None:
        self._wait()
        now = time.perf_counter()
        self.stages[self._open[-1]]["seconds"] += now - self._since
        self._since = now


_clock: _Clock | None = None


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Time a block or, as a decorator, a function."""
    if (clock := _clock) is None:
        yield
        return
    clock.enter(name)
    try:
        yield
    finally:
        clock.leave()


@contextlib.contextmanager
def write_profile(path: Path, device: "torch.device") -> Iterator[None]:
    """Time the stages inside the block, and write the times in seconds to `path` at its end.

    Asynchronous devices are synchronized between stages, which costs some speed.
    """
    import torch  # not at the top, so that reports can read a profile without torch

    global _clock
    wait = (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize
    outer, _clock = _clock, (clock := _Clock(wait))
    try:
        yield
    finally:
        _clock = outer
        clock.read()
        seconds = sum(stage["seconds"] for stage in clock.stages.values())
        write_json(path, {"seconds": seconds, "device": str(device), "stages": clock.stages})
