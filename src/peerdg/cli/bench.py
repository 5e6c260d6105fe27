"""`peerdg bench`: several methods with several seeds on the same data, compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.benches.folder import BenchFolder, Existing
from peerdg.benches.plan import Plan, make_plan
from peerdg.benches.study import Study
from peerdg.benches.variants import PlanFile, read_plan_file
from peerdg.cli.flags import PLUGIN, SEED_LIST, BenchOptions, DataFlags, all_given, whole_number
from peerdg.cli.train import DATA, say
from peerdg.errors import ConfigError, PeerdgError
from peerdg.options import merge
from peerdg.terminal import console, error_console

_SEEDS = 5


def bench(
    data: Annotated[str | None, DATA] = None,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    methods: str | None = None,
    plugin: Annotated[Path | None, PLUGIN] = None,
    plan: Path | None = None,
    seeds: Annotated[int | None, Parameter(converter=whole_number)] = None,
    seed: Annotated[tuple[int, ...] | None, SEED_LIST] = None,
    reference: str | None = None,
    jobs: Annotated[int, Parameter(converter=whole_number)] = 1,
    until: Annotated[int | None, Parameter(converter=whole_number)] = None,
    records: tuple[Path, ...] = (),
    train: bool = True,
    dry_run: bool = False,
    overwrite: bool = False,
    common: DataFlags | None = None,
    options: BenchOptions | None = None,
) -> None:
    """Train several methods with several seeds on the same data, and compare them.

    Shows first what will be trained, what is shared and how long it takes. Called again, it goes
    on with what is not finished. A run that fails is reported and stops no other.

    Args:
        out: Folder of the runs and the results.
        methods: Methods with commas between them, as `peerdg methods` lists them.
        plan: TOML file with methods, seeds, options, variants, questions; flags win over it.
        seeds: Seeds per method, from 0 on; default: 5.
        seed: These seeds, e.g. 3,4,5, in place of --seeds.
        reference: Method that differences are to; default: plain training, or the first.
        jobs: Runs at once; each has its share of the cores.
        until: Train each run to this epoch, and compare them there; a later call goes on.
        records: runs.json of an earlier bench, whose rows are not trained again.
        train: Train what is not finished; --no-train only makes the table of what is.
        dry_run: Only show what would be trained.
        overwrite: Start anew if there is a bench in this folder.
    """
    file = PlanFile(seeds=tuple(range(_SEEDS))) if plan is None else read_plan_file(plan)
    rows = file.methods if methods is None else _names(methods)
    file = file if methods is None else file.only(rows)
    given = merge(file.options, all_given(data, common or DataFlags(), options, file.options))
    if "benchmark" not in given:
        raise ConfigError("No data is given.", hint="Name a benchmark or a folder of images first.")
    chosen = file.seeds if seeds is None else range(max(0, seeds))
    made = make_plan(
        given,
        methods=rows,
        seeds=chosen if seed is None else seed,
    )
    until = made.check_until(until)
    if dry_run:
        show_plan(
            made, out, jobs=jobs, until=until, records=records, overwrite=overwrite, only_look=True
        )
        return
    bench_and_report(
        made,
        out,
        reference=reference or file.reference,
        study=file.study,
        jobs=jobs,
        until=until,
        records=records,
        train=train,
        overwrite=overwrite,
    )


def _names(methods: str) -> list[str]:
    return [name.strip() for name in methods.split(",") if name.strip()]


def show_plan(
    plan: Plan,
    out: Path,
    *,
    jobs: int,
    until: int | None = None,
    records: Sequence[Path] = (),
    overwrite: bool = False,
    only_look: bool = False,
) -> Any:
    """Print what will be trained, what is shared and how long it takes; returns it."""
    from peerdg.benches.bench import preview_bench

    for line in plan.notes:
        say(line)
    preview = preview_bench(
        plan,
        out,
        until=until,
        records=records,
        jobs=jobs,
        overwrite=overwrite,
        only_look=only_look,
        console=error_console,
    )
    console.print(preview.table())
    for sentence in preview.sentences():
        console.print(sentence, markup=False, soft_wrap=True)
    return preview


def bench_and_report(
    plan: Plan,
    out: Path,
    *,
    reference: str | None = None,
    study: Study | None = None,
    jobs: int = 1,
    until: int | None = None,
    records: Sequence[Path] = (),
    train: bool = True,
    overwrite: bool = False,
    title: str | None = None,
) -> None:
    """Train, unless told not to, then print the table and where the report is.

    Raises:
        PeerdgError: If runs failed; the table of the others is printed before.
    """
    from peerdg.benches.bench import check_reference, run_bench, tabulate_bench

    check_reference(plan, reference)
    about: dict[str, Any] = {"reference": reference, "study": study, "title": title}
    if train:
        preview = show_plan(plan, out, jobs=jobs, until=until, records=records, overwrite=overwrite)
        existing: Existing = "overwrite" if overwrite else "resume"
        found = run_bench(preview, out, existing=existing, console=error_console, **about)
    elif overwrite:
        raise ConfigError("--overwrite would remove what --no-train makes a table of.")
    else:
        found = tabulate_bench(plan, out, until=until, records=records, **about)
    console.print(found.table.table())
    for note in (*found.table.notes(), *found.table.cautions):
        console.print(note, markup=False, soft_wrap=True)
    console.print(f"Report: {found.page}", markup=False, soft_wrap=True)
    if found.failures:
        names = ", ".join(found.failures)
        logs = BenchFolder(out).logs
        raise PeerdgError(
            f"{len(found.failures)} of {len(plan.runs)} runs failed: {names}.",
            hint=f"The same command tries them again; what they wrote is in {logs}.",
        )
