"""One process at a time in a folder: a file lock, and beside it a note who holds it."""

import json
import os
import socket
import time
from pathlib import Path

from filelock import FileLock, Timeout

from peerdg.errors import RunInUseError
from peerdg.files import read_text, remove, write_json

LOCK, OWNER = ".lock", ".owner.json"


class FolderLock:
    """The lock of a folder; the system releases it when its process ends, however that happens.

    Args:
        folder: What it protects.
        name: Of the lock file, `NAME.lock`, and the note, `NAME.owner.json`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.file = folder / f"{name}{LOCK}"
        self._owner = folder / f"{name}{OWNER}"
        self._lock = FileLock(self.file, timeout=0)

    def acquire(self) -> None:
        """Take it, and note who has it.

        Raises:
            RunInUseError: If another process holds it, with the name of that process.
        """
        try:
            self._lock.acquire()
        except Timeout as error:
            raise RunInUseError(
                f"{self.folder} is in use{self._describe_owner()}.",
                hint="Wait for it to finish, stop it, or choose another --out folder.",
            ) from error
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%F %T")}
        write_json(self._owner, owner)

    def release(self, *, keep_file: bool = True) -> None:
        """Let other processes have it.

        Args:
            keep_file: Leave the file, which others may be waiting for.
        """
        self._owner.unlink(missing_ok=True)
        if not keep_file:
            remove(self.file)  # while it is held: a file released first may be someone's
        self._lock.release()

    @property
    def is_held(self) -> bool:
        """Whether a process holds it, be it this one."""
        if not self.file.exists():
            return False
        probe = FileLock(self.file, timeout=0)
        try:
            probe.acquire()
        except (Timeout, OSError):
            return True
        probe.release()
        return False

    def _describe_owner(self) -> str:
        # The owner writes its name right after taking the lock; give it a moment.
        for _ in range(10):
            try:
                owner = json.loads(read_text(self._owner))
                return f" by process {owner['pid']} on {owner['host']} since {owner['since']}"
            except (OSError, ValueError, KeyError, TypeError):
                time.sleep(0.05)
        return ""
