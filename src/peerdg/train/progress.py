"""What a person sees while a run trains: bar, loss terms, rate, time left, last accuracies."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor

REFRESH_SECONDS = 0.5


class Progress(Protocol):
    """Is told what happens in a run."""

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
        self._shown_at = 0.0

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int) -> None:
        """Show a bar over all steps of the phase."""
        self._name, self._epochs, self._steps = name, epochs, steps
        self._started_at, self._images = time.monotonic(), 0
        if not self.console.is_terminal:
            again = f", going on after epoch {done}" if done else ""
            self._say(f"{name}: {epochs} epochs of {steps} steps{again}")
            return
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(
            name, total=epochs * steps, completed=done * steps, status=""
        )

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """Move the bar; read the loss terms only when it is drawn."""
        self._images += images
        now = time.monotonic()
        finished = (epoch + 1, step) == (self._epochs, self._steps)
        if self._bar is None or (now - self._shown_at < REFRESH_SECONDS and not finished):
            return
        self._shown_at = now
        losses = " ".join(f"{name} {float(value):.3f}" for name, value in terms.items())
        rate = self._images / max(now - self._started_at, 1e-9)
        self._bar.update(
            self._task,
            completed=epoch * self._steps + step,
            description=f"{self.label}{self._name} {epoch + 1}/{self._epochs}",
            status=f"{losses}  {rate:.0f} images/s",
        )

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """One line per observed model with its accuracy on each domain."""
        models = dict.fromkeys(record["model"] for record in records)
        for model in models:
            domains = [r for r in records if r["model"] == model]
            shown = "  ".join(f"{r['domain']} {r['accuracy']:.1f}" for r in domains)
            self._say(f"epoch {epoch:>4}/{self._epochs}  {model:<6}{shown}{self._time_left(epoch)}")

    def end_phase(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _time_left(self, epoch: int) -> str:
        images = self._epochs * self._steps
        done = epoch * self._steps
        elapsed = time.monotonic() - self._started_at
        if self._bar is not None or not 0 < done < images or self._images == 0:
            return ""
        return f"  {self._images / elapsed:.0f} images/s"

    def _say(self, text: str) -> None:
        self.console.print(f"{self.label}{text}", highlight=False, soft_wrap=True, markup=False)
