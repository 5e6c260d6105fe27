"""Manage the run folder, which contains all files of a run.

    config.toml      all options; `peerdg train --config` repeats the run
    manifest.json    inputs of the run: options, versions, data fingerprints, command
    files.json       hashes of all image files, and of the pixels of source images
    metrics.jsonl    losses, policies, accuracies; bitwise identical in a repeated run
    events.jsonl     starts, stops, seconds, failures
    checkpoint/      the two newest checkpoints, and images made by the method (pool/)
    snapshots/       the trained network's weights at each evaluation (--keep-snapshots)
    model/           the deployed model
    analysis/        figures and numbers of `peerdg analyze`
    profile.json     time per stage in seconds (--profile)
    done.json        results of a complete run, or failure.json with the error of a failed one

The status is computed, not stored. A held lock means running, `done.json` means done, and
anything else can be resumed.
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
from peerdg.options import nearest_path, read_toml
from peerdg.run.config import RunConfig, refuse_difference, resolve
from peerdg.run.manifest import Manifest, read_manifest, refuse_edited_config
from peerdg.run.records import JsonLines

Existing = Literal["refuse", "resume", "renew", "overwrite"]
"""How to treat an existing run. `"renew"` resumes it, or restarts it if its data changed."""

Status = Literal["running", "done", "failed", "resumable"]

LOCK, OWNER = ".lock", ".owner.json"


class FolderLock:
    """Lock a folder with the file `NAME.lock`, and record the owner in `NAME.owner.json`.

    The operating system releases the lock when the process ends.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.file = folder / f"{name}{LOCK}"
        self._owner = folder / f"{name}{OWNER}"
        self._lock = FileLock(self.file, timeout=0)

    def acquire(self, *, wait: bool = False) -> None:
        """Take the lock and record its owner. Raise or wait if another process holds it."""
        try:
            # Another process may hold it for a moment, to see whether the run is in progress.
            self._lock.acquire(timeout=-1 if wait else 0.3)
        except Timeout as error:
            raise RunInUseError(
                f"{self.folder} is in use{self._describe_owner()}.",
                hint="Wait for it to finish, stop it, or choose another --out folder.",
            ) from error
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%F %T")}
        write_json(self._owner, owner)

    def release(self, *, keep_file: bool = True) -> None:
        """Release the lock. `keep_file` leaves the file for processes that wait for the lock."""
        self._owner.unlink(missing_ok=True)
        if not keep_file:
            remove(self.file)  # before the release, after which another process may own it
        self._lock.release()

    @property
    def is_held(self) -> bool:
        """Whether any process holds the lock, including this one."""
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
    """Paths and state of a run folder.

    To read a run, use the constructor. To write, `RunFolder.open` locks the folder until `close`.

    Attributes:
        new_config: Options of the run that `begin` will start, or None.
        renewal: Options for a restart if the data has changed, or None if that is not allowed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.manifest_file = path / "manifest.json"
        self.files_file = path / "files.json"
        self.checkpoints = path / "checkpoint"
        self.snapshots = path / "snapshots"
        self.model = path / "model"
        self.analysis = path / "analysis"
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
        """Lock the folder for a run with `config`. Raise if it is in use or has another run."""
        config.toml()  # before creating the folder: raises for values that TOML cannot store
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
        """Remove the old run, if any, and write the config of the new one."""
        if self.new_config is None:
            return
        self._clear()
        with replace_atomically(self.config_file) as temporary:
            temporary.write_text(self.new_config.toml(), "utf-8")
        self.new_config = None

    def renew(self) -> bool:
        """Restart the run because its data has changed. Return whether that is allowed."""
        self.new_config, self.renewal = self.renewal, None
        is_allowed = self.new_config is not None
        self.begin()
        return is_allowed

    @property
    def manifest(self) -> Manifest | None:
        """Manifest, read on first use. None if it is not written yet."""
        if self._manifest is None and self.manifest_file.exists():
            self._manifest = read_manifest(self.manifest_file)
        return self._manifest

    def write_manifest(self, manifest: Manifest) -> None:
        write_json(self.manifest_file, asdict(manifest))
        self._manifest = manifest

    def update_manifest(self, **values: Any) -> None:
        """Update manifest values that are only known after the start."""
        if self.manifest is not None and (new := replace(self.manifest, **values)) != self.manifest:
            self.write_manifest(new)

    def close(self) -> None:
        """Release the lock. Remove the folder if no run was started in it."""
        keep = self.holds_run
        self._lock.release(keep_file=keep)
        if not keep:
            with contextlib.suppress(OSError):  # the folder is not empty
                self.path.rmdir()

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return os.path.lexists(self.config_file)

    @property
    def done(self) -> bool:
        """Whether the run is complete and not about to be replaced."""
        return self.done_file.exists() and self.new_config is None

    def status(self) -> Status:
        """Compute the status of the run from the folder's files."""
        if self.done:
            return "done"
        if self._lock.is_held:
            return "running"
        return "failed" if self.failure_file.exists() else "resumable"

    def require_present(self) -> None:
        """Raise if the folder was removed or renamed, because writing would create it again."""
        if not self.holds_run:
            hint = "If it was renamed, pass its new name to `peerdg resume`."
            raise OutputError(f"{self.path} was removed or renamed during training.", hint=hint)

    def event(self, kind: str, **values: Any) -> None:
        """Append a timestamped event to `events.jsonl`."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.events.append({"event": kind, "time": now, **values})

    def _create(self, existing: Existing) -> None:
        with writing(self.path):  # converts errors, e.g. a name that is too long
            if self.path.exists() and not self.path.is_dir():
                raise OutputError(
                    f"{self.path} is a file, not a folder.", hint="Choose another name with --out."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            self._require_own(existing)
            refuse_links(self.path)
            # The file mode does not restrict root, so test by writing a file.
            probe = self.path / f"{TEMPORARY}probe-{os.getpid()}"
            probe.touch()
            probe.unlink(missing_ok=True)  # the process that holds the lock may have removed it

    def _prepare(self, config: RunConfig, existing: Existing) -> None:
        if not self.holds_run or existing == "overwrite":
            self.new_config = config
            return
        if existing == "refuse":
            hint = "Replace it with --overwrite, or change --out."
            if not self.done:
                hint = "Continue it with --resume, replace it with --overwrite, or change --out."
            kind = "a finished" if self.done else "an unfinished"
            raise OutputError(f"{self.path} already holds {kind} run.", hint=hint)
        stored = resolve(read_toml(self.config_file))
        if self.manifest is not None:
            refuse_edited_config(self.manifest, stored, file=self.config_file)
        elif self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            raise DamagedError(
                f"{self.manifest_file} is missing, so the options of the run are unknown.",
                hint="Restore it, or start again with --overwrite.",
            )
        refuse_difference(stored, config)
        self.renewal = config if existing == "renew" else None

    def _require_own(self, existing: Existing) -> None:
        """Reject folders of other programs, which may also contain a config.toml or a model."""
        # Temporary files were left by a killed process, or belong to one that probes the folder.
        own = (f"run{LOCK}", f"run{OWNER}", TEMPORARY)
        foreign = sorted(p.name for p in self.path.iterdir() if not p.name.startswith(own))
        is_run = self.holds_run
        if is_run and existing == "overwrite":
            is_run = self.manifest_file.exists() or self.events.path.exists()
            with contextlib.suppress(ConfigError):
                is_run = is_run or {"benchmark", "method"} <= read_toml(self.config_file).keys()
        if foreign and not is_run:
            raise OutputError(
                f"{self.path} is not empty and not a run folder (it contains '{foreign[0]}').",
                hint="Choose a new or empty folder with --out.",
            )

    def _clear(self) -> None:
        # Remove the config last. Until then the folder is recognized as a run.
        for path in (
            *(self.done_file, self.failure_file, self.profile_file, self.path / "report.html"),
            *(self.metrics.path, self.events.path, self.checkpoints, self.snapshots, self.model),
            *(self.analysis, self.path / "tensorboard"),
            *(self.manifest_file, self.files_file, self.config_file),
        ):
            remove(path)
        self._manifest = None


def read_run_config(path: Path) -> dict[str, Any]:
    """Read the `config.toml` of a run folder. Raise an error if the folder contains links."""
    if not (path / "config.toml").is_file():
        reason = "it has no config.toml" if path.exists() else "it does not exist"
        hint = nearest_path(path, holding="config.toml") or "Pass a folder of `peerdg train --out`."
        hint += " `peerdg runs` lists them."
        raise ConfigError(f"{path} is not a run folder: {reason}.", hint=hint)
    refuse_links(path)
    return read_toml(path / "config.toml")
