"""A bench from its options to its table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console

from peerdg.benches.children import Failure
from peerdg.benches.display import BenchDisplay, Silence
from peerdg.benches.estimate import Progress, count_pretrainings, time_left
from peerdg.benches.folder import BenchFolder, Existing
from peerdg.benches.plan import Group, Plan
from peerdg.benches.records import RecordedRows
from peerdg.benches.report import write_bench
from peerdg.benches.study import Study
from peerdg.benches.table import BenchTable, bench_table
from peerdg.benches.views import combined_view, views
from peerdg.benches.work import Estimate, Work, estimate, threads_each
from peerdg.data.parallel import cores
from peerdg.errors import ConfigError, PeerdgError
from peerdg.evaluate.statistics import scipy_stats
from peerdg.options import did_you_mean
from peerdg.report.comparison import RECORDS
from peerdg.report.figures import pyplot
from peerdg.report.result import DEPENDS_ON_LENGTH, RunResult, as_of
from peerdg.report.runs import read_run
from peerdg.run.forecast import duration
from peerdg.terminal import Table


@dataclass(frozen=True)
class Bench:
    """The results of a bench.

    Attributes:
        table: A row for each method.
        page: The report.
        failures: Why runs failed, by their names.
    """

    table: BenchTable
    page: Path
    failures: Mapping[str, Failure]


@dataclass(frozen=True)
class Preview:
    """The plan of a bench and its estimated time.

    Attributes:
        plan: All runs.
        progress: How far they are.
        estimate: How long each takes.
        jobs: Runs at once.
        threads: CPU threads of each; None leaves it to torch.
        recorded: Rows of earlier benches that are not trained again.
    """

    plan: Plan
    progress: Progress
    estimate: Estimate
    jobs: int
    threads: int | None
    recorded: RecordedRows | None = None

    @property
    def left(self) -> float | None:
        """Seconds until everything is trained; None if not known."""
        return time_left(self.plan, self.progress, self.estimate.times, jobs=self.jobs)

    @property
    def done(self) -> int:
        """Runs that are complete."""
        return sum(map(self.progress.is_done, self.plan.runs))

    def table(self) -> Table:
        """Make a table with one row for each group of methods that come from the same runs."""
        rows = []
        for group in self.plan.groups:
            runs = self.plan.runs_of(group)
            done = sum(map(self.progress.is_done, runs))
            time = self.estimate.times.get(group.name)
            each = "-" if time is None else duration(time.pretraining + time.rest)
            members = ", ".join(member.method for member in group.members)
            rows.append([members, str(len(runs)), str(done), each])
        return Table(["methods from one run", "runs", "finished", "about each"], rows)

    def sentences(self) -> list[str]:
        """Say what runs share, and how long they take."""
        return [*self._recorded(), *self._shared(), self._time()]

    def _recorded(self) -> list[str]:
        names = {run.name for run in self.plan.runs if self.progress.is_trained(run)}
        taken = len(self.progress.recorded - names)
        return [f"From records, not trained here: {taken} runs."] if taken else []

    def _shared(self) -> list[str]:
        plan, found = self.plan, []
        alone = sum(len(group.members) * len(plan.runs_of(group)) for group in plan.groups)
        if len(plan.runs) < alone:
            found.append(
                f"Shared: {len(plan.runs)} runs in place of {alone}, since averages only watch."
            )
        pretrained = [run for run in plan.runs if run.config.pretrain.epochs]
        different = count_pretrainings(pretrained)
        if different < len(pretrained):
            found.append(
                f"Pre-training: {different} different ones for {len(pretrained)} runs; equal ones "
                "are trained once and kept in the cache."
            )
        for group in plan.groups:
            if group.combination is not None:
                count = group.combination.members
                found.append(f"Combined: {group.name} makes one model of {count} runs per seed.")
        return found

    def _time(self) -> str:
        to_do = len(self.plan.runs) - self.done
        if not to_do:
            return "Everything is trained."
        each = "all threads" if self.threads is None else f"{self.threads} of {cores()} threads"
        at_once = f"one at a time with {each}" if self.jobs == 1 else f"{self.jobs} at once, {each}"
        text = f"To train: {to_do} of {len(self.plan.runs)} runs, {at_once}"
        if self.left is None:
            return f"{text}; how long that takes could not be measured."
        by = (
            "by what finished runs took"
            if all(time.measured for time in self.estimate.times.values())
            else "by a few steps of each, so it may be off by a third"
        )
        return f"{text}; about {duration(self.left)}, {by}."


def check_reference(plan: Plan, reference: str | None) -> str | None:
    """Check the name of the method that the others are compared with, and return it.

    Raises:
        ConfigError: If the bench does not have it.
    """
    if reference is not None and reference not in plan.methods:
        raise ConfigError(
            f"The reference '{reference}' is none of the methods.",
            hint=did_you_mean(reference, plan.methods),
        )
    return reference


def preview_bench(
    plan: Plan,
    out: Path,
    *,
    until: int | None = None,
    records: Sequence[Path] = (),
    jobs: int = 1,
    overwrite: bool = False,
    only_look: bool = False,
    console: Console | None = None,
) -> Preview:
    """Say what a bench in `out` is going to do; train and write nothing.

    Args:
        plan: All runs.
        out: The bench's folder.
        until: The epoch that runs are trained to; default: their last.
        records: Files of earlier benches, `runs.json`, whose rows are not trained again.
        jobs: Runs at once.
        overwrite: Whether it is going to start anew.
        only_look: Look at a bench that another process works in, too.
        console: Where to print messages; default: nowhere.

    Raises:
        RunInUseError: If another bench works in the folder.
        OutputError: If it cannot be written, or holds something else.
        ConfigError: If the folder was made with other options, or something is not installed.
        PeerdgError: If the data, a network or a file of records cannot be used.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; at least one is needed.")
    scipy_stats(), pyplot()  # what is not installed is missed before the work, not after it
    recorded = _read_records(records, plan, out, until)
    bench = BenchFolder(out, until=until, recorded=recorded)
    if not only_look:
        bench.require_free()
    if overwrite:
        progress = Progress({}, until, recorded.runs)
    else:
        bench.check(plan)
        progress = Progress.read(bench, plan)
    given = next(iter(plan.members.values())).config.threads
    threads = threads_each(jobs, given)

    def note(text: str) -> None:
        if console is not None:
            console.print(text, highlight=False, soft_wrap=True, markup=False)

    found = estimate(plan, progress, threads=threads, note=note)
    return Preview(plan, progress, found, jobs, threads, recorded)


def run_bench(
    preview: Preview,
    out: Path,
    *,
    reference: str | None = None,
    study: Study | None = None,
    title: str | None = None,
    existing: Existing = "resume",
    console: Console | None = None,
) -> Bench:
    """Train what is not finished, and make the table of everything that is.

    Args:
        preview: What to do.
        out: The bench's folder.
        reference: The method that differences are to; default: plain training, or the first.
        study: What the report is asked for besides the table.
        title: Of the report.
        existing: Whether to go on with a bench that is there, or to start anew.
        console: Where progress is shown; default: nowhere.

    Raises:
        Stopped: If a signal asked for it; all runs under way have saved their state.
        PeerdgError: If no run is complete at the end.
    """
    plan = preview.plan
    bench = BenchFolder.open(
        out, plan, existing=existing, until=preview.progress.until, recorded=preview.recorded
    )
    try:
        combined = [
            bench.has_result(group, seed)
            for seed, group in product(plan.seeds, plan.groups)
            if group.combination is not None
        ]
        shown = Silence() if console is None else BenchDisplay(
            console, total=len(plan.runs) + len(combined), done=preview.done + sum(combined),
            left=preview.left,
        )  # fmt: skip
        try:
            work = Work(
                plan, bench, preview.estimate, jobs=preview.jobs, threads=preview.threads,
                shown=shown, describe=_in_short,
            )  # fmt: skip
            failures = work.train()
        finally:
            shown.close()
        return _conclude(plan, bench, failures, reference, title, study or Study())
    finally:
        bench.close()


def tabulate_bench(
    plan: Plan,
    out: Path,
    *,
    until: int | None = None,
    records: Sequence[Path] = (),
    reference: str | None = None,
    study: Study | None = None,
    title: str | None = None,
) -> Bench:
    """Make the table of the runs that are complete, and train nothing.

    With records of earlier benches there need be no bench in the folder: it gets their table.

    Raises:
        ConfigError: If there is no bench, it has other options, or no run of it is complete.
        RunInUseError: If another bench works in the folder.
        DataError: If a file does not hold records.
    """
    recorded = _read_records(records, plan, out, until)
    may_be_new = bool(records) and not BenchFolder(out).holds_bench
    opened = BenchFolder.open if may_be_new else BenchFolder.open_trained
    bench = opened(out, plan, until=until, recorded=recorded)
    try:
        return _conclude(plan, bench, {}, reference, title, study or Study())
    finally:
        bench.close()


def _read_records(files: Sequence[Path], plan: Plan, out: Path, until: int | None) -> RecordedRows:
    """Read the rows of earlier benches.

    Raises:
        ConfigError: If a file is the one that this bench writes: rows that it has and this bench
            does not would be lost.
    """
    for file in files:
        if os.path.realpath(file) == os.path.realpath(out / RECORDS):
            raise ConfigError(
                f"The records in {file} would be overwritten.",
                hint="Choose another --out folder, or copy them first.",
            )
    return RecordedRows.read(files, plan, until=until)


def _conclude(
    plan: Plan,
    bench: BenchFolder,
    failures: Mapping[str, Failure],
    reference: str | None,
    title: str | None,
    study: Study,
) -> Bench:
    """Read everything that is complete, and write the report."""
    by_method = collect(plan, bench)
    runs = [run for group in by_method.values() for run in group]
    if not runs and not failures:
        after = "" if bench.until is None else f" after epoch {bench.until}"
        raise ConfigError(f"No run in {bench.path} is complete{after}.", hint="Train them first.")
    if not runs:
        name, first = next(iter(failures.items()))
        error = PeerdgError(f"No run was finished. {name}: {first.message}", hint=first.hint)
        error.exit_code = first.code
        raise error
    failed = {
        member.method: sum(
            _has_failed(group, seed, failures) and not bench.has_result(group, seed)
            for seed in plan.seeds
        )
        for group in plan.groups
        for member in group.members
    }
    table = bench_table(by_method, reference=reference, failed=failed, questions=study.questions)
    table = replace(table, remarks=(*_stage(plan, bench.until), *_taken(runs)))
    after = "" if bench.until is None else f", as of epoch {bench.until}"
    page = write_bench(
        table, runs, bench.path, title=f"{title or f'Bench: {table.data}'}{after}",
        failures=failures, study=study,
    )  # fmt: skip
    return Bench(table, page, failures)


def _stage(plan: Plan, until: int | None) -> list[str]:
    """Say that a table is of runs which have more epochs, and whose numbers that may change."""
    if until is None:
        return []
    epochs = max(member.config.train.epochs for member in plan.members.values())
    sentence = f"As of epoch {until} of {epochs}"
    by_length = [
        name
        for name, member in plan.members.items()
        if not DEPENDS_ON_LENGTH.isdisjoint(member.watched[:1])
    ]
    if by_length:
        sentence += f"; what {', '.join(by_length)} averages depends on the length of the whole run"
    return [f"{sentence}."]


def _taken(runs: Sequence[RunResult]) -> list[str]:
    """Say which rows were trained for another bench."""
    rows: dict[str, list[int]] = {}
    for run in runs:
        if run.is_taken:
            rows.setdefault(run.row, []).append(run.seed)
    if not rows:
        return []
    text = "; ".join(f"{row}, seed {', '.join(map(str, seeds))}" for row, seeds in rows.items())
    return [
        f"Taken from the records of another bench ({text}): time and memory are those of where "
        "it was trained."
    ]


def _has_failed(group: Group, seed: int, failures: Mapping[str, Failure]) -> bool:
    names = {group.result(seed), *(run.name for run in group.runs(seed))}
    return not names.isdisjoint(failures)


def collect(plan: Plan, bench: BenchFolder) -> dict[str, list[RunResult]]:
    """Collect the finished runs and combinations of each method, in the order of the methods."""
    found: dict[str, list[RunResult]] = {method: [] for method in plan.methods}
    taken: set[tuple[str, int]] = set()
    for seed, group in product(plan.seeds, plan.groups):
        if not bench.has_trained(group, seed):
            recorded = {} if bench.recorded is None else bench.recorded.of(group, seed)
            for method, result in recorded.items():
                found[method].append(result)
                taken.add((method, seed))
            continue
        runs = group.runs(seed)
        results = [read_run(bench.run_folder(run)) for run in runs]
        if group.combination is not None:
            folder = bench.combined_folder(group, seed)
            found[group.name].append(combined_view(group, seed, folder, results))
            continue
        for method, view in views(runs[0], results[0]).items():
            found[method].append(view if bench.until is None else as_of(view, bench.until))
    files = 0 if bench.recorded is None else bench.recorded.files
    if files == 1 and len(taken) == sum(map(len, found.values())):
        taken.clear()  # all rows of one file are that bench as it was
    return {
        name: [replace(r, row=name, is_taken=r.is_taken or (name, r.seed) in taken) for r in runs]
        for name, runs in found.items()
    }


def _in_short(path: Path) -> str:
    """Describe a finished run in a few words."""
    run = read_run(path)
    score = run.score(run.deployed)
    accuracy = "" if score is None else f", {run.deployed} {score:.1f} %"
    seconds = next((e["seconds"] for e in reversed(run.events) if e["event"] == "done"), None)
    if seconds is None:  # it has more epochs than the bench asked for
        return f"at epoch {max(r['epoch'] for r in run.evaluations)}{accuracy}"
    return f"done in {duration(seconds)}{accuracy}"
