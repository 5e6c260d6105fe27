"""Run the training loop over the epochs of one phase. `step.py` implements one step."""

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from peerdg.errors import Stopped
from peerdg.long_work import interruptible
from peerdg.methods.base import Method
from peerdg.rng import seeded
from peerdg.stages import stage
from peerdg.train.optim import learning_rate, make_optimizers, set_learning_rate
from peerdg.train.settings import Phase
from peerdg.train.signals import StopRequest
from peerdg.train.source import Source, epoch_batches, epoch_order, steps_per_epoch
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step


class Hooks:
    """Callbacks of the training loop. The defaults do nothing."""

    def __init__(self, stop: StopRequest | None = None) -> None:
        self.stop = StopRequest() if stop is None else stop

    def restore(self, state: TrainState) -> None:
        """Load the last checkpoint of the phase into `state`, if there is one."""

    def start_phase(self, phase: Phase, state: TrainState, *, steps: int) -> None:
        """Called when a phase starts or resumes."""

    def before_item(self, label: str, share: float) -> None:
        """Called before each item of long work (see `long_work`). Raises `Stopped` on a signal."""
        self.stop.check()

    def show_step(self, state: TrainState, *, images: int, terms: Mapping[str, Tensor]) -> None:
        """Called after each training step. Reading a term synchronizes the device."""

    def record_epoch(
        self, state: TrainState, values: dict[str, Any], seconds: float, *, timed_steps: int
    ) -> None:
        """Called after each epoch. `seconds` is the duration of its last `timed_steps` steps."""

    def evaluate(self, state: TrainState) -> None:
        """Evaluate the method's networks and set `state.evaluated`."""
        state.evaluated = True

    @property
    def is_save_due(self) -> bool:
        """Whether a checkpoint is due."""
        return False

    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Save the state. With `wait`, return only once it is on disk."""

    def save_stopped(self, state: TrainState, stopped: Stopped) -> None:
        """Save the state before `stopped` is raised again."""


def run_phase(
    phase: Phase, method: Method, source: Source, *, seed: int, hooks: Hooks | None = None
) -> None:
    """Train `method` through one phase, resuming from its checkpoint if there is one.

    Args:
        phase: Schedule, optimizer and evaluations.
        method: Method to train, on its device.
        source: Training images, on the same device.
        seed: Run seed. All randomness derives from it and the position in the run.
        hooks: Callbacks for evaluation, checkpoints, records, progress and signals.

    Raises:
        Stopped: If a stop was requested. The state is saved first.
        NumericalError: If a loss or gradient is not finite. It does not reach the weights.
    """
    hooks = hooks or Hooks()
    epochs = phase.settings.epochs
    state = TrainState(
        phase.name, method, make_optimizers(method, phase.settings), pool=source.pool
    )
    guard = Guard(state)
    hooks.restore(state)
    steps = steps_per_epoch(phase.settings, len(source.domain), len(source))
    hooks.start_phase(phase, state, steps=steps)
    try:
        _evaluate_if_due(phase, state, hooks)  # Initial evaluation, or one that a stop interrupted.
        while state.epoch < epochs:
            if phase.stop_after is not None and state.epoch >= phase.stop_after:
                raise Stopped(signal_number=None)
            _train_epoch(phase, state, source, guard, seed=seed, hooks=hooks)
            _evaluate_if_due(phase, state, hooks)
            _save_if_due(state, guard, hooks, last=state.epoch == epochs)
    except Stopped as stopped:
        guard.check()
        hooks.save_stopped(state, stopped)
        raise


def _train_epoch(
    phase: Phase, state: TrainState, source: Source, guard: Guard, *, seed: int, hooks: Hooks
) -> None:
    """Train one epoch, or the rest of an epoch after a resume."""
    method, settings, key = state.method, phase.settings, (phase.name, state.epoch)
    clock, first_step = time.perf_counter(), state.step
    method.train()
    with stage("start of epoch"), interruptible(hooks.before_item), seeded(seed, "start", *key):
        start_records = method.start_epoch(state.epoch)

    lr = learning_rate(settings, state.epoch)
    set_learning_rate(method, state.optimizers, lr)
    steps = steps_per_epoch(settings, len(source.domain), len(source))  # The pool may have grown.
    order = epoch_order(settings, len(source), seed, *key, steps=steps)
    for rows, batch in epoch_batches(method, source, order, start=state.step, seed=seed, key=key):
        terms = train_step(
            state, batch, rows, guard=guard, seed=seed, key=(*key, state.step), bf16=phase.bf16
        )
        with stage("averages"):
            method.update_averages()
        state.add_terms(terms)
        state.step += 1
        hooks.show_step(state, images=len(rows), terms=terms)
        if state.step < steps:  # After the last step, finish the epoch before saving.
            _save_if_due(state, guard, hooks)

    guard.check_weights()
    with stage("end of epoch"), seeded(seed, "end", *key):
        average_records = method.finish_epoch_averages(state.epoch)
        with interruptible(hooks.before_item):
            result = method.end_epoch(state.epoch)
    for name in result.reset_optimizers:
        state.optimizers[name].state.clear()
    source.change_pool(result)
    records = {"lr": lr, **start_records, **result.records, **average_records}
    seconds = time.perf_counter() - clock
    hooks.record_epoch(state, records, seconds, timed_steps=state.step - first_step)
    state.start_next_epoch()


def _evaluate_if_due(phase: Phase, state: TrainState, hooks: Hooks) -> None:
    """Evaluate between two epochs if an evaluation is due and not done yet."""
    if not (state.evaluated or state.step) and phase.is_evaluated_after(state.epoch):
        with stage("evaluation"), interruptible(hooks.before_item):
            hooks.evaluate(state)


def _save_if_due(state: TrainState, guard: Guard, hooks: Hooks, *, last: bool = False) -> None:
    """Raise if a stop was requested. Save if a checkpoint is due or after the last epoch."""
    hooks.stop.check()
    if hooks.is_save_due or last:
        guard.check()
        hooks.save(state, wait=last)
