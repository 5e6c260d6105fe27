"""The folder of a bench.

    bench.toml       methods, seeds and the options of all runs
    runs/            a run folder for each group of methods and seed
    combined/        the models that are made of several runs
    logs/            what the process of each run wrote to standard error
    report.md        table, figures, records: made anew at the end of each call

One process works in it at a time; the runs are what is finished and what is not, nothing else
remembers it.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli_w

from peerdg.benches.plan import Group, Plan, PlannedRun, make_plan, plan_changes
from peerdg.errors import ConfigError, DamagedError, OutputError, PeerdgError, RunInUseError
from peerdg.files import (
    TEMPORARY,
    refuse_links,
    remove,
    replace_atomically,
    writing,
)
from peerdg.models.description import read_description
from peerdg.options import read_toml
from peerdg.run.config import refuse_difference, resolve
from peerdg.run.folder import LOCK, OWNER, FolderLock, RunFolder, read_run_config
from peerdg.run.manifest import refuse_edited_config
from peerdg.schema import conform

if TYPE_CHECKING:  # it needs numpy, and the help of a command does not
    from peerdg.benches.records import RecordedRows

FORMAT = 1
_LOCK = "bench"
_OURS = (f"{_LOCK}{LOCK}", f"{_LOCK}{OWNER}", TEMPORARY)
_HINT = "Restore it, or start anew with --overwrite."
_DESCRIPTION = "model.json"  # in a model folder
PATIENCE = 60.0  # seconds for the runs of a killed bench to save their state
WAITING_SECONDS = 0.2  # between two looks at their locks

Existing = Literal["resume", "overwrite"]


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """What `bench.toml` must have besides options."""

    format: int
    methods: list[str]
    seeds: list[int]


class BenchFolder:
    """The folder of a bench; `open` takes it for this process, until `close`.

    Args:
        path: Where it is.
        until: A run is complete once it was evaluated after this epoch; default: after its last.
        recorded: Rows of earlier benches; their runs are complete, too.
    """

    def __init__(
        self, path: Path, *, until: int | None = None, recorded: "RecordedRows | None" = None
    ) -> None:
        self.path = path
        self.until = until
        self.recorded = recorded
        self.options_file = path / "bench.toml"
        self.runs = path / "runs"
        self.combined = path / "combined"
        self.logs = path / "logs"
        self._lock = FolderLock(path, _LOCK)

    @classmethod
    def open(
        cls,
        path: Path,
        plan: Plan,
        *,
        existing: Existing = "resume",
        until: int | None = None,
        recorded: "RecordedRows | None" = None,
    ) -> "BenchFolder":
        """Lock the folder for a bench with `plan`, new or to be continued.

        Raises:
            OutputError: If it cannot be written, or holds something else.
            RunInUseError: If another bench works in it.
            ConfigError: If it was made with other options, with the difference.
            DamagedError: If it holds links where files belong, or `bench.toml` is damaged.
        """
        bench = cls(path, until=until, recorded=recorded)
        bench._refuse_links()
        bench._require_bench_or_nothing()
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        bench._lock.acquire()
        try:
            if existing == "overwrite":
                bench._clear()
            bench._begin(plan)
        except BaseException:
            bench.close()
            raise
        return bench

    @classmethod
    def open_trained(
        cls,
        path: Path,
        plan: Plan,
        *,
        until: int | None = None,
        recorded: "RecordedRows | None" = None,
    ) -> "BenchFolder":
        """Lock the folder of a bench to look at its runs; nothing of it is changed.

        Raises:
            ConfigError: If there is no bench, or it was made with other options.
            RunInUseError: If another bench works in it.
            DamagedError: If it holds links where files belong, or a file of it is damaged.
        """
        bench = cls(path, until=until, recorded=recorded)
        bench._refuse_links()
        if not bench.holds_bench:
            raise ConfigError(f"{path} holds no bench.", hint="Train one first.")
        bench._lock.acquire()
        try:
            bench.check(plan)
        except BaseException:
            bench.close()
            raise
        return bench

    def close(self) -> None:
        """Unlock the folder; if nothing was begun in it, leave it as it was."""
        keep = self.holds_bench
        self._lock.release(keep_file=keep)
        if not keep:
            with contextlib.suppress(OSError):  # it was there before, with something in it
                self.path.rmdir()

    @property
    def holds_bench(self) -> bool:
        """Whether a bench was started here."""
        return os.path.lexists(self.options_file)

    def run_folder(self, run: PlannedRun) -> Path:
        """Return the folder of a run."""
        return self.runs / run.name

    def combined_folder(self, group: Group, seed: int) -> Path:
        """Return the folder of the model that the runs of a seed are combined to."""
        return self.combined / group.result(seed)

    def log_file(self, name: str) -> Path:
        """Return the file for the errors of the process of a run or combination."""
        return self.logs / f"{name}.log"

    def check(self, plan: Plan) -> None:
        """Refuse to go on with a bench that has other options, or runs that have.

        Raises:
            ConfigError: With the difference.
            DamagedError: If `bench.toml` or a run is damaged.
        """
        self._refuse_links()
        if self.holds_bench:
            self._refuse_other_options(plan)
            for run in plan.runs:
                self._refuse_other_run(run)

    def require_free(self) -> None:
        """Refuse a folder that another bench works in, or nobody can, before anything is prepared.

        Raises:
            RunInUseError: If there is one.
            OutputError: If it cannot be written, or holds something else.
        """
        self._refuse_links()
        self._require_bench_or_nothing()
        with writing(self.path):
            nearest = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
            with tempfile.TemporaryFile(dir=nearest):  # without a name: nothing is left behind
                pass
        if self.holds_bench and self._lock.is_held:
            self._lock.acquire()  # raises, with the name of the process
            self._lock.release()  # it has ended in between

    def is_done(self, run: PlannedRun) -> bool:
        """Whether a run is complete, here or in the records of an earlier bench."""
        recorded = self.recorded is not None and self.recorded.covers(run)
        return recorded or self.is_trained(run)

    def is_trained(self, run: PlannedRun) -> bool:
        """Whether the folder of a run has it complete."""
        folder = RunFolder(self.run_folder(run))
        if self.until is None or self.until >= run.config.train.epochs:
            return folder.done
        if not folder.holds_run:
            return False
        # Late: reports need numpy, and the help of a command does not.
        from peerdg.report.result import is_evaluated
        from peerdg.report.runs import read_records

        try:
            records = read_records(folder, is_done=folder.done)
        except PeerdgError:
            return False  # the run itself says what is wrong with it
        return is_evaluated(records, self.until)

    def is_complete(self, plan: Plan) -> bool:
        """Whether all runs and combinations are complete."""
        return self.holds_bench and all(
            self.has_result(group, seed) for group in plan.groups for seed in plan.seeds
        )

    def has_result(self, group: Group, seed: int) -> bool:
        """Whether the run of a seed is complete, or the model that its runs are combined to.

        A combined model that is damaged, was not evaluated, or is of other weights than those of
        its runs is none: it is made again.
        """
        recorded = self.recorded is not None and self.recorded.has(group, seed)
        return recorded or self.has_trained(group, seed)

    def has_trained(self, group: Group, seed: int) -> bool:
        """Whether the result of a seed is in this folder."""
        runs = group.runs(seed)
        if not all(map(self.is_trained, runs)):
            return False
        if group.combination is None:
            return True
        return self._is_combined(self.combined_folder(group, seed), runs)

    def _is_combined(self, folder: Path, runs: Sequence[PlannedRun]) -> bool:
        try:
            about = read_description(folder / _DESCRIPTION)
            models = [
                read_description(self.run_folder(run) / "model" / _DESCRIPTION) for run in runs
            ]
        except DamagedError:
            return False
        combined = about.get("combined") or {}
        made_of = [member["weights_sha256"] for member in combined.get("members", ())]
        evaluated = bool(about["training"].get("accuracy"))
        return evaluated and made_of == [model["weights_sha256"] for model in models]

    def _refuse_links(self) -> None:
        with writing(self.path):  # its name may be too long even to look at it
            if self.holds_bench:
                refuse_links(self.path)

    def _require_bench_or_nothing(self) -> None:
        with writing(self.path):
            if self.holds_bench or not os.path.lexists(self.path):
                return
            foreign = [p.name for p in self.path.iterdir() if not p.name.startswith(_OURS)]
        if foreign:
            raise OutputError(
                f"{self.path} is not empty and holds no bench (it has '{sorted(foreign)[0]}').",
                hint="Choose a new or empty folder with --out.",
            )

    def _begin(self, plan: Plan) -> None:
        if self.holds_bench:
            self.check(plan)  # it may have more or fewer methods and seeds, as the table will
        tables: dict[str, Any] = {"format": FORMAT, "methods": plan.methods, "seeds": plan.seeds}
        with replace_atomically(self.options_file) as temporary:
            temporary.write_text(tomli_w.dumps({**tables, **_storable(plan.options)}), "utf-8")

    def _refuse_other_options(self, plan: Plan) -> None:
        old = self._stored_plan()
        if changes := plan_changes(old, plan):
            raise ConfigError(
                f"{self.path} holds a bench with other options:\n  "
                + "\n  ".join(map(str, changes)),
                hint="Give the options that it was started with (methods and seeds may be other "
                "ones), choose another --out folder, or start anew with --overwrite.",
            )

    def _stored_plan(self) -> Plan:
        try:
            tables = read_toml(self.options_file)
        except ConfigError as error:
            raise DamagedError(error.message, hint=_HINT) from error
        stored = conform(_Stored, tables, self.options_file, hint=_HINT)
        if stored.format != FORMAT:
            raise DamagedError(
                f"{self.options_file} has format {stored.format}; this version of peerdg reads "
                f"{FORMAT}.",
                hint=_HINT,
            )
        options = {k: v for k, v in tables.items() if k not in ("format", "methods", "seeds")}
        return make_plan(options, methods=stored.methods, seeds=stored.seeds)

    def _refuse_other_run(self, run: PlannedRun) -> None:
        """Refuse a run whose options are not the plan's: its result would be another one."""
        folder = RunFolder(self.run_folder(run))
        if not folder.holds_run:
            return
        config = resolve(read_run_config(folder.path))
        try:
            refuse_difference(config, run.config)
            if folder.manifest is not None:
                refuse_edited_config(folder.manifest, config, file=folder.config_file)
        except ConfigError as error:
            raise ConfigError(
                f"{folder.path} is not the run of this bench. {error.message}",
                hint="Remove that folder, and the same command trains the run again.",
            ) from error

    def _clear(self) -> None:
        """Remove everything that a bench makes.

        Raises:
            RunInUseError: If the process of a run does not end, see `_wait_for_runs`.
            OutputError: If something cannot be removed.
        """
        self._wait_for_runs()
        for folder in (self.runs, self.combined, self.logs):
            remove(folder)
            if os.path.lexists(folder):
                raise OutputError(
                    f"{folder} cannot be removed.",
                    hint="Remove it yourself, or choose another --out folder.",
                )
        remove(self.options_file)  # last: until here the folder is still recognised as a bench

    def _wait_for_runs(self) -> None:
        """Wait until no process works on a run: those of a killed bench save their state first.

        Raises:
            RunInUseError: If one of them does not end.
        """
        deadline = time.monotonic() + PATIENCE
        for folder in sorted(self.runs.glob("*")):
            run = RunFolder(folder)
            while run.status() == "running":
                if time.monotonic() > deadline:
                    raise RunInUseError(
                        f"{folder} is in use by a process that this bench did not start.",
                        hint="Wait for it to finish, stop it, or choose another --out folder.",
                    )
                time.sleep(WAITING_SECONDS)


def _storable(options: Any) -> Any:
    """Convert options to what TOML can hold."""
    if isinstance(options, dict):
        return {k: _storable(v) for k, v in options.items() if v is not None}
    is_sequence = isinstance(options, Sequence) and not isinstance(options, str)
    return [_storable(value) for value in options] if is_sequence else options
