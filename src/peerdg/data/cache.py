"""Decoded images on disk, so that only the first start of a data set pays for decoding it.

An entry is one safetensors file. It is used only if it is whole, was made for the same key, and
its content has the checksum it was written with; anything else is made again and replaced.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from peerdg.data.domain import Domain
from peerdg.errors import DataError, OutputError
from peerdg.files import replace_atomically, usual_mode

_FORMAT = "peerdg-domain-1"


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


def cached_domain(key: Mapping[str, Any], make: Callable[[], Domain]) -> Domain:
    """The domain that `make` gives, from the cache if it was made before for the same `key`.

    Any number of processes may ask for one entry at once: each writes a file of its own and
    renames it, so the last one wins and all have the same content.

    Args:
        key: All that the content depends on, as plain values: a recipe's version, file sizes and
            times, protocol switches. `key["name"]` becomes the readable part of the file's name.
        make: Decodes the domain; called only if there is no good entry.
    """
    text = json.dumps({"format": _FORMAT, **key}, sort_keys=True, default=str)
    folder = cache_folder()
    path = None if folder is None else folder / _entry_name(str(key.get("name", "domain")), text)
    if path is not None and (domain := _read(path, text)) is not None:
        return domain
    domain = make()
    if path is None:
        _warn_not_kept("there is no home folder")
        return domain
    try:
        _write(path, text, domain)
    except (OutputError, SafetensorError, OSError) as error:
        cause = error.__cause__ or error
        reason = getattr(cause, "strerror", None) or str(cause)
        _warn_not_kept(f"cannot write to {folder}: {reason}")
    return domain


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


def _write(path: Path, key: str, domain: Domain) -> None:
    about = json.dumps(
        {
            "key": key,
            "name": domain.name,
            "classes": domain.classes,
            "paths": domain.paths,
            "fingerprint": domain.fingerprint,
        }
    )
    tensors = {"images": domain.images.contiguous(), "labels": domain.labels.contiguous()}
    with replace_atomically(path) as temporary, usual_mode(temporary):
        save_file(tensors, temporary, {"about": about, "sha256": _sha256(about)})


def _read(path: Path, key: str) -> Domain | None:
    """The entry's domain, or None if there is no entry or it cannot be trusted."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            about = json.loads(metadata["about"])
            if metadata["sha256"] != _sha256(metadata["about"]) or about["key"] != key:
                return None
            domain = Domain(
                name=about["name"],
                classes=tuple(about["classes"]),
                # Copies: a mapped file that someone truncates later would kill the process.
                images=file.get_tensor("images").clone(),
                labels=file.get_tensor("labels").clone(),
                paths=None if about["paths"] is None else tuple(about["paths"]),
            )
    except (OSError, SafetensorError, DataError, KeyError, TypeError, ValueError):
        return None
    # Computing the fingerprint reads every byte; the domain keeps it for the run's manifest.
    return domain if domain.fingerprint == about["fingerprint"] else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
