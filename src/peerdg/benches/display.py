"""The display of a bench: a line for each run that is under way, and one for all of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from peerdg.run.display import shorten
from peerdg.run.forecast import duration
from peerdg.terminal import abridge, is_live, visible

REFRESH_SECONDS = 0.5  # of the lines
LINE_SECONDS = 30.0  # between lines about one run where there is no terminal
LEAST_BAR, LONGEST_BAR = 6, 30
LEAST_LABEL, LONGEST_LABEL = 8, 36
TIME = 16  # cells of the time left, so that bars keep their length
SPEEDS = {96: (14, " images/s"), 76: (8, "/s")}  # columns needed: cells of the speed, its unit


class Shown(Protocol):
    """Receives what happens in a bench."""

    def started(self, name: str) -> None:
        """Show that a run begins, or goes on."""
        ...

    def progressed(self, name: str, message: Mapping[str, Any]) -> None:
        """Show how far a run is, see `peerdg.benches.worker.PipeProgress`."""
        ...

    def ended(self, name: str, text: str, *, left: float | None) -> None:
        """Show that a run is done or has failed; all others take `left` seconds more."""
        ...

    def note(self, text: str) -> None:
        """Show a message."""
        ...

    def close(self) -> None:
        """Remove what is shown: the bench is over."""
        ...


class Silence:
    """Shows nothing."""

    def started(self, name: str) -> None:
        """Show nothing."""

    def progressed(self, name: str, message: Mapping[str, Any]) -> None:
        """Show nothing."""

    def ended(self, name: str, text: str, *, left: float | None) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


@dataclass
class RunLine:
    """One line of a run, at any width: name, phase, bar, share, images per second, time left."""

    name: str
    phase: str = ""
    epoch: int = 0
    epochs: int = 0
    activity: str = ""
    share: float = 0.0
    left: float | None = None
    images_per_second: float | None = None

    def update(self, message: Mapping[str, Any]) -> None:
        """Update the fields from a message."""
        for key in ("phase", "epoch", "epochs", "activity", "share", "left", "images_per_second"):
            if key in message:
                setattr(self, key, message[key])

    @property
    def where(self) -> str:
        """Phase and epoch, and what is done if that is not training."""
        place = f"{self.phase} {self.epoch}/{self.epochs}" if self.phase else "starting"
        return f"{place}, {self.activity}" if self.activity else place

    def text(self) -> str:
        """Format the line for a log."""
        speed = self.images_per_second
        images = "" if speed is None else f", {speed:,.0f} images/s"
        left = "" if self.left is None else f", {duration(self.left)} left"
        return f"{_short(self.name)}: {self.where}, {int(100 * self.share)} %{images}{left}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render in one line of the console's width."""
        width = max(1, options.max_width)
        left = "" if self.left is None else f"{duration(self.left)} left"
        right = f"{int(100 * self.share):3d} %"
        for needed, (room, unit) in SPEEDS.items():
            if width >= needed:
                speed = self.images_per_second
                text = "" if speed is None else f"{speed:,.0f}{unit}"
                right += f"  {text:>{room}}"
                break
        right += f"  {left:<{TIME}}"
        place = f"{self.phase} {self.epoch}/{self.epochs}" if self.phase else "starting"
        room = width - cell_len(place) - cell_len(right) - LEAST_BAR - 6
        if room < LEAST_LABEL:
            yield Text(shorten(f"{visible(self.name)}  {right.strip()}", width))
            return
        name = _short(self.name, min(room, LONGEST_LABEL))
        cells = min(LONGEST_BAR, width - cell_len(name) - cell_len(place) - cell_len(right) - 6)
        done = round(cells * self.share)
        full, rest = ("#", "-") if options.ascii_only else ("━", "─")
        bar = (full * done, "bar.complete"), (rest * (cells - done), "bar.back")
        yield Text.assemble(f"{name}  {place}  ", *bar, f"  {right.rstrip()}")


def _short(name: str, length: int = LONGEST_LABEL) -> str:
    """Shorten the name of a run that many methods share."""
    return abridge(visible(name), length)


class BenchDisplay:
    """Lines that are updated in place on a terminal; in a log, a line now and then.

    Args:
        console: Where to write; standard error by convention.
        total: Runs and combinations of the bench.
        done: Those that are complete already.
        left: Seconds that the others take; None if not known.
        clock: Seconds; only differences count.
    """

    def __init__(
        self,
        console: Console,
        *,
        total: int,
        done: int,
        left: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self.total, self.ended_runs = total, done
        self.clock = clock
        self.lines: dict[str, RunLine] = {}
        self._left, self._left_at = left, clock()
        self._shown_at: dict[str, float] = {}
        self._notes: set[str] = set()
        self._live: Live | None = None
        if is_live(console):
            self._live = Live(
                console=console, get_renderable=lambda: self, transient=True,
                refresh_per_second=1 / REFRESH_SECONDS, vertical_overflow="crop",
            )  # fmt: skip
            self._live.start(refresh=True)

    def started(self, name: str) -> None:
        """Show a line for it."""
        self.lines[name] = RunLine(name)
        self._shown_at[name] = self.clock()
        if self._live is None:
            self._say(f"{_short(name)}: started")

    def progressed(self, name: str, message: Mapping[str, Any]) -> None:
        """Update its line; in a log, one now and then."""
        line = self.lines[name]
        line.update(message)
        now = self.clock()
        if self._live is None and now - self._shown_at[name] >= LINE_SECONDS:
            self._shown_at[name] = now
            self._say(line.text())

    def ended(self, name: str, text: str, *, left: float | None) -> None:
        """Leave a line about it, and forget it."""
        self.lines.pop(name, None)
        self.ended_runs += 1
        self._left, self._left_at = left, self.clock()
        self._say(f"[{self.ended_runs}/{self.total}] {_short(name)}: {text}")

    def note(self, text: str) -> None:
        """Print one line, unless it was printed before."""
        if text not in self._notes:
            self._notes.add(text)
            self._say(text)

    def close(self) -> None:
        """Take the lines away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the line for all runs, and one for each that is under way."""
        yield Text(shorten(self.summary(), options.max_width), "dim")
        yield from list(self.lines.values())

    def summary(self) -> str:
        """Say how far the bench is."""
        left = ""
        if self._left is not None:
            seconds = max(0.0, self._left - (self.clock() - self._left_at))
            left = f", about {duration(seconds)} left"
        return f"{self.ended_runs} of {self.total} runs{left}"

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)
