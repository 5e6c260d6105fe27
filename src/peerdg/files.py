"""Files appear whole or not at all; write errors carry a hint."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any

from peerdg.errors import DamagedError, OutputError
from peerdg.terminal import visible

TEMPORARY = ".tmp-"
_MANY = 1_000  # files and folders that are not synchronised one by one


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; when the block ends well it becomes `path`.

    Works for a file or a folder that the block creates there. The temporary file lives in the same
    folder, so the rename stays on one disk; it is removed on any error. A folder that is there
    already is renamed first, because the system replaces only empty ones.

    Raises:
        OutputError: If it cannot be written, or `path` is a link, pipe, socket or device.
    """
    require_replaceable(path)
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync_tree(temporary)
            former = temporary.with_name(f"{temporary.name}-former")
            if path.is_dir() and not path.is_symlink():
                path.rename(former)
            os.replace(temporary, path)
            _sync(path.parent)
            remove(former)
    except BaseException:
        with contextlib.suppress(OSError):  # the reason to raise is the first error, not this one
            remove(temporary)
        raise


def require_replaceable(path: Path) -> None:
    """Refuse to write where a link, pipe, socket or device is.

    A rename onto it would replace it: a device would be lost to the whole system, and the file
    that a link points to would stay as it was.

    Raises:
        OutputError: If `path` is there and is neither a regular file nor a folder.
    """
    with writing(path):
        kind = _special_kind(path)
    if kind is not None:
        raise OutputError(
            f"Cannot write {visible(str(path))}: it is {kind}, not a regular file.",
            hint="Choose another name; it was left as it is.",
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an error that names `path`.

    Raises:
        DamagedError: If a link, pipe or device stands where a file is written.
        OutputError: If it cannot be written for any other reason.
    """
    try:
        yield
    except NotRegularError as error:
        raise DamagedError(f"{path} is {_reason(error)}.", hint=_OWN_FILES) from error
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {_reason(error)}.", hint=_remedy(error)) from error


@contextlib.contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Give the file that the block writes at `path` the mode of any new file.

    safetensors makes its files 0600, which other users of a shared folder could not read.
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
    descriptor = _open_regular(path, flags if follow_links else flags | os.O_NOFOLLOW)
    return os.fdopen(descriptor, "rb")


def open_for_append(path: Path) -> BufferedRandom:
    """Open a regular file to read, append and cut; make it if it is not there.

    Raises:
        NotRegularError: If it is a link or anything else but a regular file, or has a second name
            (a hard link), under which it would change as well.
        OSError: If it cannot be opened.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = _open_regular(path, flags)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise NotRegularError(errno.EMLINK, _HARD_LINK, str(path))
    return os.fdopen(descriptor, "r+b")


def _open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file; its kind is checked after it is open."""
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(errno.ELOOP, "a link, not a regular file", str(path)) from error
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a socket or a folder
            raise NotRegularError(error.errno, "not a regular file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def require_own_files(folder: Path) -> None:
    """Refuse a run or model folder with anything in it but regular files and folders.

    A link would have peerdg read or write outside the folder; a pipe or device would keep it
    waiting. The folder itself may be reached through links.

    Raises:
        DamagedError: With the first such entry.
    """
    folders = [folder]
    while folders:
        place = folders.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif not entry.is_file(follow_symlinks=False):
                        refuse_entry(Path(entry.path))
        except FileNotFoundError:  # a temporary folder of the process that writes there
            continue
        except OSError as error:
            raise DamagedError(f"{place} cannot be read: {_reason(error)}.") from error


def refuse_entry(path: Path) -> None:
    """Refuse a link, pipe, device or socket in a run or model folder.

    Raises:
        DamagedError: If `path` is there and is one of these.
    """
    kind = _special_kind(path)
    if kind is not None:
        raise DamagedError(f"{visible(str(path))} is {kind}, not a regular file.", hint=_OWN_FILES)


def _special_kind(path: Path) -> str | None:
    """What `path` is; None for a regular file, a folder, and if nothing is there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return next((name for test, name in _KINDS.items() if test(mode)), "a special file")


def require_real_folder(path: Path) -> None:
    """Refuse anything but a folder at `path`, such as a link to one; it may also not exist yet.

    Raises:
        DamagedError: If `path` is there and is no folder of its own.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        kind = "a link" if stat.S_ISLNK(mode) else "not a folder"
        raise DamagedError(f"{visible(str(path))} is {kind}.", hint=_OWN_FILES)


def refuse_hard_link(path: Path) -> None:
    """Refuse a file that is written in place and has a second name, maybe outside the folder.

    Files that are only read, or replaced atomically, may be hard links: their other name keeps
    its content.

    Raises:
        DamagedError: If `path` is such a file.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise DamagedError(f"{visible(str(path))} is {_HARD_LINK}.", hint=_OWN_FILES)


_HARD_LINK = "a hard link: the same file has another name, under which it would change too"
_KINDS = {
    stat.S_ISLNK: "a link",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}
_OWN_FILES = (
    "Run and model folders hold files of their own only: remove it, or copy the folder again "
    "from its origin."
)


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
    parts = [path, *(path.rglob("*") if path.is_dir() else ())]
    if len(parts) > _MANY and sys.platform == "linux":
        os.sync()  # waits, on Linux; one by one, ten thousands of files or folders take minutes
        return
    for part in parts:
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
