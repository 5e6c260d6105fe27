"""Where the time goes: named stages, measured only while a profile is taken.

    with stage("backward"):      # or @stage("augment") on a function
        loss.backward()

    with profile() as times:     # {"backward": Spent(seconds=12.3, calls=79), ...}
        train()

A stage inside another one is not counted twice: each second belongs to the innermost stage. Outside
of `profile` a stage costs a fraction of a microsecond.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peerdg.files import write_json

if TYPE_CHECKING:
    import torch

Wait = Callable[[], None]
REST = "everything else"  # what no stage has measured


@dataclass
class Spent:
    """Seconds spent in a stage itself, and how often it was entered."""

    seconds: float = 0.0
    calls: int = 0


class _Clock:
    """Attributes each moment to the innermost open stage."""

    def __init__(self, wait: Wait) -> None:
        self.times: dict[str, Spent] = {}
        self._open: list[str] = []
        self._wait = wait  # for the device: work that was only queued belongs to its stage
        self._since = time.perf_counter()

    def enter(self, name: str) -> None:
        self._book()
        self._open.append(name)
        self.times.setdefault(name, Spent()).calls += 1

    def leave(self) -> None:
        self._book()
        self._open.pop()

    def _book(self) -> None:
        self._wait()
        now = time.perf_counter()
        if self._open:
            self.times[self._open[-1]].seconds += now - self._since
        self._since = now


_clock: _Clock | None = None


class stage(contextlib.ContextDecorator):
    """A named part of the work, as a context or a decorator."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        if _clock is not None:
            _clock.enter(self.name)

    def __exit__(self, *_: object) -> None:
        if _clock is not None:
            _clock.leave()


@contextlib.contextmanager
def profile(wait: Wait = lambda: None) -> Iterator[dict[str, Spent]]:
    """Measure the stages entered in this context; the dictionary fills as they are left.

    Args:
        wait: Waits until the device has done its work, so that a stage is charged for what it
            queued; nothing to do on a CPU.
    """
    global _clock
    outer, _clock = _clock, _Clock(wait)
    try:
        yield _clock.times
    finally:
        _clock = outer


@contextlib.contextmanager
def write_profile(path: Path, device: "torch.device") -> Iterator[None]:
    """Measure the stages inside the block, and write their seconds to `path` at its end.

    An asynchronous device is waited for at the end of each stage, which costs some speed.
    """
    import torch  # here, so that reports read a profile without it

    wait = (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize
    began = time.perf_counter()
    with profile(wait) as times:
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            stages = {name: asdict(spent) for name, spent in times.items()}
            rest = seconds - sum(spent.seconds for spent in times.values())
            stages[REST] = {"seconds": rest, "calls": 1}
            write_json(path, {"seconds": seconds, "device": str(device), "stages": stages})
