"""Decoded images on disk, so that only the first start of a data set pays for decoding it.

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

from peerdg.data.domain import Domain
from peerdg.data.entry import Add, Entry, EntryWriter, MemorySink, read_entry
from peerdg.data.leftovers import remove_leftovers
from peerdg.errors import ConfigError, DataError, OutputError
from peerdg.files import replace_atomically

FORMAT = "peerdg-domain-2"
_MOST_IN_MEMORY = 4 * 2**30
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

# Hands every chunk of images to the function it is given; returns the labels and plain values.
Fill = Callable[[Add], tuple[NDArray[np.int64], dict[str, Any]]]


def cache_folder() -> Path | None:
    """`$PEERDG_CACHE`, `$XDG_CACHE_HOME/peerdg` or `~/.cache/peerdg`; None without a home."""
    if chosen := os.environ.get("PEERDG_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "peerdg"
    try:
        return Path.home() / ".cache" / "peerdg"
    except RuntimeError:  # a container's user without HOME and without an entry in passwd
        return None


def memory_budget() -> int:
    """Bytes up to which a domain's images are held in memory; larger ones are mapped.

    `$PEERDG_MEMORY_BUDGET` (bytes, or e.g. `8GB`), else 4 GiB or a quarter of the memory.
    """
    given = os.environ.get("PEERDG_MEMORY_BUDGET", "").strip()
    if given:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)?", given, re.IGNORECASE)
        if match is None:
            raise ConfigError(
                f"PEERDG_MEMORY_BUDGET is '{given}'.", hint="Give bytes, or a size such as 8GB."
            )
        return int(float(match[1]) * _UNITS[(match[2] or "").upper()])
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system can say
        return _MOST_IN_MEMORY
    return min(_MOST_IN_MEMORY, memory // 4)


def cached_domain(key: Mapping[str, Any], make: Callable[[], Domain]) -> Domain:
    """The domain that `make` gives, from the cache if it was made before for the same `key`.

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


def domain_of(entry: Entry, **changes: Any) -> Domain:
    """The domain that an entry holds; `changes` are fields that the entry does not decide."""
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


def cached_entry(key: Mapping[str, Any], fill: Fill, *, count: int | None = None) -> Entry:
    """The entry made for `key`, or a new one, filled chunk by chunk.

    With a cache the memory needed is that of a few chunks, however many images there are.
    Without one (there is no home, the disk is full or read-only) the images are held in memory.

    Args:
        key: All that the content depends on, as for `cached_domain`.
        fill: Makes the content; called only if there is no good entry.
        count: The most images that will come, if known.
    """
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True, default=str)
    folder = cache_folder()
    if folder is None:
        _warn_not_kept("there is no home folder")
        return _fill_memory(fill, count)
    path = folder / _entry_name(str(key.get("name", "domain")), text)
    if (entry := find_entry(path, text)) is not None:
        return entry
    remove_leftovers(folder)
    try:
        _write(path, text, fill)
        # What was just written is read like any other entry, so a failing disk shows at once.
        return read_entry(path, key=text, budget=memory_budget())
    except (OutputError, OSError, KeyError, TypeError, ValueError) as error:
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or str(cause)
        _warn_not_kept(f"cannot write to {folder}: {reason}")
    return _fill_memory(fill, count)


def find_entry(path: Path, key: str) -> Entry | None:
    """The entry in `path`, or None if there is none or it cannot be trusted."""
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


def _fill_memory(fill: Fill, count: int | None) -> Entry:
    sink = MemorySink(count)
    try:
        return sink.entry(*fill(sink.add))
    except MemoryError as error:
        raise DataError(
            "The decoded images do not fit into memory.",
            hint="Set PEERDG_CACHE to a folder with enough room: they are then mapped from there.",
        ) from error


def _warn_not_kept(reason: str) -> None:
    """The same words for every entry, so that Python shows them once."""
    warnings.warn(
        f"Decoded images are not kept ({reason}), so every start decodes them again. "
        "Set PEERDG_CACHE to a folder you may write to.",
        stacklevel=3,
    )


def _entry_name(name: str, text: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:60]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.safetensors"
