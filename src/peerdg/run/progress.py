"""Progress of a run: one steady block on a terminal, a line now and then in a log."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from torch import Tensor

from peerdg.run.display import Block, in_short
from peerdg.run.forecast import Costs, Forecast, RunPlan, duration
from peerdg.run.reading import ReadingBar
from peerdg.stages import Activity
from peerdg.terminal import Terminal, is_live

REFRESH_SECONDS = 0.5  # of the block
LINE_SECONDS = 30.0  # between lines where there is no terminal
ACTIVITIES = {"evaluation": "evaluating", "finish": "storing the model"}


class Progress(Protocol):
    """Receives the events of a run."""

    shows_time: bool
    """Whether the time left is wanted; if so, `start_run` gets costs measured in advance."""

    def note(self, text: str) -> None:
        """A message for the user."""
        ...

    def reading(self, what: str, done: int, total: int) -> None:
        """So many of the files are read."""
        ...

    def start_run(self, plan: RunPlan, costs: Costs | None, *, spent: float) -> None:
        """Training begins, `spent` seconds after the start."""
        ...

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int, step: int = 0) -> None:
        """A phase begins, or goes on after `done` epochs and `step` steps."""
        ...

    def enter(self, activity: Activity) -> None:
        """The run turns to another activity."""
        ...

    def working(self, what: str, share: float) -> None:
        """This share of long work at the start or end of an epoch is done."""
        ...

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """A step is done; reading `terms` waits for the device, so do it rarely."""
        ...

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """The observed models were evaluated."""
        ...

    def close(self) -> None:
        """The run is over, or was given up."""
        ...


class Silent:
    """Shows nothing."""

    shows_time = False

    def note(self, text: str) -> None:
        """Show nothing."""

    def reading(self, what: str, done: int, total: int) -> None:
        """Show nothing."""

    def start_run(self, plan: RunPlan, costs: Costs | None, *, spent: float) -> None:
        """Show nothing."""

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int, step: int = 0) -> None:
        """Show nothing."""

    def enter(self, activity: Activity) -> None:
        """Show nothing."""

    def working(self, what: str, share: float) -> None:
        """Show nothing."""

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """Show nothing."""

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class ConsoleProgress:
    """A block that is updated in place on a terminal; lines, one per evaluation, in a log.

    Args:
        console: Where to write; standard error by convention, so that results can be piped.
        label: Put in front of every line, e.g. the method and seed.
        clock: Seconds; only differences count.
    """

    shows_time = True

    def __init__(
        self, console: Console, label: str = "", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console = console
        self.label = label
        self.clock = clock
        self.block = Block(label=label.strip())
        self._is_live = is_live(console)
        self._live: Live | None = None
        self._reading = ReadingBar(console, label)
        self._forecast: Forecast | None = None
        self._announce: Callable[[Forecast], str] | None = None
        self._images = 0

    def note(self, text: str) -> None:
        """One line."""
        self._say(text)

    def reading(self, what: str, done: int, total: int) -> None:
        """A bar while files are read."""
        self._reading(what, done, total)

    def start_run(self, plan: RunPlan, costs: Costs | None, *, spent: float) -> None:
        """Remember the plan; the time is announced when it is known where the run goes on."""
        self._reading.close()
        self._forecast = Forecast(plan, costs, self.clock)
        if costs is not None:
            self._announce = lambda forecast: announcement(forecast, spent=spent)

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int, step: int = 0) -> None:
        """Show the block."""
        block = self.block
        block.phase, block.epochs, block.epoch = name, epochs, min(done + 1, epochs)
        block.images_per_second, block.terms, block.activity = None, {}, ""
        self._shown_at = self.clock()
        if self._forecast is not None:
            self._forecast.start_phase(name, epochs=done, steps=step)
            if self._announce is not None:
                self._say(self._announce(self._forecast))
                self._announce = None
        if not self._is_live:
            again = f", going on after epoch {done}" if done else ""
            self._say(f"{name}: {epochs} epochs of {steps} steps{again}")
            return
        if self._live is not None:  # of the phase before
            return
        self._live = Live(
            console=self.console,
            get_renderable=self._updated_block,
            refresh_per_second=1 / REFRESH_SECONDS,
            transient=True,
            vertical_overflow="crop",
        )
        self._live.start(refresh=True)

    def enter(self, activity: Activity) -> None:
        """Show what is done, if it is not training."""
        self.block.activity = ACTIVITIES.get(activity, "")
        if self._forecast is not None:
            self._forecast.enter(activity)

    def working(self, what: str, share: float) -> None:
        """Show what is done and how far it is; in a log, a line now and then."""
        if not what:
            return
        self.block.activity = f"{what} {int(100 * share)} %"
        now = self.clock()
        if not self._is_live and now - self._shown_at >= LINE_SECONDS:
            self._shown_at = now
            self._say(
                f"{self.block.phase} {self.block.epoch}/{self.block.epochs}  {self.block.activity}"
            )

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """Count the step; read the loss terms only now and then."""
        if self._forecast is not None:
            self._forecast.step(epoch, step)
        self.block.epoch, self._images = epoch + 1, images
        now = self.clock()
        if now - self._shown_at < (REFRESH_SECONDS if self._is_live else LINE_SECONDS):
            return
        self._shown_at = now
        block = self._updated_block()
        block.terms = {name: float(value) for name, value in terms.items()}
        if not self._is_live:
            losses = " ".join(f"{name} {value:.3f}" for name, value in block.terms.items())
            speed = block.images_per_second
            per_second = "" if speed is None else f"  {speed:.0f} images/s"
            left = "" if block.left is None else f"  {duration(block.left)} left"
            self._say(f"{block.phase} {epoch + 1}/{block.epochs}  {losses}{per_second}{left}")

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """Show the accuracy of each observed model on each domain."""
        accuracy: dict[str, dict[str, float]] = {}
        for record in records:
            accuracy.setdefault(record["model"], {})[record["domain"]] = record["accuracy"]
        self.block.accuracy, self.block.evaluated = accuracy, epoch
        if self._is_live:
            return
        width = max([5, *map(len, accuracy)])
        for model, values in accuracy.items():
            shown = "  ".join(
                f"{name} {value:.1f}" for (_, name), value in in_short(values).items()
            )
            self._say(f"epoch {epoch:>4}/{self.block.epochs}  {model:<{width}} {shown}")

    def close(self) -> None:
        """Take the block away."""
        self._reading.close()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _updated_block(self) -> Block:
        """The block as it is now; also called between two steps, by the thread that draws it."""
        forecast, block = self._forecast, self.block
        if forecast is not None:
            block.left = forecast.left()
            block.share = max(block.share, forecast.share())  # a new estimate moves no bar back
            if forecast.step_seconds:
                block.images_per_second = self._images / forecast.step_seconds
        return block

    def _say(self, text: str) -> None:
        self.console.print(f"{self.label}{text}", highlight=False, soft_wrap=True, markup=False)


def announcement(forecast: Forecast, *, spent: float) -> str:
    """A sentence about how long the run takes, before its first step."""
    left, plan = forecast.left() or 0.0, forecast.plan
    if forecast.share() > 0:
        return f"About {duration(left)} left on this machine."
    epochs = " + ".join(str(phase.epochs) for phase in plan.phases)
    phases = " + ".join(phase.name for phase in plan.phases)
    evaluations = sum(len(phase.evaluations) for phase in plan.phases)
    hint = "" if plan.fitted else " --minutes N fits it to N minutes."
    return (
        f"About {duration(spent + left)} in all on this machine: {epochs} epochs ({phases}), "
        f"{evaluations} evaluations.{hint}"
    )


def choose_progress(
    progress: Progress | bool | None = None, *, console: Console | None = None
) -> Progress:
    """The requested display; by default a display on a terminal, else none.

    Args:
        progress: A display; True for one on standard error, False for none; None decides by
            whether standard error is a terminal, or this is a notebook.
        console: In place of standard error.
    """
    if progress is not None and not isinstance(progress, bool):
        return progress
    console = console or Terminal(stderr=True, highlight=False)
    if progress is None:
        progress = console.is_terminal or console.is_jupyter
    return ConsoleProgress(console) if progress else Silent()
