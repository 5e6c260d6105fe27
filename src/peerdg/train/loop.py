"""The training loop: epochs, evaluation and checkpoints of one phase (one step: `step.py`)."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

from torch import Tensor

from peerdg.errors import DamagedError
from peerdg.methods.base import Batch, Method
from peerdg.rng import seeded
from peerdg.stages import Activity, stage
from peerdg.train.batches import epoch_batches
from peerdg.train.guard import Guard
from peerdg.train.optim import learning_rate, make_optimizers, set_learning_rate
from peerdg.train.order import epoch_order, steps_per_epoch
from peerdg.train.settings import PhaseSettings
from peerdg.train.signals import StopRequest
from peerdg.train.source import Source
from peerdg.train.state import TrainState
from peerdg.train.step import train_step


class Evaluate(Protocol):
    """Evaluates what a method observes: one record for each network on each domain."""

    def __call__(self, method: Method, *, before_chunk: Callable[[], None]) -> list[dict[str, Any]]:
        """Call `before_chunk` every few images: it raises if a signal asked to stop."""
        ...


AsEvaluated = Callable[[Method, Callable[[], None]], AbstractContextManager[None]]


class Checkpoints(Protocol):
    """Saves and restores states."""

    def restore(self, state: TrainState) -> None:
        """Set `state` to the phase's last checkpoint, if there is one."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        ...

    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Save a copy of the state; with `wait`, return only when it is on disk."""


class Records(Protocol):
    """Receives the losses and evaluations of a phase."""

    def epoch(
        self, state: TrainState, values: dict[str, Any], seconds: float, *, timed_steps: int
    ) -> None:
        """An epoch ended; `seconds` are those of its last `timed_steps` steps."""

    def evaluation(self, state: TrainState, records: list[dict[str, Any]]) -> None:
        """The observed models were evaluated.

        Called while they still have the batch statistics used for evaluation.
        """

    def stopped(self, state: TrainState, signal_number: int | None) -> NoReturn:
        """The state is saved; raise `Stopped`."""


class PhaseProgress(Protocol):
    """Shows where a phase is."""

    def start_phase(self, name: str, *, epochs: int, steps: int, done: int, step: int = 0) -> None:
        """A phase begins, or goes on after `done` epochs and `step` steps."""

    def enter(self, activity: Activity) -> None:
        """The run turns to another activity."""

    def working(self, what: str, share: float) -> None:
        """This share of long work at the start or end of an epoch is done."""

    def step(self, epoch: int, step: int, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """A step is complete."""

    def evaluated(self, epoch: int, records: list[dict[str, Any]]) -> None:
        """An evaluation is complete."""


@dataclass(frozen=True)
class Services:
    """The services of a run that its phases use.

    Args:
        evaluate: Evaluates the observed models; its records are kept as they are.
        as_evaluated: Given the method and a function to call every few images, returns a context
            manager that swaps in the batch statistics used for evaluation and restores the
            training ones on exit.
        checkpoints: Saves and restores states.
        records: Receives losses and evaluations.
        progress: Shows where training is.
        stop: Becomes true when a signal asks to stop.
    """

    evaluate: Evaluate
    as_evaluated: AsEvaluated
    checkpoints: Checkpoints
    records: Records
    progress: PhaseProgress
    stop: StopRequest


@dataclass(frozen=True)
class Phase:
    """One phase of a run: pre-training or main training.

    Args:
        name: `"pretrain"` or `"train"`; part of every random seed of the phase.
        settings: Schedule and optimizer.
        evaluate_every: Epochs between evaluations; None for a phase that is not evaluated.
        bf16: Whether the loss is computed in bfloat16 where that is safe.
        stop_after: Save and stop after this many epochs. None trains to the end.
    """

    name: str
    settings: PhaseSettings
    evaluate_every: int | None
    bf16: bool = False
    stop_after: int | None = None


def run_phase(
    phase: Phase, method: Method, source: Source, *, seed: int, services: Services
) -> None:
    """Train `method` through one phase, resuming from its checkpoint if there is one.

    Args:
        phase: What to run.
        method: What to train, on its device.
        source: Training images, on the same device.
        seed: The run's seed; every draw derives from it and the position.
        services: Evaluation, checkpoints, records, progress and signals of the run.

    Raises:
        Stopped: After saving, if asked to stop.
        NumericalError: If a loss or gradient is not finite, before it reaches a weight.
    """
    settings = phase.settings
    state = TrainState(phase.name, method, make_optimizers(method, settings), pool=source.pool)
    guard = Guard(state)
    services.checkpoints.restore(state)
    steps = steps_per_epoch(settings, len(source.domain), len(source))
    _check_position(state, epochs=settings.epochs, steps=steps)
    services.progress.start_phase(
        phase.name, epochs=settings.epochs, steps=steps, done=state.epoch, step=state.step
    )
    training = _Training(phase, state, source, guard, seed, services)
    # Before the first epoch, or where a stop interrupted it.
    _evaluate_if_due(phase, state, services)
    while state.epoch < settings.epochs:
        if phase.stop_after is not None and state.epoch >= phase.stop_after:
            services.checkpoints.save(state, wait=True)
            services.records.stopped(state, None)
        clock, before = time.perf_counter(), state.step  # steps of an earlier process
        lr = learning_rate(settings, state.epoch)
        started = training.start_epoch()
        training.take_steps(lr)
        ended = training.end_epoch()
        records = {"lr": lr, **started, **ended}
        services.records.epoch(
            state, records, time.perf_counter() - clock, timed_steps=state.step - before
        )
        state.epoch, state.step = state.epoch + 1, 0
        state.evaluated, state.followed = False, None
        _evaluate_if_due(phase, state, services)
        _save_if_due(state, guard, services, last=state.epoch == settings.epochs)


@dataclass(frozen=True)
class _Training:
    """A phase under way: the three parts of its epochs."""

    phase: Phase
    state: TrainState
    source: Source
    guard: Guard
    seed: int
    services: Services

    def start_epoch(self) -> dict[str, Any]:
        """Let the method prepare for the epoch; return what it records."""
        state = self.state
        self.services.progress.enter("start of epoch")
        state.method.train()
        with (
            stage("start of epoch"),
            _interruptible(self.source, state, self.services),
            seeded(self.seed, "start", state.phase, state.epoch),
        ):
            return state.method.start_epoch(state.epoch)

    def take_steps(self, lr: float) -> None:
        """Train the steps of the epoch that are left, with this learning rate."""
        state, source, seed = self.state, self.source, self.seed
        set_learning_rate(state.method, state.optimizers, lr)
        settings = self.phase.settings
        images = len(source)  # the pool may have grown
        steps = steps_per_epoch(settings, len(source.domain), images)
        order = epoch_order(settings, images, seed, state.phase, state.epoch, steps=steps)
        key = (state.phase, state.epoch)
        self.services.progress.enter("training")
        for rows, batch in epoch_batches(
            state.method, source, order, start=state.step, seed=seed, key=key
        ):
            self._take_step(batch, rows, key)
            if state.step < steps:  # after the last step, `end_epoch` runs before the checkpoint
                _save_if_due(state, self.guard, self.services)

    def _take_step(self, batch: Batch, rows: Tensor, key: tuple[str | int, ...]) -> None:
        state = self.state
        terms = train_step(
            state,
            batch,
            rows,
            guard=self.guard,
            seed=self.seed,
            key=(*key, state.step),
            bf16=self.phase.bf16,
        )
        with stage("averages"):
            state.method.update_averages()
        state.add_terms(terms)
        state.step += 1
        self.services.progress.step(state.epoch, state.step, images=len(rows), terms=terms)

    def end_epoch(self) -> dict[str, Any]:
        """Let averages and method conclude the epoch; return what they record."""
        state = self.state
        self.services.progress.enter("end of epoch")
        self.guard.check_weights()
        with (
            stage("end of epoch"),
            _interruptible(self.source, state, self.services),
            seeded(self.seed, "end", state.phase, state.epoch),
        ):
            if state.followed is None:  # once, though a stop may interrupt what comes next
                state.followed = state.method.finish_epoch_averages(state.epoch)
            result = state.method.end_epoch(state.epoch)
        for name in result.reset_optimizers:
            state.optimizers[name].state.clear()
        self.source.change_pool(result)
        return {**result.records, **state.followed}


def _check_position(state: TrainState, *, epochs: int, steps: int) -> None:
    # After the last step: stopped before the epoch was concluded.
    if state.epoch > epochs or state.step > steps or (state.epoch == epochs and state.step):
        raise DamagedError(
            f"The checkpoint is from epoch {state.epoch}, step {state.step}; this run has {epochs} "
            f"epochs of {steps} steps.",
            hint="Restore the folder from a backup, or start anew with --overwrite.",
        )


def _evaluate_if_due(phase: Phase, state: TrainState, services: Services) -> None:
    """Evaluate at the end of an epoch, once; a stop in between saves the state before it."""
    if state.evaluated or state.step or not is_evaluated_after(phase, state.epoch):
        return
    services.progress.enter("evaluation")
    before_chunk = partial(_give_up_if_asked, services.stop)
    try:
        with stage("evaluation"), services.as_evaluated(state.method, before_chunk):
            records = services.evaluate(state.method, before_chunk=before_chunk)
            state.evaluated = True
            services.records.evaluation(state, records)
            services.progress.evaluated(state.epoch, records)
    except _GivenUp:
        # Outside the `with`: the training batch statistics are restored.
        _stop_if_asked(state, services)
        raise


def is_evaluated_after(phase: Phase, epochs: int) -> bool:
    """Whether the phase is evaluated after this many epochs: every period, and at the end."""
    if phase.evaluate_every is None:
        return False
    return epochs % phase.evaluate_every == 0 or epochs == phase.settings.epochs


def evaluation_epochs(phase: Phase) -> tuple[int, ...]:
    """After how many epochs of the phase the targets are evaluated; 0 is before the first."""
    if phase.evaluate_every is None:
        return ()
    return (0, *(n for n in range(1, phase.settings.epochs + 1) if is_evaluated_after(phase, n)))


def _save_if_due(
    state: TrainState, guard: Guard, services: Services, *, last: bool = False
) -> None:
    """Save if the interval has passed, the phase is over, or a signal asks to stop; then stop."""
    checkpoints = services.checkpoints
    if checkpoints.is_due or last or services.stop:
        guard.check()
    _stop_if_asked(state, services)
    if checkpoints.is_due or last:
        checkpoints.save(state, wait=last)


def _stop_if_asked(state: TrainState, services: Services) -> None:
    """Save and stop if a signal asked to.

    Raises:
        Stopped: If it did.
    """
    if services.stop.signal_number is not None:
        services.checkpoints.save(state, wait=True)
        services.records.stopped(state, services.stop.signal_number)


@contextmanager
def _interruptible(source: Source, state: TrainState, services: Services) -> Iterator[None]:
    """Allow a stop between the parts of a method's long work; a resumed run repeats the work.

    Raises:
        Stopped: After saving, if asked to stop before one of the parts.
    """
    try:
        give_up = partial(_give_up_if_asked, services.stop)
        with source.clean.work.interruptible(give_up, services.progress.working):
            yield
    except _GivenUp:
        _stop_if_asked(state, services)
        raise


class _GivenUp(Exception):
    """A signal asked to stop inside an evaluation, or at the start or end of an epoch."""


def _give_up_if_asked(stop: StopRequest) -> None:
    if stop.signal_number is not None:
        raise _GivenUp
