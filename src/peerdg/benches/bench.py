"""Run a bench: train incomplete runs, and report on the complete ones."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console

from peerdg.benches.execute import Connect, combine_runs, train_runs
from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan, Study
from peerdg.benches.rows import RecordedRows, collect_rows
from peerdg.errors import ConfigError, PeerdgError
from peerdg.evaluate.statistics import scipy_stats
from peerdg.options import did_you_mean
from peerdg.report.figures import pyplot
from peerdg.report.html import HTML, uplot
from peerdg.report.page import write_report
from peerdg.report.pages import write_runs_page
from peerdg.report.runs import DEPENDS_ON_LENGTH, RECORDS, RunResult
from peerdg.report.table import ReportTable, make_table
from peerdg.terminal import Table


@dataclass(frozen=True)
class Bench:
    """Results of a bench."""

    table: ReportTable
    page: Path  # the report as HTML
    failures: Mapping[str, str]  # reason for each failed run, by name


def run_bench(
    plan: Plan,
    out: Path,
    *,
    jobs: int = 1,
    until: int | None = None,
    records: Sequence[Path] = (),
    reference: str | None = None,
    study: Study | None = None,
    title: str | None = None,
    train: bool = True,
    overwrite: bool = False,
    console: Console | None = None,
    connect: Connect | None = None,
) -> Bench:
    """Train incomplete runs, and write a report on the complete ones.

    Args:
        plan: Methods, seeds and options.
        out: Folder of the bench.
        jobs: Number of runs to train at once.
        until: Epoch to train to. Default: the last.
        records: Records of earlier benches, whose rows are reused.
        reference: Method to compare the others with. Default: plain training, or the first.
        study: Additional sections of the report.
        title: Title of the report.
        train: Whether to train. If False, only report on complete runs.
        overwrite: Remove an existing bench first.
        console: Console for progress. Default: no output.
        connect: Connects to an executor for the tasks, see `peerdg.benches.executors`. Default:
            `jobs` parallel processes on this machine.
    """
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}, but must be at least 1.")
    if reference is not None and reference not in plan.methods:
        raise ConfigError(
            f"The reference '{reference}' is not one of the methods.",
            hint=did_you_mean(reference, plan.methods),
        )
    scipy_stats(), pyplot(), uplot()  # fail early if they are not installed
    bench = open_bench(plan, out, until=until, records=records)
    with bench.locked(plan, overwrite=overwrite):
        if train or (records and not bench.holds_bench):
            bench.write_plan(plan)
    if train:
        failures = train_runs(plan, bench, jobs=jobs, console=console, connect=connect)
    else:  # a Slurm array only trains
        failures = combine_runs(plan, bench, partial(ThreadPoolExecutor, jobs))
    with bench.locked(plan):
        by_method = collect_rows(plan, bench)
        runs = [run for group in by_method.values() for run in group]
        if not runs and not failures:
            raise ConfigError(f"No run in {out} is complete.", hint="Train them first.")
        if not runs:
            name, failure = next(iter(failures.items()))
            raise PeerdgError(f"All runs failed. {name}: {failure}")
        failed: Counter[str] = Counter()  # number of failed runs by method
        for seed, group in product(plan.seeds, plan.groups):
            names = {group.result(seed), *(run.name for run in group.runs(seed))}
            if names & failures.keys() and not bench.has_result(group, seed):
                failed.update(member.method for member in group.members)
        study = study or Study()
        table = make_table(by_method, reference=reference, failed=failed, questions=study.questions)
        table = replace(table, remarks=tuple(_remarks(plan, bench.until, runs)))
        title = title or f"Bench: {table.data}"
        title = title if bench.until is None else f"{title}, as of epoch {bench.until}"
        write_report(table, by_method, out, title=title, failures=failures, study=study)
        page = write_runs_page(
            runs, out / HTML, title=title, table=table, groups=by_method, failures=failures
        )
        return Bench(table, page, failures)


def open_bench(
    plan: Plan, out: Path, *, until: int | None = None, records: Sequence[Path] = ()
) -> BenchFolder:
    """Return the folder of a bench, with recorded rows from earlier benches."""
    for file in records:
        place = file if file.is_file() else file / RECORDS
        if os.path.realpath(place) == os.path.realpath(out / RECORDS):
            raise ConfigError(
                f"The records in {file} would be overwritten.",
                hint="Choose another --out folder, or copy them first.",
            )
    until = plan.check_until(until)
    return BenchFolder(out, until=until, recorded=RecordedRows.read(records, plan, until=until))


def plan_table(plan: Plan, bench: BenchFolder) -> Table:
    """Tabulate planned and complete runs for each group of methods that share runs."""
    rows = []
    for group in plan.groups:
        runs = [run for seed in plan.seeds for run in group.runs(seed)]
        members = ", ".join(member.method for member in group.members)
        rows.append([members, str(len(runs)), str(sum(map(bench.is_done, runs)))])
    return Table(["methods from one run", "runs", "complete"], rows)


def _remarks(plan: Plan, until: int | None, runs: Sequence[RunResult]) -> list[str]:
    """Note whether runs are longer than shown, and which rows another bench trained."""
    remarks = []
    if until is not None:
        epochs = max(member.config.train.epochs for member in plan.members.values())
        by_length = [
            name
            for name, member in plan.members.items()
            if not DEPENDS_ON_LENGTH.isdisjoint(member.averages[:1])
        ]
        depends = f" The averages of {', '.join(by_length)} depend on the length of the whole run."
        remarks.append(f"As of epoch {until} of {epochs}.{depends if by_length else ''}")
    rows: dict[str, list[str]] = {}
    for run in runs:
        if run.is_taken:
            rows.setdefault(run.row, []).append(str(run.seed))
    if rows:
        text = "; ".join(f"{row}, seed {', '.join(seeds)}" for row, seeds in rows.items())
        remarks.append(
            f"Taken from the records of another bench ({text}). Time and memory were measured "
            "there."
        )
    return remarks
