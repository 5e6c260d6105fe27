"""Share pre-training between runs that would compute the same.

Runs of one grid differ in their methods, but often begin alike: with the same images, network,
initial weights, seed and options of pre-training. Whichever comes first stores its weights and
records in the cache folder; the others take them and end bit for bit as if they had trained
themselves. An entry is a folder `pretraining/NAME-HASH` in the format of checkpoints; what is
damaged, or was made for another key, is made again.
"""

import contextlib
import copy
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.nn.parameter import is_lazy

from peerdg.data.cache import bytes_from_environment, cache_folder
from peerdg.errors import DamagedError, NumericalError, OutputError, PeerdgWarning
from peerdg.files import TEMPORARY, remove
from peerdg.methods.erm import ERM
from peerdg.models.classifier import Classifier, network_fingerprint
from peerdg.options import to_dict
from peerdg.run.checkpoint import load_checkpoint, write_checkpoint
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.manifest import hardware_of
from peerdg.schema import conform
from peerdg.terminal import visible
from peerdg.train.optim import learning_rate, make_optimizers, set_learning_rate
from peerdg.train.settings import Phase
from peerdg.train.signals import StopRequest
from peerdg.train.source import Source, epoch_order
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from peerdg.version import __version__, code_digest

FOLDER = "pretraining"
MOST_BYTES = 2 * 10**9  # of all entries together
BUDGET = "PEERDG_PRETRAINING_BUDGET"
WAITING_SECONDS = 0.2  # between two looks at the lock of another run
_ENTRY = re.compile(r"(.+)-[0-9a-f]{16}")
_LOCK = ".lock"
_BEGUN = "begun_pretraining"
Note = Callable[[str], None]


@dataclass(frozen=True)
class _About:
    """Metadata of an entry.

    Args:
        key: All that decides the weights, as JSON.
        metrics: The records of the epochs.
        events: Their steps and seconds.
    """

    key: str
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]


class SharedPretraining:
    """The stored pre-training for one key, there or not.

    Args:
        folder: Where all of them are.
        name: The readable part of its name.
        key: All that decides the weights, as JSON.
        budget: Bytes of all entries together; the longest unused ones make room.
    """

    def __init__(self, folder: Path, name: str, key: str, *, budget: int) -> None:
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:60] or "network"
        self.folder = folder
        self.path = folder / f"{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self.key = key
        self.budget = budget

    @contextlib.contextmanager
    def reserved(self, note: Note, stop: StopRequest, *, wait: bool = True) -> Iterator[bool]:
        """Hold the entry's lock inside the block, so that one run makes it and the others wait.

        Args:
            note: Receives a sentence if another run has to be waited for.
            stop: Ends the waiting.
            wait: Whether to wait for another run at all.

        Yields:
            Whether the lock is held; if not, the entry must not be written.
        """
        lock = FileLock(_lock_of(self.path))
        held = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            held = _acquire(lock, note, stop, wait=wait)
        except (OSError, NotImplementedError, DamagedError) as error:
            _warn_not_shared(error)
        try:
            yield held
        finally:
            if held:
                lock.release()

    def load(self, network: Classifier, run: RunFolder) -> bool:
        """Give `network` the stored weights and `run` the stored records.

        Returns:
            Whether there was an entry that could be used; if not, nothing is changed.
        """
        if not os.path.lexists(self.path):
            return False
        try:
            tensors, about = self._read(network)
        except DamagedError as error:
            message = f"A shared pre-training cannot be used and is made again: {error.message}"
            warnings.warn(message, PeerdgWarning, stacklevel=2)
            run.event("damaged", message=message)
            return False
        with torch.no_grad():
            for name, value in _tensors(network).items():
                value.copy_(tensors[name])
        network.train()  # as training would have left it
        run.metrics.append(*about.metrics)
        for event in about.events:
            run.event(**event)
        run.event("shared_pretraining", entry=self.path.name)
        with contextlib.suppress(OSError):
            os.utime(self.path)  # it was used: others make room before it
        return True

    def store(self, network: Classifier, run: RunFolder) -> None:
        """Keep the weights of `network` and the pre-training records of `run` for other runs."""
        tensors = _tensors(network)
        if sum(t.numel() * t.element_size() for t in tensors.values()) > self.budget:
            return
        metrics = [record for record in run.metrics.read() if record["phase"] == "pretrain"]
        # The last event of each epoch: a run that was killed has done some of them twice, and may
        # have begun its main phase before.
        epochs = {
            event.get("epoch"): event
            for event in run.events.read()
            if event["event"] == "epoch" and event.get("phase") == "pretrain"
        }
        events = [{"kind": e["event"], **_without(e, "event", "time")} for e in epochs.values()]
        about = _About(self.key, metrics, events)
        try:
            if self.path.is_symlink() or self.path.is_file():
                self.path.unlink()
            write_checkpoint(self.path, tensors, asdict(about))
            self._make_room()
        except (OSError, OutputError, DamagedError) as error:
            _warn_not_shared(error)

    def _read(self, network: Classifier) -> tuple[dict[str, Tensor], _About]:
        stored = load_checkpoint(self.path)
        about = conform(_About, stored.state, self.path)
        where = visible(str(self.path))
        if about.key != self.key:
            raise DamagedError(f"{where} was made for another run.")
        if _shapes(stored.tensors) != _shapes(_tensors(network)):
            raise DamagedError(f"{where} has the weights of another network.")
        return stored.tensors, about

    def _make_room(self) -> None:
        entries = shared_pretrainings(self.folder.parent)
        total = sum(entry.size for entry in entries)
        for entry in reversed(entries):  # the longest unused first
            if total <= self.budget:
                return
            if entry.path != self.path and _remove(entry.path):
                total -= entry.size


def shared_pretraining(
    config: RunConfig, phase: Phase, network: Classifier, source: Source, run: RunFolder
) -> SharedPretraining | None:
    """The entry for what a run is going to pre-train; None if it cannot or must not be shared.

    Besides options, data and network, the key has all that the last bits depend on: versions,
    hardware and peerdg's own code. A network of the user's own may compute something else with the
    same layers and weights, so the weights after a first step, taken on a copy, are part of it.

    Args:
        config: The run's options.
        phase: Pre-training.
        network: The network, as it is at the start.
        source: The training images.
        run: The run folder; its manifest has the fingerprint of the training images.
    """
    folder, budget = cache_folder(), bytes_from_environment(BUDGET, MOST_BYTES)
    if not config.share_pretraining or folder is None or budget == 0:
        return None
    if any(map(is_lazy, network.parameters())):
        return None
    first_step = _after_first_step(phase, network, source, config.seed)
    started = run.manifest
    if first_step is None or started is None:
        return None
    device = source.device
    key = {
        "peerdg": [__version__, code_digest()],
        "torch": torch.__version__,
        "hardware": hardware_of(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "data": started.data["train"],
        "network": network_fingerprint(network),
        "seed": config.seed,
        "pretrain": to_dict(phase.settings, unset=True),
        "transform": to_dict(config.transform, unset=True),
        "size": source.size,
        "bf16": phase.bf16,
        "compile": config.compile,
        "first_step": first_step,
    }
    text = json.dumps(key, sort_keys=True)
    return SharedPretraining(folder / FOLDER, config.backbone, text, budget=budget)


def pretrain(
    train: Callable[[], None],
    shared: SharedPretraining,
    network: Classifier,
    run: RunFolder,
    *,
    resumes: bool,
    note: Note,
    stop: StopRequest,
) -> bool:
    """Take the stored pre-training, or train and store it.

    Args:
        train: Trains `network` and records that in `run`; raises if it is stopped.
        shared: The entry.
        network: The network to pre-train.
        run: The run folder.
        resumes: Whether the run goes on with a pre-training of its own; it waits for no other.
        note: Receives a sentence if another run has to be waited for.
        stop: Ends the waiting.

    Returns:
        Whether it was taken from another run.
    """
    with shared.reserved(note, stop, wait=not resumes) as held:
        if not resumes and shared.load(network, run):
            return True
        is_whole = record_start(run, shared, resumes=resumes)
        train()
        if held and is_whole:
            shared.store(network, run)
    return False


def record_start(run: RunFolder, shared: SharedPretraining | None, *, resumes: bool) -> bool:
    """Record that a process trains for an entry; return whether all that trained before it did.

    A run that was stopped goes on with what it has. If it was begun with other code, versions or
    hardware, its weights are not those of the entry to the last bit.
    """
    name = None if shared is None else shared.path.name
    before = {e.get("entry") for e in run.events.read() if e["event"] == _BEGUN}
    is_whole = not resumes or before == {name}
    run.event(_BEGUN, entry=name if is_whole else None)  # once in parts, it stays so
    return is_whole


@dataclass(frozen=True)
class StoredPretraining:
    """One entry.

    Args:
        path: Its folder.
        name: The network it was made with.
        size: Bytes on disk.
        used: When it was last used, in seconds since 1970.
    """

    path: Path
    name: str
    size: int
    used: float


def shared_pretrainings(cache: Path) -> list[StoredPretraining]:
    """Every entry under a cache folder, the last used one first."""
    folder, found = cache / FOLDER, []
    if folder.is_symlink() or not folder.is_dir():
        return []
    for path in folder.iterdir():
        match = _ENTRY.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError):  # another process may have removed it
            size = sum(file.lstat().st_size for file in path.iterdir())
            found.append(StoredPretraining(path, match[1], size, path.stat().st_mtime))
    return sorted(found, key=lambda entry: (-entry.used, entry.path.name))


def clear_pretrainings(cache: Path) -> int:
    """Remove the entries and locks that no run holds at this moment; return how many entries."""
    count = sum(_remove(entry.path) for entry in shared_pretrainings(cache))
    for lock in _locks(cache / FOLDER):  # of runs that were stopped before they stored anything
        _remove(lock.with_suffix(""))
    with contextlib.suppress(OSError):  # there is something else in it, or it is not there
        (cache / FOLDER).rmdir()
    return count


def _locks(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    paths = folder.glob(f"*{_LOCK}")
    return [path for path in paths if _ENTRY.fullmatch(path.name.removesuffix(_LOCK))]


def _remove(path: Path) -> bool:
    """Remove an entry, if it is there, and its lock, unless a run holds it."""
    try:
        with FileLock(_lock_of(path), timeout=0):
            if path.is_dir():
                # Renamed first: a kill must not leave half an entry under its name.
                gone = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-00000000")
                path.rename(gone)
                remove(gone)
            _lock_of(path).unlink(missing_ok=True)
    except (OSError, Timeout, DamagedError):
        return False
    return True


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{_LOCK}")


def _acquire(lock: FileLock, note: Note, stop: StopRequest, *, wait: bool) -> bool:
    """Wait for the lock, or only try; False if a signal asked to stop before it was free."""
    waited = False
    while True:
        try:
            lock.acquire(timeout=0)
            return True
        except Timeout:
            if stop or not wait:
                return False
            if not waited:
                note(
                    "Waiting for another run that makes the same pre-training "
                    "(--no-share-pretraining does not wait)."
                )
                waited = True
            time.sleep(WAITING_SECONDS)


def _tensors(network: Classifier) -> dict[str, Tensor]:
    """All parameters and buffers, also those that a state dict leaves out."""
    return dict(chain(network.named_parameters(), network.named_buffers()))


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _after_first_step(phase: Phase, network: Classifier, source: Source, seed: int) -> str | None:
    """A hash of the weights after one step on a copy; None if the network cannot be copied."""
    key = (phase.name, 0, 0)
    rows = epoch_order(phase.settings, len(source), seed, phase.name, 0)[0]
    try:
        method = ERM(copy.deepcopy(network)).train()
        state = TrainState(phase.name, method, make_optimizers(method, phase.settings))
        set_learning_rate(method, state.optimizers, learning_rate(phase.settings, 0))
        batch = source.batch(rows.to(source.device), seed=seed, key=key)
        train_step(state, batch, rows, guard=Guard(state), seed=seed, key=key, bf16=phase.bf16)
    except (RuntimeError, TypeError, NumericalError):
        return None  # other errors recur in the run itself and are reported there
    return network_fingerprint(method.model)[1]


def _without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def _warn_not_shared(error: Exception) -> None:
    reason = getattr(error, "message", None) or getattr(error, "strerror", None) or error
    warnings.warn(
        f"Pre-training is not shared with other runs: {reason}", PeerdgWarning, stacklevel=3
    )
