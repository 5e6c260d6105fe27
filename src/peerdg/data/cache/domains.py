"""Find or make the cache entry of a domain.

An entry is used only if it is whole, was made for the same key, and its content has the checksum
it was written with; anything else is made again and replaced.
"""

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from peerdg.data.cache.entry import Add, CacheEntry, EntryWriter, MemorySink, read_entry
from peerdg.data.cache.folder import bytes_from_environment, cache_folder, remove_abandoned
from peerdg.data.domain import Domain
from peerdg.errors import DataError, OutputError
from peerdg.files import replace_atomically

_FORMAT = "peerdg-domain-2"
_MOST_IN_MEMORY = 4 * 2**30
_ROWS_AT_ONCE = 16

# Hands every chunk of images to the function it is given; returns the labels and plain values.
Fill = Callable[[Add], tuple[NDArray[np.int64], dict[str, Any]]]


def memory_budget() -> int:
    """Count the bytes up to which images are held in memory; larger domains are mapped.

    `$PEERDG_MEMORY_BUDGET` (bytes, or e.g. `8GB`), else 4 GiB or a quarter of the memory.
    """
    return bytes_from_environment("PEERDG_MEMORY_BUDGET", _usual_budget())


def _usual_budget() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system can say
        return _MOST_IN_MEMORY
    return min(_MOST_IN_MEMORY, memory // 4)


def cached_domain(key: Mapping[str, Any], make: Callable[[], Domain]) -> Domain:
    """Return the domain that `make` gives, from the cache if it was made before for `key`.

    Any number of processes may ask for one entry at once: each writes a file of its own and
    renames it, so the last one wins and all have the same content.

    Args:
        key: All that the content depends on, as plain values: a recipe's version, file sizes and
            times, protocol switches. `key["name"]` becomes the readable part of the file's name.
        make: Decodes the domain; called only if there is no good entry.
    """

    def fill(add: Add) -> tuple[NDArray[np.int64], dict[str, Any]]:
        domain = make()
        add(domain.images.contiguous().numpy())
        about = {"name": domain.name, "classes": domain.classes, "paths": domain.paths}
        return domain.labels.numpy(), about

    return domain_of(cached_entry(key, fill))


def domain_of(entry: CacheEntry, **changes: Any) -> Domain:
    """Make the domain that an entry holds; `changes` are fields that the entry does not decide."""
    about = entry.about
    paths = about.get("paths")
    fields = {
        "name": about["name"],
        "classes": tuple(about["classes"]),
        "paths": None if paths is None else tuple(paths),
        **changes,
    }
    domain = Domain(images=entry.images, labels=entry.labels, **fields)
    domain.__dict__["images_digest"] = entry.images_digest  # known; computing it reads every byte
    return domain


def cached_entry(key: Mapping[str, Any], fill: Fill, *, count: int | None = None) -> CacheEntry:
    """Return the entry made for `key`, or a new one, filled chunk by chunk.

    With a cache the memory needed is that of a few chunks, however many images there are.
    Without one (there is no home, the disk is full or read-only) the images are held in memory.

    Args:
        key: All that the content depends on, as for `cached_domain`.
        fill: Makes the content; called only if there is no good entry.
        count: The most images that will come, if known.
    """
    text = json.dumps({"format": _FORMAT, **key}, sort_keys=True, default=str)
    folder = cache_folder()
    if folder is None:
        _warn_not_kept("there is no home folder")
        return _fill_memory(fill, count)
    path = folder / _entry_name(str(key.get("name", "domain")), text)
    if (entry := _find_entry(path, text)) is not None:
        return entry
    remove_abandoned(folder)
    try:
        _write(path, text, fill)
        # What was just written is read like any other entry, so a failing disk shows at once.
        return read_entry(path, key=text, budget=memory_budget())
    except (OutputError, OSError, KeyError, TypeError, ValueError) as error:
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or str(cause)
        _warn_not_kept(f"cannot write to {folder}: {reason}")
    return _fill_memory(fill, count)


def select_rows(domain: Domain, rows: Tensor, *, name: str | None = None) -> Domain:
    """Take some rows of a domain without using more memory than the budget allows.

    The chosen rows of a domain that is mapped from the cache become a cache entry of their own.
    """
    picked_bytes = len(rows) * domain.images[0].numel()
    if picked_bytes <= memory_budget():
        return domain.subset(rows, name=name)
    labels = domain.labels[rows]

    def fill(add: Add) -> tuple[NDArray[np.int64], dict[str, Any]]:
        for chunk in rows.split(_ROWS_AT_ONCE):
            add(domain.images[chunk].numpy())
        return labels.numpy(), {"name": domain.name, "classes": domain.classes}

    key = {
        "name": name or domain.name,
        "rows_of": domain.fingerprint,
        "rows": hashlib.sha256(rows.contiguous().numpy().data).hexdigest(),
    }
    chosen = rows.tolist()
    return domain_of(
        cached_entry(key, fill, count=len(rows)),
        name=name or domain.name,
        paths=domain.paths and tuple(domain.paths[row] for row in chosen),
        hashes=domain.hashes and tuple(domain.hashes[row] for row in chosen),
        skipped=domain.skipped,
    )


def _find_entry(path: Path, key: str) -> CacheEntry | None:
    """Read the entry in `path`; None if there is none or it cannot be trusted."""
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError, AttributeError, DataError):
        entry = read_entry(path, key=key, budget=memory_budget())
        domain_of(entry)  # refuses labels that do not fit the images
        return entry
    return None


def _write(path: Path, key: str, fill: Fill) -> None:
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        writer = EntryWriter(file)
        labels, about = fill(writer.add)
        writer.finish(labels, {**about, "key": key})


def _fill_memory(fill: Fill, count: int | None) -> CacheEntry:
    sink = MemorySink(count)
    try:
        return sink.entry(*fill(sink.add))
    except MemoryError as error:
        raise DataError(
            "The decoded images do not fit into memory.",
            hint="Set PEERDG_CACHE to a folder with enough room: they are then mapped from there.",
        ) from error


def _warn_not_kept(reason: str) -> None:
    """Use the same words for every entry, so that Python shows them once."""
    warnings.warn(
        f"Decoded images are not kept ({reason}), so every start decodes them again. "
        "Set PEERDG_CACHE to a folder you may write to.",
        stacklevel=3,
    )


def _entry_name(name: str, text: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:60]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
