"""A bar for reading files: how many of how many, rate, time left."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE = 0.7  # seconds; what is done sooner shows no bar


class ReadingBar:
    """Called with what is read, how much is done and how much there is.

    Args:
        console: Where to show it; where that is no terminal, a line at the end of long reading.
        label: Put in front.
    """

    def __init__(self, console: Console, label: str = "") -> None:
        self.console = console
        self.label = label
        self._what: str | None = None
        self._total = 0
        self._began = 0.0
        self._bar: Progress | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` are read."""
        if what != self._what or self._total != total:
            self.close()
            self._what, self._total, self._began = what, total, time.monotonic()
        elapsed = time.monotonic() - self._began
        if done >= total:
            self.close()
            if elapsed > PATIENCE:
                rate = total / elapsed
                self.console.print(
                    f"{self.label}{what}: {total:,} in {elapsed:.1f} s, {rate:,.0f}/s",
                    highlight=False, markup=False, soft_wrap=True,
                )  # fmt: skip
        elif self.console.is_terminal and elapsed > PATIENCE:
            self._show(what, done, total)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
        self._what, self._bar = None, None

    def _show(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
                console=self.console, transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(f"{self.label}{what}", total=total, rate="")
        rate = done / (time.monotonic() - self._began)
        self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}/s")
