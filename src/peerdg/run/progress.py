"""Show the progress of a run as a bar or as lines in a log, without importing torch."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text
from typing_extensions import override

from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED, is_target
from peerdg.terminal import Terminal, is_live, visible
from peerdg.train.settings import Phase

if TYPE_CHECKING:
    from torch import Tensor

REFRESH_SECONDS = 0.5  # between updates of the bar
LINE_SECONDS = 30.0  # between lines of a log
RATE_SECONDS = 600.0  # time window for estimating the speed
MIN_READING_SECONDS = 0.7  # faster reads show no bar
MAX_LABEL = 20  # cells
EVALUATING = "evaluating"  # label during evaluations


class ProgressDisplay:
    """Base class for progress displays, which shows nothing."""

    def note(self, text: str) -> None:
        """Called with a message for the user."""

    def reading(self, done: int, total: int, label: str) -> None:
        """Called while reading files, with the number read so far."""

    def start_run(self, phases: Sequence[tuple[Phase, int]], *, evaluation_steps: float) -> None:
        """Called before training with all phases and their steps per epoch.

        `evaluation_steps` is the duration of one evaluation, in training steps.
        """

    def start_phase(self, name: str, *, epoch: int, step: int) -> None:
        """Called when a phase starts, or resumes after `epoch` epochs and `step` steps."""

    def step(self, epoch: int, step: int, *, images: int, terms: "Mapping[str, Tensor]") -> None:
        """Called after each step. Reading `terms` synchronizes the device, so do it rarely."""

    def work(self, label: str, share: float) -> None:
        """Called during evaluations and work between epochs, with the completed fraction."""

    def evaluated(self, epoch: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Called after an evaluation with its records."""

    def close(self) -> None:
        """Called at the end of the run to remove the display."""


class Block(Progress):
    """A progress bar with the last accuracies below it."""

    accuracies = ""

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.accuracies:
            yield Text(self.accuracies, no_wrap=True, overflow="ellipsis")


class ConsoleProgress(ProgressDisplay):
    """Show a steady block on a terminal: a bar and the last accuracies. Print lines in a log.

    Args:
        console: Console to write to. Usually standard error, so that results can be piped.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.clock = clock
        self._is_live = is_live(console)
        self._reading = ReadingBar(console)
        self._bar = Block(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[detail]}", markup=False, style="dim"),
            console=console,
            get_time=clock,
            speed_estimate_period=RATE_SECONDS,
            refresh_per_second=1 / REFRESH_SECONDS,
            transient=True,
            disable=not self._is_live,
        )
        self._task = self._bar.add_task("", total=None, detail="")
        # Work is counted in training steps.
        self._phases: dict[str, tuple[Phase, int]] = {}  # phase and steps per epoch, by name
        self._evaluation_steps = 0.0
        self._images = self._epoch = self._step = 0
        self._shown_at = clock()

    @override
    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    @override
    def reading(self, done: int, total: int, label: str) -> None:
        self._reading(done, total, label)

    @override
    def start_run(self, phases: Sequence[tuple[Phase, int]], *, evaluation_steps: float) -> None:
        self._reading.close()
        self._evaluation_steps = evaluation_steps
        self._phases = {phase.name: (phase, steps) for phase, steps in phases}

    @override
    def start_phase(self, name: str, *, epoch: int, step: int) -> None:
        work = {
            phase.name: phase.settings.epochs * steps + phase.evaluations * self._evaluation_steps
            for phase, steps in self._phases.values()
        }
        names = list(work)
        self._before = sum(work[earlier] for earlier in names[: names.index(name)])
        self._phase, self._steps = self._phases[name]
        self._epoch, self._step = epoch, step
        total, done = sum(work.values()), round(self._done())
        self._bar.reset(self._task, total=total, completed=done, detail="")
        if self._is_live:
            self._bar.start()
        else:
            resumed = f", continued after epoch {epoch}" if epoch else ""
            epochs = self._phase.settings.epochs
            self.note(f"{name}: {epochs} epochs of {self._steps} steps{resumed}")

    @override
    def step(self, epoch: int, step: int, *, images: int, terms: "Mapping[str, Tensor]") -> None:
        self._epoch, self._step, self._images = epoch, step, images
        seconds = self.clock() - self._shown_at
        if seconds < REFRESH_SECONDS:
            return
        self._bar.update(self._task, completed=self._done())
        if self._is_live or seconds >= LINE_SECONDS:
            self._show(f"loss {float(terms['loss']):.3f}")  # The other terms are unweighted.

    @override
    def work(self, label: str, share: float) -> None:
        interval = REFRESH_SECONDS if self._is_live else LINE_SECONDS
        if label and self.clock() - self._shown_at >= interval:
            done = share * self._evaluation_steps if label == EVALUATING else 0.0
            self._bar.update(self._task, completed=self._done() + done)
            self._show(f"{label} {int(100 * share)} %")

    @override
    def evaluated(self, epoch: int, records: Sequence[Mapping[str, Any]]) -> None:
        accuracy: dict[str, dict[str, float]] = {}
        for record in records:
            accuracy.setdefault(record["model"], {})[record["domain"]] = record["accuracy"]
        width = max([5, *map(len, accuracy)])
        lines = []
        for model, by_domain in accuracy.items():
            values = "  ".join(f"{name} {value:.1f}" for name, value in summarize(by_domain))
            lines.append(
                f"epoch {epoch:>4}/{self._phase.settings.epochs}  {model:<{width}} {values}"
            )
        if self._is_live:
            self._bar.accuracies = "\n".join(map(visible, lines))
        else:
            for line in lines:
                self.note(line)

    @override
    def close(self) -> None:
        self._reading.close()
        self._bar.stop()

    def _done(self) -> float:
        """Return the completed work. An epoch has more steps than planned if the pool grows."""
        started = range(self._epoch + 1 if self._epoch or self._step else 0)
        evaluations = sum(map(self._phase.is_evaluated_after, started))
        steps = self._epoch * self._steps + min(self._step, self._steps)
        return self._before + steps + evaluations * self._evaluation_steps

    def _show(self, detail: str) -> None:
        self._shown_at = self.clock()
        epochs, task = self._phase.settings.epochs, self._bar.tasks[0]
        position = f"{self._phase.name} {min(self._epoch + 1, epochs)}/{epochs}"
        if task.speed:
            detail = f"{self._images * task.speed:,.0f} images/s  {detail}"
        self._bar.update(self._task, description=position, detail=detail)
        if not self._is_live:
            seconds = task.time_remaining
            left = "" if seconds is None else f"  {duration(seconds)} left"
            self.note(f"{position}  {detail}{left}")


class ReadingBar:
    """Show a bar on a terminal while reading files, and one line after a long read."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._label: str | None = None
        self._total = 0
        self._began = 0.0
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int, label: str) -> None:
        """Show that `done` of `total` files are read."""
        if (label, total) != (self._label, self._total):
            self.close()
            self._label, self._total, self._began = label, total, time.monotonic()
        seconds = time.monotonic() - self._began
        if done >= total:
            self.close()
            if seconds > MIN_READING_SECONDS:
                text = f"{label}: {total:,} in {seconds:.1f} s, {total / seconds:,.0f}/s"
                self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self.console.is_terminal and seconds > MIN_READING_SECONDS:
            if self._bar is None:
                short = Column(no_wrap=True, overflow="ellipsis", max_width=MAX_LABEL)
                self._bar = Progress(
                    TextColumn("{task.description}", markup=False, table_column=short),
                    BarColumn(bar_width=12),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(compact=True),
                    console=self.console,
                    transient=True,
                )
                self._bar.start()
                self._task = self._bar.add_task(visible(label), total=total)
            self._bar.update(self._task, completed=done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._label, self._bar = None, None


def summarize(accuracy: Mapping[str, float]) -> list[tuple[str, float]]:
    """List accuracies: validation, targets, mean of disjoint crafted sets, mean of targets."""
    natural = {name: value for name, value in accuracy.items() if not name.startswith(CRAFTED)}
    crafted = [accuracy[CRAFTED + name] for name in DISJOINT if CRAFTED + name in accuracy]
    targets = [value for name, value in natural.items() if is_target(name)]
    summary = list(natural.items())
    if crafted:
        summary.append((CRAFTED.rstrip(":"), sum(crafted) / len(crafted)))
    if len(targets) > 1:
        summary.append(("mean", sum(targets) / len(targets)))
    return summary


def duration(seconds: float) -> str:
    """Format a duration: `45 s`, `4 min 10 s`, `42 min`, `2 h 05 min`, `76 h 00 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def choose_progress(progress: ProgressDisplay | bool | None = None) -> ProgressDisplay:
    """Return the requested display. None shows progress only on a terminal or in a notebook."""
    if isinstance(progress, ProgressDisplay):
        return progress
    console = Terminal(stderr=True, highlight=False)
    if progress is None:
        progress = console.is_terminal or console.is_jupyter
    return ConsoleProgress(console) if progress else ProgressDisplay()
