"""A bar for reading files: how many of how many, files per second, time left."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from peerdg.terminal import visible

LONGEST = 20  # cells of what is read
WIDE = 80  # columns; below, the speed is not shown
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
                speed = total / elapsed
                self.console.print(
                    f"{self.label}{what}: {total:,} in {elapsed:.1f} s, {speed:,.0f}/s",
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
                TextColumn(
                    "{task.description}", markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis", max_width=LONGEST),
                ),
                BarColumn(bar_width=12), MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}"), TimeRemainingColumn(compact=True),
                console=self.console, transient=True,
            )  # fmt: skip
            self._bar.start()
            description = visible(f"{self.label}{what}")
            self._task = self._bar.add_task(description, total=total, speed="")
        speed = done / (time.monotonic() - self._began)
        shown = f"{speed:,.0f}/s" if self.console.width >= WIDE else ""
        self._bar.update(self._task, completed=done, speed=shown)
