"""Manage the folder of a bench.

    bench.toml       methods, seeds and options, in the format of `peerdg bench --plan`
    runs/            a run folder per seed, for each method or group of methods that share a run
    combined/        models combined from several runs
    report.md        table, figures and records, written at the end of each call

Several processes can work on one bench, also on several machines with a shared disk. They lock the
folder only to plan and to report. The lock of each run ensures that one process trains it. The
status of runs is read from their folders.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from peerdg.benches.plan import Plan, PlannedRun, SharedRun
from peerdg.benches.rows import RecordedRows
from peerdg.errors import ConfigError, DamagedError, OutputError, PeerdgError, RunInUseError
from peerdg.files import TEMPORARY, refuse_links, remove, replace_atomically, writing
from peerdg.models.stored import read_description
from peerdg.report.runs import read_evaluations
from peerdg.run.config import refuse_difference, resolve
from peerdg.run.folder import LOCK, OWNER, FolderLock, RunFolder, read_run_config

_OURS = (f"bench{LOCK}", f"bench{OWNER}", TEMPORARY)


class BenchFolder:
    """The folder of a bench.

    Args:
        path: Path of the folder.
        until: Epoch at which a run counts as complete. Default: the last.
        recorded: Rows from earlier benches, which are not trained again.
    """

    def __init__(
        self, path: Path, *, until: int | None = None, recorded: RecordedRows | None = None
    ) -> None:
        self.path = path
        self.until = until
        self.recorded = recorded or RecordedRows()
        self.plan_file = path / "bench.toml"
        self.runs = path / "runs"
        self.combined = path / "combined"
        self._lock = FolderLock(path, "bench")

    @contextlib.contextmanager
    def locked(self, plan: Plan, *, overwrite: bool = False) -> Iterator[None]:
        """Lock the folder of a new or continued bench with `plan` inside the block.

        Wait if another process plans or reports. Remove the folder if no bench was started in it.
        """
        with writing(self.path):
            if self.holds_bench:
                refuse_links(self.path)
            elif self.path.exists():
                for entry in self.path.iterdir():
                    if not entry.name.startswith(_OURS):
                        raise OutputError(
                            f"{self.path} is not empty and is not a bench (found '{entry.name}').",
                            hint="Choose a new or empty folder with --out.",
                        )
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock.acquire(wait=True)
        try:
            if overwrite:
                self._clear()
            self.check(plan)
            yield
        finally:
            keep = self.holds_bench
            self._lock.release(keep_file=keep)
            if not keep:
                with contextlib.suppress(OSError):  # not empty: it existed before
                    self.path.rmdir()

    @property
    def holds_bench(self) -> bool:
        """Whether a bench was started here."""
        return os.path.lexists(self.plan_file)

    def run_folder(self, run: PlannedRun) -> Path:
        return self.runs / run.name

    def combined_folder(self, group: SharedRun, seed: int) -> Path:
        return self.combined / group.result(seed)

    def check(self, plan: Plan) -> None:
        """Refuse to continue runs that were started with different options."""
        for run in plan.runs:
            folder = self.run_folder(run)
            if not RunFolder(folder).holds_run:
                continue
            try:
                refuse_difference(resolve(read_run_config(folder)), run.config)
            except ConfigError as error:
                raise ConfigError(
                    f"{folder} is not a run of this bench. {error.message}",
                    hint="Give the original options, or choose another --out folder. `peerdg bench "
                    "--overwrite` starts again.",
                ) from error

    def write_plan(self, plan: Plan) -> None:
        """Write methods, seeds and options as a plan file."""
        variants = plan.options.get("variant", {})
        options = {key: value for key, value in plan.options.items() if key != "variant"}
        tables = {"methods": plan.methods, "seeds": plan.seeds, "options": options}
        with replace_atomically(self.plan_file) as temporary:
            text = tomli_w.dumps(_storable({**tables, "variant": variants}))
            temporary.write_text(text, "utf-8")

    def begin(self, run: PlannedRun) -> Path:
        """Create the folder of a run with its `config.toml` if needed, and return it."""
        folder = self.run_folder(run)
        if not RunFolder(folder).holds_run:
            with replace_atomically(folder / "config.toml") as temporary:
                temporary.write_text(run.config.toml(), "utf-8")
        return folder

    def is_done(self, run: PlannedRun) -> bool:
        """Whether a run is complete, here or in the records of an earlier bench."""
        return self.recorded.has(run.group, run.bench_seed) or self.is_trained(run)

    def is_trained(self, run: PlannedRun) -> bool:
        """Whether a run is complete in its folder."""
        folder = RunFolder(self.run_folder(run))
        if folder.done or self.until is None or not folder.holds_run:
            return folder.done
        try:
            return any(r["epoch"] == self.until for r in read_evaluations(folder))
        except PeerdgError:
            return False  # resuming the run reports the problem

    def has_result(self, group: SharedRun, seed: int) -> bool:
        """Whether the results of a seed are here or in the records of an earlier bench."""
        return self.recorded.has(group, seed) or self.has_trained(group, seed)

    def has_trained(self, group: SharedRun, seed: int) -> bool:
        """Whether the run or combined model of a seed is complete here.

        A combined model counts if it was evaluated and made from the current weights of its runs.
        """
        runs = group.runs(seed)
        if group.combination is None or not all(map(self.is_trained, runs)):
            return all(map(self.is_trained, runs))
        folders = [self.run_folder(run) / "model" for run in runs]
        try:
            about = read_description(self.combined_folder(group, seed) / "model.json")
            weights = [read_description(f / "model.json")["weights_sha256"] for f in folders]
        except DamagedError:
            return False
        members = (about.get("combined") or {}).get("members", ())
        evaluated = bool(about["training"].get("accuracy"))
        return evaluated and weights == [member["weights_sha256"] for member in members]

    def planned_epochs(self, run: PlannedRun) -> int:
        """Return the number of epochs to train a run for, including pre-training."""
        epochs = run.config.train.epochs
        return run.config.pretrain.epochs + min(epochs, self.until or epochs)

    def trained_epochs(self, run: PlannedRun) -> int:
        """Return the number of epochs that a run has been trained for, from its events."""
        with contextlib.suppress(DamagedError):  # resuming repairs the file
            for event in reversed(RunFolder(self.run_folder(run)).events.read()):
                if event["event"] == "epoch":
                    before = run.config.pretrain.epochs if event["phase"] == "train" else 0
                    return int(before + event["epoch"])
        return 0

    def _clear(self) -> None:
        """Remove runs, combinations and plan. Raise an error if a run is in use."""
        for folder in sorted(self.runs.glob("*")):
            if RunFolder(folder).status() == "running":
                raise RunInUseError(
                    f"{folder} is in use by another process.",
                    hint="Wait for it to finish, stop it, or choose another --out folder.",
                )
        for part in (self.runs, self.combined, self.plan_file):  # the plan last: it marks a bench
            with writing(part):
                remove(part)


def _storable(options: Any) -> Any:
    """Convert options to TOML types."""
    if isinstance(options, Mapping):
        return {k: _storable(v) for k, v in options.items() if v is not None}
    is_sequence = isinstance(options, Sequence) and not isinstance(options, str)
    return [_storable(value) for value in options] if is_sequence else options
