"""`peerdg bench`: compare several methods with several seeds on the same data."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.benches.plan import Plan, PlanFile, make_plan, read_plan_file
from peerdg.cli.flags import Data, OptionalWhole, Options, Plugin, SeedList, Whole
from peerdg.data.benchmarks import find_data
from peerdg.errors import ConfigError, PeerdgError
from peerdg.options import merge
from peerdg.terminal import console, error_console


def bench(
    data: Data = None,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    methods: str | None = None,
    plugin: Plugin = None,
    plan: Path | None = None,
    seeds: OptionalWhole = None,
    seed: SeedList = None,
    reference: str | None = None,
    jobs: Whole = 1,
    until: OptionalWhole = None,
    records: tuple[Path, ...] = (),
    train: Annotated[bool, Parameter(negative="--no-train")] = True,
    dry_run: bool = False,
    overwrite: bool = False,
    options: Options = None,
) -> None:
    """Train several methods with several seeds on the same data, and compare them.

    Repeat the command to continue with incomplete runs. A failed run does not stop the others.

    Example: `peerdg bench photos/ --methods erm,peer --target sketches/ --out runs/all`

    Args:
        out: Folder for the runs and results.
        methods: Comma-separated methods (see `peerdg methods`).
        plan: TOML file with methods, seeds, options, variants and questions. Flags override it.
        seeds: Number of seeds per method. Default: 5.
        seed: List of seeds, e.g. 3,4,5, instead of --seeds.
        reference: Method to compare the others with. Default: plain training, or the first.
        jobs: Number of runs to train at once. They share the cores.
        until: Epoch to train to and compare at. A later call can continue.
        records: Folder of an earlier bench, whose rows are reused.
        train: Train incomplete runs. --no-train only reports on complete ones.
        dry_run: Only show the planned runs.
        overwrite: Replace an existing bench.
    """
    from peerdg.benches.bench import open_bench, plan_table

    file = PlanFile() if plan is None else read_plan_file(plan)
    rows = file.methods if methods is None else [m.strip() for m in methods.split(",") if m.strip()]
    named = find_data(data) if data is not None else {}
    given = merge(file.options, options or {}, named)
    if "benchmark" not in given:
        raise ConfigError("No data was given.", hint="Name a data set or a folder of images.")
    chosen = file.seeds if seeds is None else range(max(0, seeds))
    made = make_plan(
        given,
        methods=tuple(dict.fromkeys((*file.methods, *rows))),
        seeds=chosen if seed is None else seed,
    ).only(rows)
    if dry_run:
        folder = open_bench(made, out, until=until, records=records)
        folder.check(made)
        console.print(plan_table(made, folder))
        return
    if overwrite and not train:
        raise ConfigError("--overwrite and --no-train cannot be used together.")
    bench_and_report(
        made,
        out,
        reference=reference or (file.reference if file.reference in rows else None),
        study=file.study,
        jobs=jobs,
        until=until,
        records=records,
        train=train,
        overwrite=overwrite,
    )


def bench_and_report(plan: Plan, out: Path, **options: Any) -> None:
    """Run a bench (see `run_bench`), and print its table and failed runs."""
    from peerdg.benches.bench import run_bench

    for line in plan.notes:
        error_console.print(line)
    made = run_bench(plan, out, console=error_console, **options)
    console.print(made.table.table())
    for note in (*made.table.notes(), *made.table.cautions):
        console.print(note)
    console.print(f"Report: {made.page}")
    if made.failures:
        reasons = [f"{name}: {failure}" for name, failure in made.failures.items()]
        raise PeerdgError(
            f"{len(made.failures)} of {len(plan.runs)} runs failed:\n  " + "\n  ".join(reasons),
            hint=f"Repeat the command to retry. See their output in {out}/runs/*/log.txt.",
        )
