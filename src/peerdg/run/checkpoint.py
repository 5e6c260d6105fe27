"""Save and load checkpoints: folders without pickle, written completely or not at all.

The folder `checkpoint/1000004000020/` is named after its phase, epoch and step. It contains:

* `tensors.safetensors`: weights, optimizer state, running sums of the current epoch
* `state.json`: position, optimizer options, length of the records
* `MANIFEST.json`: SHA-256 of both files

Images that a method added to the training pool are in `checkpoint/pool/`, one file per addition,
named by the hash of its content. `state.json` lists them in order.
"""

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from peerdg.distributed import highest
from peerdg.errors import DamagedError
from peerdg.files import TEMPORARY, read_json, reading, remove, replace_atomically, sha256, writing
from peerdg.methods.pool import PoolImages
from peerdg.models.stored import save_tensors
from peerdg.run.folder import RunFolder
from peerdg.stages import stage
from peerdg.train.state import TrainState

FORMAT = 1
TENSORS, STATE, MANIFEST, POOL = "tensors.safetensors", "state.json", "MANIFEST.json", "pool"
KEEP = 2
PHASES = ("pretrain", "train")


@dataclass(frozen=True)
class Checkpoint:
    """The verified content of a checkpoint."""

    path: Path
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    additions: tuple[PoolImages, ...] = ()


def write_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and plain values as a folder with checksums."""
    with replace_atomically(path) as temporary:
        temporary.mkdir()
        save_tensors(temporary / TENSORS, tensors)
        (temporary / STATE).write_text(json.dumps(state), "utf-8")
        digests = {name: sha256(temporary / name) for name in (TENSORS, STATE)}
        (temporary / MANIFEST).write_text(json.dumps({"format": FORMAT, **digests}), "utf-8")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint folder. Raise `DamagedError` if a checksum does not match."""
    with reading(path):
        manifest = read_json(path / MANIFEST, format=FORMAT)
        for name in (TENSORS, STATE):
            if sha256(path / name) != manifest[name]:
                raise DamagedError(f"{path / name} does not match its checksum.")
        state = read_json(path / STATE)
        additions = tuple(_load_addition(path.parent, name) for name in state.get(POOL, ()))
        return Checkpoint(path, load_file(path / TENSORS), state, additions)


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest intact checkpoint, or None, and describe the damaged ones."""
    problems: list[str] = []
    paths = checkpoints(folder)
    for path in reversed(paths):
        try:
            return load_checkpoint(path), problems
        except DamagedError as error:
            problems.append(error.message)
    if paths:
        raise DamagedError(
            f"No checkpoint in {folder} can be used: " + " ".join(problems),
            hint="Restore the folder from a backup, or start again with --overwrite.",
        )
    return None, problems


def save_checkpoint(
    folder: Path, number: int, tensors: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Write checkpoint `number`. Remove all but the newest `KEEP`, and unused pool images.

    The pool images that `state` lists must already be stored.
    """
    write_checkpoint(folder / f"{number:013d}", tensors, state)
    for old in checkpoints(folder)[:-KEEP]:
        # Rename first, so that a kill cannot leave half a checkpoint under a valid name.
        temporary = old.with_name(f"{TEMPORARY}{old.name}")
        with writing(old):
            old.rename(temporary)
        remove(temporary)
    with contextlib.suppress(DamagedError):  # if a state is unreadable, keep all images
        states = [read_json(path / STATE) for path in checkpoints(folder)]
        named = {digest for state in states for digest in state.get(POOL, ())}
        for file in (folder / POOL).glob("*.safetensors"):
            if file.stem not in named:
                remove(file)


def checkpoints(folder: Path) -> list[Path]:
    """List complete checkpoint folders, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.isdecimal())


def remove_leftovers(run: Path) -> None:
    """Remove temporary files and folders that a killed process left behind."""
    for name in ("", "checkpoint", f"checkpoint/{POOL}", "model", "snapshots"):
        for path in (run / name).glob(".tmp*"):  # no dash: includes files of safetensors
            remove(path)


def _load_addition(folder: Path, digest: str) -> PoolImages:
    path = folder / POOL / f"{digest}.safetensors"
    with reading(path):
        tensors = load_file(path)
        addition = PoolImages(tensors["images"], tensors["labels"])
    if addition.digest != digest:
        raise DamagedError(f"The pool images {path} do not match their checksum.")
    return addition


class Background:
    """Write files in a thread while training continues."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Wait for the previous work, raising its exception if it failed, then start `work`."""
        self.wait()
        self._running = self._executor.submit(work, *arguments)

    def wait(self) -> None:
        """Wait for the running work, and raise its exception if it failed."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the running work, then end the thread."""
        try:
            self.wait()
        finally:
            self._executor.shutdown()


class Checkpointer:
    """Save the state of a run whenever `minutes` have passed, and restore the newest state.

    If several processes share the run, only one of them `writes`.

    `problems` lists messages about damaged checkpoints and lost records.
    """

    def __init__(self, run: RunFolder, *, minutes: float, writes: bool = True) -> None:
        self.run = run
        self.writes = writes
        self.seconds = minutes * 60
        self._saved_at = time.monotonic()
        self._background = Background()
        if writes:
            remove_leftovers(run.path)
        self._pending, damaged = load_newest(run.checkpoints)
        self.problems = [f"{problem} The previous checkpoint is used." for problem in damaged]
        additions = () if self._pending is None else self._pending.additions
        self._stored = {addition.digest for addition in additions}
        self._lost_records = False
        if writes:
            self._cut_records(self._pending)

    @property
    def resumes(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self._pending is not None

    @property
    def position(self) -> str:
        """Text that describes where the run continues."""
        state = self._pending.state if self._pending else {"phase": "start", "epoch": 0, "step": 0}
        return f"{state['phase']} after epoch {state['epoch']}, step {state['step']}"

    def is_past(self, phase: str) -> bool:
        """Whether the stored run has finished `phase`."""
        if self._pending is None:
            return False
        return PHASES.index(self._pending.state["phase"]) > PHASES.index(phase)

    def restore(self, state: TrainState) -> None:
        """Restore `state` from the newest checkpoint if it belongs to the same phase."""
        if self._pending is not None and self._pending.state["phase"] == state.phase:
            pending, self._pending = self._pending, None
            state.restore(pending.tensors, pending.state, pending.additions)
            # The lost records may include the last evaluation. Repeat it if no step followed.
            state.evaluated &= not highest(self._lost_records)

    @property
    def is_due(self) -> bool:
        """Whether the interval has passed since the last checkpoint."""
        due = self.writes and time.monotonic() - self._saved_at >= self.seconds
        return bool(highest(due))

    @stage("checkpoint")
    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Copy the state and write it in the background, or `wait` until it is on disk."""
        plain = {**state.metadata(), "metrics_bytes": self.run.metrics.size()}
        self._background.wait()
        copies = {n: t.detach().to("cpu", copy=True) for n, t in state.tensors().items()}
        self._background.start(self._write, _number(state), copies, plain, state.additions)
        self._saved_at = time.monotonic()
        if wait:
            self._background.wait()

    def close(self) -> None:
        """Wait until everything is written, and raise the exception of a failed write."""
        self._background.close()

    def _write(
        self,
        number: int,
        tensors: dict[str, Tensor],
        plain: dict[str, Any],
        additions: tuple[PoolImages, ...],
    ) -> None:
        for addition in additions:  # before the checkpoint that lists them
            path = self.run.checkpoints / POOL / f"{addition.digest}.safetensors"
            if addition.digest not in self._stored or not path.exists():
                with replace_atomically(path) as file:
                    save_tensors(file, {"images": addition.images, "labels": addition.labels})
                self._stored.add(addition.digest)
        self.run.metrics.sync()  # before the checkpoint, which stores the file's length
        save_checkpoint(self.run.checkpoints, number, tensors, plain)

    def _cut_records(self, checkpoint: Checkpoint | None) -> None:
        """Drop records newer than the checkpoint. The resumed run writes them again."""
        expected = checkpoint.state["metrics_bytes"] if checkpoint else 0
        metrics = self.run.metrics
        self.run.events.cut()
        metrics.cut(expected)
        self._lost_records = metrics.size() < expected
        if not self._lost_records:
            return
        self.problems.append(
            f"{metrics.path} is damaged: only {metrics.size()} of {expected} bytes are readable. "
            "The weights are not affected, but later records are lost."
        )
        records = metrics.read()
        if records and records[-1]["kind"] == "evaluation":  # it may be incomplete
            metrics.cut(metrics.size_before(records[-1], "kind", "phase", "epoch"))


def _number(state: TrainState) -> int:
    """Return a number that orders checkpoints by phase, epoch and step.

    Equal numbers mean equal states, except for an evaluation between two epochs. A state saved
    before that evaluation repeats it when resumed, and then equals the state saved after it.
    """
    return (PHASES.index(state.phase) * 10**6 + state.epoch) * 10**6 + state.step
