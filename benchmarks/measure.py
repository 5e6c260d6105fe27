"""Interleaved, repeated timing: every contender sees the same moods of the machine."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median, and the fastest and slowest tenth."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_readable(self.median)} ({_readable(self.low)} to {_readable(self.high)})"

    def times(self, factor: float) -> "Timing":
        """The same for `factor` calls."""
        return Timing(self.median * factor, self.low * factor, self.high * factor)


class Rounds:
    """Seconds of each contender in each round, in the order they were measured."""

    def __init__(self, seconds: Mapping[str, list[float]]) -> None:
        self.seconds = seconds

    def __getitem__(self, name: str) -> Timing:
        return summary(self.seconds[name])

    def items(self) -> Iterator[tuple[str, Timing]]:
        """Each contender's summary."""
        return ((name, self[name]) for name in self.seconds)

    def plus(self, name: str, *, of: str, seconds: float) -> "Rounds":
        """With one more contender `name`: `of` and a constant."""
        return Rounds({**self.seconds, name: [value + seconds for value in self.seconds[of]]})

    def means(self, count: int) -> "Rounds":
        """Every `count` rounds taken as one, with their mean; what is left over is dropped."""
        starts = range(0, len(next(iter(self.seconds.values()))) - count + 1, count)
        return Rounds(
            {
                name: [statistics.fmean(s[i : i + count]) for i in starts]
                for name, s in self.seconds.items()
            }
        )

    def ratio(self, name: str, floor: str) -> Timing:
        """One contender over another: the ratios within each round, summarized."""
        pairs = zip(self.seconds[name], self.seconds[floor], strict=True)
        return summary([a / b for a, b in pairs])


def rounds(
    contenders: Mapping[str, Callable[[], object]], *, repeats: int, warm_up: int = 1
) -> Rounds:
    """Time each contender `repeats` times, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm_up + repeats):
        for name, call in contenders.items():
            began = time.perf_counter()
            call()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - began)
    return Rounds(seconds)


def interleave(
    contenders: Mapping[str, Callable[[], object]], *, repeats: int = 15, warm_up: int = 2
) -> dict[str, Timing]:
    """`rounds`, summarized."""
    return dict(rounds(contenders, repeats=repeats, warm_up=warm_up).items())


def summary(values: list[float]) -> Timing:
    """Median, and the fastest and slowest tenth."""
    values = sorted(values)
    tenth = len(values) // 10
    return Timing(statistics.median(values), values[tenth], values[-1 - tenth])


def _readable(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"
