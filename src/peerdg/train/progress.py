"""What a person sees while a run trains: bar, loss terms, rate, time left, last accuracies."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

from peerdg.data import CRAFTED
from peerdg.train.reading import ReadingBar

REFRESH_SECONDS = 0.5  # of the bar
LINE_SECONDS = 30.0  # between lines where there is no terminal


class Progress(Protocol):
    """Is told what happens in a run."""

    def note(self, text: str) -> None:
        """Something was found or decided that a person may want to know."""
        ...

    def reading(self, what: str, done: int, total: int) -> None:
        """So many of the files are read."""
        ...

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int) -> None:
        """A phase begins, or goes on after `done` epochs."""
        ...

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """A step is done; reading `terms` waits for the device, so do it rarely."""
        ...

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """The observed models were evaluated."""
        ...

    def end_phase(self) -> None:
        """The phase is over, or was given up."""
        ...


class Silent:
    """Says nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def reading(self, what: str, done: int, total: int) -> None:
        """Say nothing."""

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int) -> None:
        """Say nothing."""

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """Say nothing."""

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """Say nothing."""

    def end_phase(self) -> None:
        """Say nothing."""


class ConsoleProgress:
    """A bar on a terminal; a line per evaluation anywhere.

    Args:
        console: Where to write; standard error by convention, so that results can be piped.
        label: Put in front of every line, e.g. the method and seed.
    """

    def __init__(self, console: Console, label: str = "") -> None:
        self.console = console
        self.label = label
        self._bar: Bar | None = None
        self._reading = ReadingBar(console, label)

    def note(self, text: str) -> None:
        """One line."""
        self._say(text)

    def reading(self, what: str, done: int, total: int) -> None:
        """A bar while files are read."""
        self._reading(what, done, total)

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int) -> None:
        """Show a bar over all steps of the phase."""
        self._name, self._epochs, self._steps = name, epochs, steps
        self._started_at = self._shown_at = time.monotonic()
        self._images, self._done, self._done_before = 0, done * steps, done * steps
        if not self.console.is_terminal:
            again = f", going on after epoch {done}" if done else ""
            self._say(f"{name}: {epochs} epochs of {steps} steps{again}")
            return
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(
            name, total=epochs * steps, completed=done * steps, status=""
        )

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """Move the bar; read the loss terms only when it is drawn."""
        self._done, self._images = epoch * self._steps + step, self._images + images
        now = time.monotonic()
        pause = LINE_SECONDS if self._bar is None else REFRESH_SECONDS
        if now - self._shown_at < pause:
            return
        self._shown_at = now
        losses = " ".join(f"{name} {float(value):.3f}" for name, value in terms.items())
        where = f"{self._name} {epoch + 1}/{self._epochs}"
        if self._bar is None:
            self._say(f"{where}  {losses}  {self._pace()}")
        else:
            status = f"{self._rate():.0f} images/s  {losses}"
            description = f"{self.label}{where}"
            self._bar.update(
                self._task, completed=self._done, description=description, status=status
            )

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """One line per observed model with its accuracy on each domain."""
        models = dict.fromkeys(record["model"] for record in records)
        for model in models:
            accuracy = {r["domain"]: r["accuracy"] for r in records if r["model"] == model}
            shown = "  ".join(f"{name} {value:.1f}" for name, value in _in_short(accuracy).items())
            self._say(f"epoch {epoch:>4}/{self._epochs}  {model:<6}{shown}")

    def end_phase(self) -> None:
        """Take the bar away."""
        self._reading.close()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _rate(self) -> float:
        """Images per second since the phase began in this process."""
        return self._images / max(time.monotonic() - self._started_at, 1e-9)

    def _pace(self) -> str:
        """Rate and time left, for a log file; a terminal's bar has them anyway."""
        elapsed = time.monotonic() - self._started_at
        done_here = self._done - self._done_before
        left = elapsed / done_here * (self._epochs * self._steps - self._done)
        return f"{self._rate():.0f} images/s  {left / 60:.1f} min left"

    def _say(self, text: str) -> None:
        self.console.print(f"{self.label}{text}", highlight=False, soft_wrap=True, markup=False)


def _in_short(accuracy: Mapping[str, float]) -> dict[str, float]:
    """The domains, with one mean in place of the many families of crafted validation."""
    crafted = [value for name, value in accuracy.items() if name.startswith(CRAFTED)]
    mean = {CRAFTED.rstrip(":"): sum(crafted) / len(crafted)} if crafted else {}
    return {k: v for k, v in accuracy.items() if not k.startswith(CRAFTED)} | mean
