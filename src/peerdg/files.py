"""Write files atomically and read them back, with errors that suggest a fix."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peerdg.errors import DamagedError, OutputError, PeerdgError
from peerdg.terminal import one_line, visible

TEMPORARY = ".tmp-"
RESTORE = "Restore it from a backup, or copy it again from its origin."


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` that becomes `path` if the block succeeds.

    The block must create a file or a folder there, which is removed on any error.
    """
    require_replaceable(path)
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync(temporary, *temporary.rglob("*"))
            former = temporary.with_name(f"{temporary.name}-former")
            if path.is_dir():  # os.replace only replaces empty folders
                if not temporary.is_dir():
                    raise IsADirectoryError(errno.EISDIR, "it is a folder")
                path.rename(former)
            os.replace(temporary, path)
            _sync(path.parent)
            remove(former)
    except BaseException:
        with contextlib.suppress(OSError):  # raise the original error, not this one
            remove(temporary)
        raise


def require_replaceable(path: Path) -> None:
    """Reject links, pipes, sockets and devices, so `-o /dev/null` does not replace a device."""
    with writing(path):
        if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
            raise OutputError(
                f"Cannot write {visible(str(path))}: it is a link or a device.",
                hint="Choose another name.",
            )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an `OSError` into an `OutputError` that names `path` and suggests a fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"Cannot write {path}: {reason}.", hint=_remedy(error)) from error


@contextlib.contextmanager
def reading(path: Path, *, hint: str = RESTORE) -> Iterator[None]:
    """Convert any failure to read a stored file into a `DamagedError` that names `path`."""
    try:
        yield
    except PeerdgError:
        raise
    except Exception as error:
        reason = visible(f"{type(error).__name__}: {one_line(error)}")
        raise DamagedError(f"{visible(str(path))} is damaged: {reason}.", hint=hint) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON."""
    with replace_atomically(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_json(path: Path, *, format: int | None = None, hint: str = RESTORE) -> Any:
    """Read a JSON file that peerdg wrote. If `format` is given, its `"format"` must match."""
    with reading(path, hint=hint):
        value = json.loads(path.read_text("utf-8"))
        if format is not None and value["format"] != format:
            raise DamagedError(
                f"{visible(str(path))} has format {value['format']!r}. This version of peerdg "
                f"reads format {format}.",
                hint="Use the version of peerdg that wrote it.",
            )
    return value


def refuse_links(folder: Path) -> None:
    """Reject symbolic links in a run or model folder. Following one could write outside of it."""
    # os.walk skips folders that a running process removes in the meantime.
    for parent, folders, files in os.walk(folder):
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            if os.path.islink(path):
                raise DamagedError(
                    f"{visible(path)} is a symbolic link.",
                    hint="Run and model folders must not contain links. Remove it.",
                )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Remove a file or folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(*paths: Path) -> None:
    if len(paths) > 1000 and sys.platform == "linux":
        os.sync()  # waits on Linux, and saves minutes compared to one fsync per file
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space and start again. Everything saved so far is intact."
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return "There is a file where a folder is needed, or vice versa. Choose another --out."
    return "Choose a folder that you can write to, e.g. --out ~/runs/first."
