"""The run folder: all files of a run.

    config.toml      everything that decides the run; `peerdg train --config` repeats it
    manifest.json    what it was started with: options, versions, data fingerprints, command
    files.json       hashes of every image file, and of the pixels of the source's images
    metrics.jsonl    losses, policies, accuracies; equal to the last bit in a repeated run
    events.jsonl     starts, stops, seconds, failures
    checkpoint/      the newest two states, to resume from, and images that a method made (pool/)
    snapshots/       the trained network's weights at each evaluation, if asked for
    model/           the deployed model
    profile.json     where the time went, if asked for
    done.json        the run is complete; or failure.json, why it is not

The status is computed, never stored: lock held means running, `done.json` means done, anything
else can be resumed.
"""

import contextlib
import os
import socket
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from peerdg.errors import ConfigError, DamagedError, OutputError, RunInUseError
from peerdg.files import (
    TEMPORARY,
    read_json,
    reading,
    refuse_links,
    remove,
    replace_atomically,
    write_json,
    writing,
)
from peerdg.options import read_toml
from peerdg.run.config import RunConfig, refuse_difference, resolve
from peerdg.run.manifest import Manifest, read_manifest, refuse_edited_config
from peerdg.run.records import JsonLines

Existing = Literal["refuse", "resume", "renew", "overwrite"]
"""What happens to an existing run: `"renew"` resumes it, or restarts it if its data changed."""

Status = Literal["running", "done", "failed", "resumable"]

LOCK, OWNER = ".lock", ".owner.json"


class FolderLock:
    """A file lock, `NAME.lock`, with a note who holds it, `NAME.owner.json`.

    The system releases it when its process ends.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.file = folder / f"{name}{LOCK}"
        self._owner = folder / f"{name}{OWNER}"
        self._lock = FileLock(self.file, timeout=0)

    def acquire(self) -> None:
        """Take the lock and note who has it. Refuse if another process holds it."""
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
        """Release the lock. With `keep_file`, leave its file: other processes may wait for it."""
        self._owner.unlink(missing_ok=True)
        if not keep_file:
            remove(self.file)  # while it is held: after the release it may belong to another
        self._lock.release()

    @property
    def is_held(self) -> bool:
        """Whether a process holds it, this one included."""
        if not self.file.exists():
            return False
        try:
            with FileLock(self.file, timeout=0):
                return False
        except (Timeout, OSError):
            return True

    def _describe_owner(self) -> str:
        with contextlib.suppress(DamagedError), reading(self._owner):
            owner = read_json(self._owner)
            return f" by process {owner['pid']} on {owner['host']} since {owner['since']}"
        return ""


class RunFolder:
    """A run folder, held by this process until `close`.

    Use `RunFolder.open` to lock it. The constructor alone only names its parts for reading.

    Attributes:
        new_config: Options of the run that `begin` is going to start here. None if there is none.
        renewal: Options of the run that starts if the data has changed, if that is allowed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.manifest_file = path / "manifest.json"
        self.files_file = path / "files.json"
        self.checkpoints = path / "checkpoint"
        self.snapshots = path / "snapshots"
        self.model = path / "model"
        self.done_file = path / "done.json"
        self.failure_file = path / "failure.json"
        self.profile_file = path / "profile.json"
        self.metrics = JsonLines(path / "metrics.jsonl", "kind", "phase", "epoch")
        self.events = JsonLines(path / "events.jsonl", "event")
        self._lock = FolderLock(path, "run")
        self._manifest: Manifest | None = None
        self.new_config: RunConfig | None = None
        self.renewal: RunConfig | None = None

    @classmethod
    def open(cls, path: Path, config: RunConfig, *, existing: Existing = "refuse") -> "RunFolder":
        """Lock the folder for a run with `config`, or refuse: it is in use, or of another run."""
        config.toml()  # refuses values that the file cannot hold, before the folder is made
        run = cls(path)
        run._create(existing)
        run._lock.acquire()
        try:
            run._prepare(config, existing)
        except BaseException:
            run.close()
            raise
        return run

    def begin(self) -> None:
        """Start a new run, after everything it needs was found. An old one is removed."""
        if self.new_config is None:
            return
        self._clear()
        with replace_atomically(self.config_file) as temporary:
            temporary.write_text(self.new_config.toml(), "utf-8")
        self.new_config = None

    def renew(self) -> bool:
        """Start again because the data has changed, if the folder was opened for that."""
        self.new_config, self.renewal = self.renewal, None
        is_allowed = self.new_config is not None
        self.begin()
        return is_allowed

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, read once. None if there is none yet."""
        if self._manifest is None and self.manifest_file.exists():
            self._manifest = read_manifest(self.manifest_file)
        return self._manifest

    def write_manifest(self, manifest: Manifest) -> None:
        write_json(self.manifest_file, asdict(manifest))
        self._manifest = manifest

    def update_manifest(self, **values: Any) -> None:
        """Change values of the manifest, such as the networks that only the method can name."""
        if self.manifest is not None and (new := replace(self.manifest, **values)) != self.manifest:
            self.write_manifest(new)

    def close(self) -> None:
        """Release the lock. A folder in which no run was started is removed again."""
        keep = self.holds_run
        self._lock.release(keep_file=keep)
        if not keep:
            with contextlib.suppress(OSError):  # the folder existed before, with something in it
                self.path.rmdir()

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return os.path.lexists(self.config_file)

    @property
    def done(self) -> bool:
        """Whether that run is complete, and not about to be replaced."""
        return self.done_file.exists() and self.new_config is None

    def status(self) -> Status:
        """Compute the status of the run from the folder's files."""
        if self.done:
            return "done"
        if self._lock.is_held:
            return "running"
        return "failed" if self.failure_file.exists() else "resumable"

    def event(self, kind: str, **values: Any) -> None:
        """Record an event with the time."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.events.append({"event": kind, "time": now, **values})

    def _create(self, existing: Existing) -> None:
        with writing(self.path):  # the name may be too long even to look at it
            if self.path.exists() and not self.path.is_dir():
                raise OutputError(
                    f"{self.path} is a file, not a folder.", hint="Choose another name with --out."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self._require_own(existing)
            refuse_links(self.path)
            # Root may write where the mode forbids it. Only a probe shows whether writing works.
            probe = self.path / f"{TEMPORARY}probe-{os.getpid()}"
            probe.touch()
            probe.unlink(missing_ok=True)  # the process that holds the folder may have removed it

    def _prepare(self, config: RunConfig, existing: Existing) -> None:
        if not self.holds_run or existing == "overwrite":
            self.new_config = config
            return
        if existing == "refuse":
            raise OutputError(
                f"{self.path} already holds {'a finished' if self.done else 'an unfinished'} run.",
                hint="Continue it with --resume, replace it with --overwrite, or change --out.",
            )
        stored = resolve(read_toml(self.config_file))
        if self.manifest is not None:
            refuse_edited_config(self.manifest, stored, file=self.config_file)
        elif self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            raise DamagedError(
                f"{self.manifest_file} is missing: the options of the run are unknown.",
                hint="Restore it, or start again with --overwrite.",
            )
        refuse_difference(stored, config)
        self.renewal = config if existing == "renew" else None

    def _require_own(self, existing: Existing) -> None:
        """Refuse the folder of another program, which may have a config.toml and a model, too."""
        # Temporary files belong to a process that was killed, or that just probes the folder.
        own = (f"run{LOCK}", f"run{OWNER}", TEMPORARY)
        foreign = sorted(p.name for p in self.path.iterdir() if not p.name.startswith(own))
        is_run = self.holds_run
        if is_run and existing == "overwrite":
            is_run = self.manifest_file.exists() or self.events.path.exists()
            with contextlib.suppress(ConfigError):
                is_run = is_run or {"benchmark", "method"} <= read_toml(self.config_file).keys()
        if foreign and not is_run:
            raise OutputError(
                f"{self.path} is not empty and holds no run (it has '{foreign[0]}').",
                hint="Choose a new or empty folder with --out.",
            )

    def _clear(self) -> None:
        # The config last: until then the folder is still recognized as a run.
        for path in (
            *(self.done_file, self.failure_file, self.profile_file, self.path / "report.md"),
            *(self.metrics.path, self.events.path, self.checkpoints, self.snapshots, self.model),
            *(self.manifest_file, self.files_file, self.config_file),
        ):
            remove(path)
        self._manifest = None


def read_run_config(path: Path) -> dict[str, Any]:
    """Read the options that a run was started with, from a run folder without links."""
    if not (path / "config.toml").is_file():
        raise ConfigError(
            f"{path} is not a run folder: it has no config.toml.",
            hint="Give the folder that `peerdg train --out` made. `peerdg runs` lists them.",
        )
    refuse_links(path)
    return read_toml(path / "config.toml")
