"""Cache decoded images: a memory-mapped `.npy` file and a `.json` file per entry.

Entry names contain a hash of everything the content depends on, so a changed file or recipe gets
a new entry. Several processes can write the same entry, because files are renamed into place.
"""

import contextlib
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peerdg.data.domain import Domain, digest
from peerdg.errors import ConfigError, OutputError
from peerdg.files import TEMPORARY, remove, replace_atomically, write_json, writing

_FORMAT = 3
_ENTRY = re.compile(r"(.*)-[0-9a-f]{16}\.(npy|json)")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_MAX_IN_MEMORY = 4 * 2**30
_STALE_AFTER_SECONDS = 24 * 3600  # age at which temporary files are removed
_ROWS_AT_ONCE = 16

Allocate = Callable[[tuple[int, ...]], NDArray[np.uint8]]
# Fills an array from `Allocate`, and returns JSON values to store with it. An optional `"count"`
# is the number of rows to keep.
Fill = Callable[[Allocate], dict[str, Any]]
# Images and their stored values, including a `"digest"` of the pixels.
CachedImages = tuple[Tensor, dict[str, Any]]


def cached_images(name: str, key: Any, fill: Fill) -> CachedImages:
    """Return the images made by `fill`, from the cache if it has an entry for `key`.

    `key` contains everything that the images depend on, as JSON values. `name` is used in file
    names. Without a writable cache folder, the images stay in memory.
    """
    folder = cache_folder()
    if folder is None:
        reason = "there is no home folder"
    else:
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:60]
        text = json.dumps([_FORMAT, key], default=str)
        path = folder / f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        # A damaged entry may raise almost any exception. It is then made again.
        with contextlib.suppress(Exception):
            return _read(path)
        try:
            _remove_temporary(folder, _STALE_AFTER_SECONDS)
            with replace_atomically(path.with_suffix(".npy")) as temporary:
                about = fill(partial(_map_file, temporary))
            images = np.load(path.with_suffix(".npy"), mmap_mode="r")
            about = {"count": len(images), **about}
            about["digest"] = digest(images[: about["count"]])
            write_json(path, about)
            return _read(path)
        except (OSError, OutputError) as error:
            cause = error.__cause__ or error
            reason = f"cannot write to {folder}: {getattr(cause, 'strerror', None) or cause}"
    warnings.warn(
        f"Decoded images are not cached ({reason}), so every run decodes them again. "
        "Set PEERDG_CACHE to a writable folder.",
        stacklevel=3,
    )
    return _in_memory(fill)


def cached_domain(name: str, key: Any, make: Callable[[], Domain]) -> Domain:
    """Return the domain made by `make`, from the cache if it has an entry for `key`."""

    def fill(allocate: Allocate) -> dict[str, Any]:
        domain = make()
        allocate(tuple(domain.images.shape))[:] = domain.images.numpy()
        about = {"name": domain.name, "classes": domain.classes, "paths": domain.paths}
        return {**about, "labels": domain.labels.tolist()}

    images, about = cached_images(name, key, fill)
    return Domain(
        about["name"],
        tuple(about["classes"]),
        images,
        torch.tensor(about["labels"]),
        paths=about["paths"] and tuple(about["paths"]),
    ).with_digest(about["digest"])


def select_rows(domain: Domain, rows: Tensor, *, name: str | None = None) -> Domain:
    """Select rows of a domain. A selection larger than `memory_budget()` is stored in the cache."""
    if len(rows) * domain.images[0].numel() <= memory_budget():
        return domain.subset(rows, name=name)

    def fill(allocate: Allocate) -> dict[str, Any]:
        images = allocate((len(rows), *domain.images.shape[1:]))
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            chunk = rows[start : start + _ROWS_AT_ONCE]
            images[start : start + len(chunk)] = domain.images[chunk].numpy()
        return {}

    key = [domain.fingerprint, hashlib.sha256(rows.contiguous().numpy().data).hexdigest()]
    images, about = cached_images(name or domain.name, key, fill)
    return domain.subset(rows, name=name, images=images).with_digest(about["digest"])


def cache_folder() -> Path | None:
    """Return `$PEERDG_CACHE`, `$XDG_CACHE_HOME/peerdg` or `~/.cache/peerdg`, or None if unknown."""
    if chosen := os.environ.get("PEERDG_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "peerdg"
    try:
        return Path.home() / ".cache" / "peerdg"
    except RuntimeError:  # e.g. a container user without HOME or a passwd entry
        return None


def memory_budget() -> int:
    """Return the maximum size in bytes of a selection held in memory.

    Set by `$PEERDG_MEMORY_BUDGET` (e.g. `8GB`). Default: 4 GiB, but at most a quarter of the RAM.
    """
    budget = os.environ.get("PEERDG_MEMORY_BUDGET", "").strip()
    if budget:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)?", budget, re.IGNORECASE)
        if match is None:
            hint = "Give bytes, or a size such as 8GB."
            raise ConfigError(f"PEERDG_MEMORY_BUDGET='{budget}' is invalid.", hint=hint)
        return int(float(match[1]) * _UNITS[(match[2] or "").upper()])
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not available on every system
        return _MAX_IN_MEMORY
    return min(_MAX_IN_MEMORY, memory // 4)


class CacheEntry(NamedTuple):
    """A cache entry: domain name, size in bytes and modification time."""

    name: str
    size: int
    written: float


def cache_entries(folder: Path) -> list[CacheEntry]:
    """List all entries, newest first."""
    entries: dict[str, CacheEntry] = {}
    for path, name in _files(folder):
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            status, other = path.stat(), entries.get(path.stem, CacheEntry(name, 0, 0))
            written = max(other.written, status.st_mtime)
            entries[path.stem] = CacheEntry(name, other.size + status.st_size, written)
    return sorted(entries.values(), key=lambda entry: -entry.written)


def clear_cache(folder: Path, name: str | None = None) -> None:
    """Remove the entries called `name`, or all entries.

    Files that are not cache entries are left alone.
    """
    for path, own_name in _files(folder):
        if name in (None, own_name):
            with writing(path):
                path.unlink(missing_ok=True)
    if name is None:
        _remove_temporary(folder, 0)


def _files(folder: Path) -> list[tuple[Path, str]]:
    """List the files of all entries with their domain names."""
    matches = {path: _ENTRY.fullmatch(path.name) for path in folder.glob("*")}
    return [(path, match[1]) for path, match in matches.items() if match]


def _read(path: Path) -> CachedImages:
    about = json.loads(path.read_text("utf-8"))
    images = np.load(path.with_suffix(".npy"), mmap_mode="r")[: about["count"]]
    if len(images) != about["count"] or images.dtype != np.uint8:
        raise ValueError("not the array that was written")
    with warnings.catch_warnings():
        # torch has no read-only tensors. Nothing writes to this one.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(images), about


def _map_file(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Create a memory-mapped file.

    Disk space is reserved first, because a full disk would otherwise kill the process.
    """
    images = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return images


def _in_memory(fill: Fill) -> CachedImages:
    arrays: list[NDArray[np.uint8]] = []

    def allocate(shape: tuple[int, ...]) -> NDArray[np.uint8]:
        arrays.append(np.empty(shape, np.uint8))
        return arrays[0]

    about = fill(allocate)
    images = arrays[0][: about.get("count")]
    return torch.from_numpy(images), {**about, "digest": digest(images)}


def _remove_temporary(folder: Path, age: float) -> None:
    """Remove temporary files of killed processes that are at least `age` seconds old."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{TEMPORARY}*"):
            if time.time() - path.stat().st_mtime >= age:
                remove(path)
