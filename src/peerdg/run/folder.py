"""The run folder: all files of a run.

    config.toml      everything that decides the run; `peerdg train --config` repeats it
    manifest.json    what it was started with: options, versions, data fingerprints, command
    files.json       the hash of every image file
    images.json      a hash of the pixels of every image that was learnt from or validated on
    metrics.jsonl    losses, policies, accuracies; equal to the last bit in a repeated run
    events.jsonl     starts, stops, seconds, failures
    checkpoint/      the newest two states, to resume from, and images that a method made (pool/)
    snapshots/       the proxy's weights at each evaluation, if asked for
    model/           the deployed model
    profile.json     where the time went, if asked for
    done.json        the run is complete; or failure.json, why it is not

Its status is computed, never stored: lock held means running, `done.json` means done, anything
else can be resumed.
"""

import contextlib
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from peerdg.errors import ConfigError, DamagedError, OutputError
from peerdg.files import (
    TEMPORARY,
    refuse_entry,
    refuse_hard_link,
    remove,
    replace_atomically,
    require_own_files,
    writing,
)
from peerdg.options import read_toml
from peerdg.run.config import RunConfig, refuse_difference, resolve
from peerdg.run.json_lines import JsonLines, check_event, check_metric
from peerdg.run.lock import LOCK, OWNER, FolderLock
from peerdg.run.stored_manifest import read_manifest, refuse_edited_config

Existing = Literal["refuse", "resume", "renew", "overwrite"]
"""What becomes of a run that is there: `"renew"` resumes it, or replaces it if its data changed."""

Status = Literal["running", "done", "failed", "resumable"]

# In a folder without a run: temporary files are of a process killed at its start, or of one that
# just asks.
_OURS = (f"run{LOCK}", f"run{OWNER}", TEMPORARY)


class RunFolder:
    """A run folder, held by this process until `close`.

    Use `RunFolder.open` to take it; the constructor alone only names its parts for reading.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.manifest_file = path / "manifest.json"
        self.files_file = path / "files.json"
        self.images_file = path / "images.json"
        self.checkpoints = path / "checkpoint"
        self.snapshots = path / "snapshots"
        self.model = path / "model"
        self.done_file = path / "done.json"
        self.failure_file = path / "failure.json"
        self.profile_file = path / "profile.json"
        self.metrics = JsonLines(path / "metrics.jsonl", check_metric)
        self.events = JsonLines(path / "events.jsonl", check_event)
        self._lock = FolderLock(path, "run")
        self._config: RunConfig | None = None  # to be written by `begin`; None once it is
        self._renewal: RunConfig | None = None  # for `renew`, if that was allowed

    @classmethod
    def open(cls, path: Path, config: RunConfig, *, existing: Existing = "refuse") -> "RunFolder":
        """Take the folder for a run with `config`.

        Raises:
            OutputError: If it cannot be written, or holds a run and `existing` is `"refuse"`.
            RunInUseError: If another process is training in it.
            ConfigError: If it is to be resumed with other options.
            DamagedError: If it holds a link, pipe or device, a record with a second name, or its
                manifest is damaged.
        """
        config.toml()  # what it cannot hold is refused before the folder is made
        run = cls(path)
        run._refuse_links()
        run._create()
        run._lock.acquire()
        try:
            run._prepare(config, existing)
        except BaseException:
            run.close()
            raise
        return run

    def begin(self) -> None:
        """Start the run, now that everything it needs was found; an old one makes room for it."""
        if self._config is None:
            return
        self._clear()
        with replace_atomically(self.config_file) as temporary:
            temporary.write_text(self._config.toml(), "utf-8")
        self._config = None

    @property
    def is_new(self) -> bool:
        """Whether `begin` is going to start a run here."""
        return self._config is not None

    def change_config(self, config: RunConfig) -> None:
        """Start a new run with `config` in place of the one that the folder was opened with."""
        if self._config is None:
            raise RuntimeError("The run was already started.")
        self._config = config

    def renew(self) -> bool:
        """Start anew because the data has changed, if the folder was opened for that."""
        self._config, self._renewal = self._renewal, None
        if self._config is None:
            return False
        self.begin()
        return True

    @property
    def may_renew(self) -> bool:
        """Whether a change of the data starts the run anew."""
        return self._renewal is not None

    def close(self) -> None:
        """Let other processes have it; a folder in which nothing was begun is left as found."""
        keep = self.holds_run
        self._lock.release(keep_file=keep)
        if keep:
            return
        with contextlib.suppress(OSError):  # it was there before, with something in it
            self.path.rmdir()

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return os.path.lexists(self.config_file)

    @property
    def done(self) -> bool:
        """Whether that run is complete, and not about to be replaced."""
        return self.done_file.exists() and self._config is None

    def status(self) -> Status:
        """The status of the run, from the folder's files."""
        if self.done:
            return "done"
        if self._lock.is_held:
            return "running"
        return "failed" if self.failure_file.exists() else "resumable"

    def event(self, kind: str, **values: Any) -> None:
        """Record something that happened, with the time."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.events.append({"event": kind, "time": now, **values})

    def check_space(self, needed: int) -> None:
        """Refuse to start what cannot be saved.

        Raises:
            OutputError: If fewer than `needed` bytes are free.
        """
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise OutputError(
                f"{self.path} has {free / 1e6:.1f} MB free; the run needs {needed / 1e6:.1f} MB.",
                hint="Free some space, or choose a folder on another disk with --out.",
            )

    def _refuse_links(self) -> None:
        """Before anything is written; in a folder that holds no run only what would be ours."""
        with writing(self.path):  # its name may be too long even to look at it
            if self.holds_run:
                require_own_files(self.path)
            elif self.path.is_dir():
                for part in self.path.iterdir():
                    if part.name.startswith(_OURS):
                        refuse_entry(part)
            for written_in_place in (self.metrics.path, self.events.path, self._lock.file):
                refuse_hard_link(written_in_place)

    def _create(self) -> None:
        with writing(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise OutputError(
                    f"{self.path} is a file, not a folder.", hint="Choose another name with --out."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            # Root may write where the mode forbids it; a probe is the only honest test.
            probe = self.path / f"{TEMPORARY}probe-{os.getpid()}"
            probe.touch()
            probe.unlink(missing_ok=True)  # the run that holds the folder may have tidied it up

    def _prepare(self, config: RunConfig, existing: Existing) -> None:
        if not self.holds_run:
            self._require_empty()
        elif existing == "refuse":
            raise OutputError(
                f"{self.path} already holds a run ({self._progress()}).",
                hint="Continue it with --resume, replace it with --overwrite, or change --out.",
            )
        elif existing == "overwrite":
            self._require_own_run()
        else:
            self._refuse_other_options(config)
            self._renewal = config if existing == "renew" else None
            return
        self._config = config

    def _refuse_other_options(self, config: RunConfig) -> None:
        stored = read_toml(self.config_file)
        complete = resolve(stored)
        started = read_manifest(self.manifest_file)
        if started is not None:
            refuse_edited_config(started, stored, complete, file=self.config_file)
        elif self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            raise DamagedError(
                f"{self.manifest_file} is missing: the options of the run are unknown.",
                hint="Restore it, or start anew with --overwrite.",
            )
        refuse_difference(complete, config)

    def _require_own_run(self) -> None:
        """Replace only what peerdg made: other programs have a config.toml, too."""
        if any(os.path.lexists(file) for file in (self.manifest_file, self.events.path)):
            return
        with contextlib.suppress(ConfigError):
            if {"benchmark", "method"} <= read_toml(self.config_file).keys():
                return
        raise OutputError(
            f"{self.path} is not a run folder: its config.toml is not one of peerdg.",
            hint="Choose a new or empty folder with --out.",
        )

    def _require_empty(self) -> None:
        foreign = [p.name for p in self.path.iterdir() if not p.name.startswith(_OURS)]
        if foreign:
            raise OutputError(
                f"{self.path} is not empty and holds no run (it has '{sorted(foreign)[0]}').",
                hint="Choose a new or empty folder with --out.",
            )

    def _clear(self) -> None:
        for part in (
            self.done_file, self.failure_file, self.metrics.path, self.events.path,
            self.checkpoints, self.snapshots, self.model, self.manifest_file, self.files_file,
            self.images_file,
            self.profile_file, self.path / "report.md",
        ):  # fmt: skip
            remove(part)
        remove(self.config_file)  # last: until here the folder is still recognised as a run

    def _progress(self) -> str:
        return "finished" if self.done else "unfinished"


def read_run_config(path: Path) -> dict[str, Any]:
    """The options a run was started with.

    Raises:
        ConfigError: If `path` is not a run folder, or its config is not one.
        DamagedError: If it holds a link, pipe or device.
    """
    if os.path.lexists(path / "config.toml"):
        require_own_files(path)
    if not (path / "config.toml").is_file():
        raise ConfigError(
            f"{path} is not a run folder: it has no config.toml.",
            hint="Give the folder that `peerdg train --out` made; `peerdg runs` lists them.",
        )
    return read_toml(path / "config.toml")
