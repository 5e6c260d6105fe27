"""Save and resume a run: when, by which thread, from where; `checkpoint` has the file format."""

import time
from typing import Any

import torch
from torch import Tensor

from peerdg.errors import DamagedError
from peerdg.methods.pool import PoolImages
from peerdg.run.background import Background
from peerdg.run.checkpoint import (
    PHASES,
    Checkpoint,
    Position,
    checkpoint_name,
    load_newest,
    remove_leftovers,
    save_checkpoint,
)
from peerdg.run.folder import RunFolder
from peerdg.run.pool_files import has_addition, store_addition
from peerdg.run.stored_manifest import run_identity
from peerdg.schema import conform
from peerdg.stages import stage
from peerdg.terminal import visible
from peerdg.train.state import TrainState


class Checkpointer:
    """Saves the states of a run, and restores the newest.

    Args:
        run: The run folder, held by this process.
        minutes: At most this much work lies between two checkpoints.

    Attributes:
        problems: Sentences about damaged checkpoints passed over and records that are lost.
    """

    def __init__(self, run: RunFolder, *, minutes: float) -> None:
        self.run = run
        self.seconds = minutes * 60
        self._saved_at = time.monotonic()
        self._background = Background()
        self._copies: dict[str, Tensor] = {}
        remove_leftovers(run.path)
        self._pending, damaged = load_newest(run.checkpoints)
        self.problems = [f"{problem} The one before it is used." for problem in damaged]
        additions = () if self._pending is None else self._pending.additions
        self._stored = {addition.digest for addition in additions}
        self._identity = run_identity(run.manifest_file)
        _refuse_foreign(self._pending, self._identity)
        self._cut_records(self._pending)

    @property
    def resumes(self) -> bool:
        """Whether there is a state to go on from."""
        return self._pending is not None

    @property
    def position(self) -> str:
        """Where the run goes on, for a person."""
        if self._pending is None:
            return "at the start"
        state = self._pending.state
        phase = "pre-training" if state["phase"] == "pretrain" else "training"
        if state["step"]:
            return f"in {phase}, epoch {state['epoch'] + 1}, after step {state['step']}"
        return f"in {phase}, after epoch {state['epoch']}"

    def is_past(self, phase: str) -> bool:
        """Whether the run to be resumed has left `phase` behind."""
        if self._pending is None:
            return False
        return PHASES.index(self._pending.state["phase"]) > PHASES.index(phase)

    def restore(self, state: TrainState) -> None:
        """Restore `state` from the newest checkpoint, if that is of the same phase."""
        if self._pending is not None and self._pending.state["phase"] == state.phase:
            pending = self._pending
            state.restore(pending.tensors, pending.state, pending.additions)
            # Records were lost: evaluate again if the weights are still those of the evaluation.
            if self._lost_records:
                state.evaluated = False
            self._pending = None

    @property
    def is_due(self) -> bool:
        """Whether the interval has passed since the last checkpoint."""
        return time.monotonic() - self._saved_at >= self.seconds

    @stage("checkpoint")
    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Save a copy of the state; it is written while training goes on.

        Args:
            state: What to save.
            wait: Return only when it is safely on disk.

        Raises:
            OutputError: If this checkpoint (with `wait`) or the one before could not be written.
        """
        records = {"metrics_bytes": self.run.metrics.size(), "run": self._identity}
        plain = {**state.plain(), **records}
        self._background.wait()
        self._copy(state.tensors())
        self._background.start(self._write, _number(state), self._copies, plain, state.additions)
        self._saved_at = time.monotonic()
        if wait:
            self._background.wait()

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            OutputError: If the last checkpoint could not be written.
        """
        self._background.close()

    def _copy(self, tensors: dict[str, Tensor]) -> None:
        """Into the memory of the last checkpoint's copies, which are on disk by now."""
        last, self._copies = self._copies, {}
        for name, tensor in tensors.items():
            copy = last.get(name)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self._copies[name] = copy.copy_(tensor.detach())

    def _write(
        self,
        number: int,
        tensors: dict[str, Tensor],
        plain: dict[str, Any],
        additions: tuple[PoolImages, ...],
    ) -> None:
        for addition in additions:  # before the checkpoint, which names them
            if not self._is_stored(addition.digest):
                store_addition(self.run.checkpoints, addition)
                self._stored.add(addition.digest)
        self.run.metrics.sync()  # first: a checkpoint must not know of records that are not there
        save_checkpoint(self.run.checkpoints, number, tensors, plain)

    def _is_stored(self, digest: str) -> bool:
        """Whether this process has written or verified the images, and they were not removed."""
        return digest in self._stored and has_addition(self.run.checkpoints, digest)

    def _cut_records(self, checkpoint: Checkpoint | None) -> None:
        """Drop records newer than the checkpoint: they will be written again, and equal."""
        expected = checkpoint.state["metrics_bytes"] if checkpoint else 0
        metrics = self.run.metrics
        self.run.events.cut()
        metrics.cut(expected)
        self._lost_records = checkpoint is not None and metrics.size() < expected
        if not self._lost_records:
            return
        self.problems.append(
            f"{metrics.path} is damaged: of {expected} bytes {metrics.size()} can be read. The "
            "weights are not affected, but the records after this point are lost."
        )
        records = metrics.read()
        if records and records[-1]["kind"] == "evaluation":  # of which the rest may be lost
            last = _position(records[-1])
            metrics.cut(metrics.size_before(lambda record: _position(record) == last))


def _position(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["kind"], record["phase"], record["epoch"]


def _refuse_foreign(checkpoint: Checkpoint | None, run: str | None) -> None:
    """Refuse a checkpoint that this run did not write: checksums only show that it is unchanged.

    Raises:
        DamagedError: If it is of another run, its position does not match its name, or peerdg did
            not write it.
    """
    if checkpoint is None:
        return
    hint = "It was not written by this version of peerdg; start the run anew with --overwrite."
    position = conform(Position, checkpoint.state, "The newest checkpoint", hint=hint)
    where = visible(str(checkpoint.path))
    name = checkpoint_name(_number(position))
    if checkpoint.path.name != name:
        raise DamagedError(
            f"{where} holds the checkpoint '{name}': it was renamed or copied.",
            hint="Remove it, restore the folder from a backup, or start anew with --overwrite.",
        )
    if None not in (position.run, run) and position.run != run:
        raise DamagedError(
            f"{where} is a checkpoint of another run: its options, data or network differ.",
            hint="Restore the run's own checkpoints, or start anew with --overwrite.",
        )


def _number(state: TrainState | Position) -> int:
    """Orders checkpoints by phase, epoch and step.

    Equal numbers mean equal states, up to an evaluation between two epochs: a state that was saved
    before it evaluates when it is resumed, and is then the state that was saved after it.
    """
    return (PHASES.index(state.phase) * 10**6 + state.epoch) * 10**6 + state.step
