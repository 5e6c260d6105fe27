"""Interleaved, repeated timing: every contender sees the same moods of the machine."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median, and the fastest and slowest tenth."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{1e3 * self.median:9.2f} ms  ({1e3 * self.low:.2f} to {1e3 * self.high:.2f})"


def interleave(
    contenders: Mapping[str, Callable[[], object]], *, repeats: int = 15, warm_up: int = 2
) -> dict[str, Timing]:
    """Time each contender `repeats` times, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(warm_up + repeats):
        for name, call in contenders.items():
            began = time.perf_counter()
            call()
            if round_number >= warm_up:
                times[name].append(time.perf_counter() - began)
    return {name: _summarise(values) for name, values in times.items()}


def _summarise(values: list[float]) -> Timing:
    values = sorted(values)
    tenth = len(values) // 10
    return Timing(statistics.median(values), values[tenth], values[-1 - tenth])
