"""Files appear whole or not at all, and every failure to write says what to do."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from peerdg.errors import OutputError

TEMPORARY = ".tmp-"


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; when the block ends well it becomes `path`.

    Works for a file or a folder that the block creates there. The temporary file lives in the same
    folder, so the rename stays on one disk; it is removed on any error. A folder that is there
    already is removed first, because the system replaces only empty ones.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync_tree(temporary)
            if path.is_dir():
                remove(path)
            os.replace(temporary, path)
            _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # the reason to raise is the first error, not this one
            remove(temporary)
        raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an `OutputError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {_reason(error)}.", hint=_remedy(error)) from error


@contextlib.contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Give the file that the block writes at `path` the mode of any new file.

    safetensors makes its files 0600, which nobody else in a shared folder could read.
    """
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically."""
    with replace_atomically(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


class NotRegularError(OSError):
    """A link, pipe, device or folder where only a regular file is read."""


def open_regular(path: Path, *, follow_links: bool = False) -> BufferedReader:
    """Open a regular file for reading; never wait for a pipe or read a device.

    The kind is checked on the open file, not on its name, so it cannot change in between.

    Args:
        path: The file.
        follow_links: Accept a link to a regular file. Folders of images may have links; nothing
            in a run or model folder may.

    Raises:
        NotRegularError: If it is anything but a regular file.
        OSError: If it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(errno.ELOOP, "a link, not a regular file", str(path)) from error
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegularError(errno.ENXIO, "not a regular file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, *, limit: int | None = None, follow_links: bool = False) -> str:
    """The UTF-8 text of a regular file.

    Raises:
        NotRegularError: If it is anything but a regular file.
        ValueError: If it has more than `limit` bytes or is not UTF-8.
        OSError: If it cannot be opened.
    """
    with open_regular(path, follow_links=follow_links) as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise ValueError(f"{path} has more than {limit:,} bytes")
        return file.read().decode("utf-8")


def sha256(path: Path, *, follow_links: bool = False) -> str:
    """Hex SHA-256 of a regular file's content."""
    with open_regular(path, follow_links=follow_links) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    """Remove a file or folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync_tree(path: Path) -> None:
    for part in (path, *(path.rglob("*") if path.is_dir() else ())):
        _sync(part)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space and start again; what was saved before is intact."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder you may write to, e.g. --out ~/runs/first."
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return "A file and a folder share this name; choose another one with --out."
    return "Choose another output folder with --out."
