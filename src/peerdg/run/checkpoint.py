"""A checkpoint is a folder without pickle, whole or absent, and every damage to it is noticed.

Files of `checkpoint/1000004000020/`, named by phase, epoch and step:

* `tensors.safetensors`: weights, optimizer, sums of the current epoch
* `state.json`: position, optimizer options, length of the records
* `MANIFEST.json`: size and SHA-256 of both; written last

Images that a method added to the training pool are in `checkpoint/pool/`; `state.json` names them.
"""

import contextlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from peerdg.errors import DamagedError
from peerdg.files import (
    TEMPORARY,
    remove,
    replace_atomically,
    require_real_folder,
    sha256,
    writing,
)
from peerdg.methods.pool import PoolImages
from peerdg.models.stored import save_tensors
from peerdg.run.pool_files import POOL, load_addition, remove_unnamed
from peerdg.schema import conform, read_json, within

TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "MANIFEST.json"
KEEP = 2
PHASES = ("pretrain", "train")


@dataclass(frozen=True)
class _File:
    """A line of `MANIFEST.json`."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Position:
    """`state.json`: where the run was; `peerdg.train.state.TrainState` explains each of them."""

    phase: Literal["pretrain", "train"]
    terms: list[str]
    optimizers: dict[str, list[dict[str, Any]]] | None = None
    optimizer_groups: list[dict[str, Any]] | None = None  # versions without named optimizers
    epoch: int = within(at_least=0, at_most=10**6)
    step: int = within(at_least=0, at_most=10**6)
    metrics_bytes: int = within(at_least=0)
    evaluated: bool = True  # versions without the key never stopped inside an evaluation
    pool: list[str] | None = None  # digests of added images; not in versions without a pool
    followed: dict[str, Any] | None = None
    run: str | None = None  # `stored_manifest.run_identity`; the first versions did not write it


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, read and verified."""

    path: Path
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    additions: tuple[PoolImages, ...] = ()


def save_checkpoint(
    folder: Path, number: int, tensors: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Write checkpoint `number`, then remove all but the newest `KEEP`, and what only they named.

    Images of the pool that `state` names have to be there already.

    Raises:
        DamagedError: If `folder` has become a link: nothing is written or removed through it.
        OutputError: If it cannot be written.
    """
    require_real_folder(folder)
    path = folder / checkpoint_name(number)
    if path.exists():
        with contextlib.suppress(DamagedError):  # then it is written again
            load_checkpoint(path)
            return  # equal numbers mean equal states, up to an evaluation that is done again
    write_checkpoint(path, tensors, state)
    require_real_folder(folder)  # again: writing takes long, and removing must not go elsewhere
    for old in checkpoints(folder)[:-KEEP]:
        # Renamed first: a kill must not leave half a checkpoint under its name.
        gone = old.with_name(f"{TEMPORARY}{old.name}")
        with writing(old):
            old.rename(gone)
        remove(gone)
    try:
        named = {digest for path in checkpoints(folder) for digest in _named_images(path)}
    except DamagedError:  # unknown which images a damaged checkpoint needs: keep all
        return
    remove_unnamed(folder, named)


def write_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and plain values as a folder with checksums.

    Raises:
        OutputError: If it cannot be written.
    """
    with replace_atomically(path) as temporary:
        temporary.mkdir()
        save_tensors(temporary / TENSORS, tensors)
        (temporary / STATE).write_text(json.dumps(state), "utf-8")
        manifest = {name: _describe(temporary / name) for name in (TENSORS, STATE)}
        (temporary / MANIFEST).write_text(json.dumps(manifest), "utf-8")


def checkpoint_name(number: int) -> str:
    """The name of a checkpoint's folder."""
    return f"{number:013d}"


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest undamaged checkpoint, and a sentence about each damaged one passed over.

    Raises:
        DamagedError: If there are checkpoints, but not one is whole.
    """
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
            hint="Restore the folder from a backup, or start anew with --overwrite.",
        )
    return None, problems


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint folder.

    Raises:
        DamagedError: If a file is missing, or does not match its checksum or type.
    """
    try:
        manifest = conform(dict[str, _File], read_json(path / MANIFEST), path / MANIFEST)
        for name in (TENSORS, STATE):
            if name not in manifest or _describe(path / name) != asdict(manifest[name]):
                raise DamagedError(f"{path / name} is not what was saved.")
        tensors, state = load_file(path / TENSORS), read_json(path / STATE)
        additions = tuple(load_addition(path.parent, digest) for digest in _named_images(path))
        return Checkpoint(path=path, tensors=tensors, state=state, additions=additions)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DamagedError(f"Checkpoint {path} is damaged: {error}.") from error


@dataclass(frozen=True)
class _Named:
    """What is needed of `state.json` to find images of the pool."""

    pool: list[str] | None = None


def _named_images(path: Path) -> list[str]:
    """Digests of the pool's images that a checkpoint names, in order."""
    return conform(_Named, read_json(path / STATE), path / STATE).pool or []


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoint folders, oldest first; temporary ones do not count."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.isdecimal())


# Of `replace_atomically`, of a checkpoint about to be removed, and of safetensors itself.
_LEFTOVER = re.compile(
    rf"{re.escape(TEMPORARY)}(.+-\d+-[0-9a-f]{{8}}(-former)?|\d{{13}}|probe-\d+)|\.tmp\w{{6}}"
)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had begun to write, and nothing else of that kind of name."""
    names = ("checkpoint", f"checkpoint/{POOL}", "model", "snapshots")
    for place in (folder, *(folder / name for name in names)):
        for path in place.iterdir() if place.is_dir() else ():
            if _LEFTOVER.fullmatch(path.name):
                remove(path)


def _describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
