"""`peerdg bench`: compare several methods with several seeds on the same data."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from peerdg.benches.executors import dask
from peerdg.benches.plan import Plan, PlanFile, make_plan, read_plan_file, sweep_rows
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
    sweep: tuple[str, ...] = (),
    executor: Literal["local", "dask", "slurm"] = "local",
    scheduler: str | None = None,
    sbatch: str = "",
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
        sweep: Values of an option to try, e.g. peer.w=0.01,0.1,1. Each adds a row.
        executor: Where to train: here, on a dask cluster, or as a Slurm array.
        scheduler: Address of the dask scheduler, e.g. tcp://127.0.0.1:8786.
        sbatch: Options for sbatch, e.g. "--partition gpu --time 1-0".
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
    if sweep:
        given, rows = sweep_rows(given, rows, sweep)
    if "benchmark" not in given:
        raise ConfigError("No data was given.", hint="Name a data set or a folder of images.")
    chosen = file.seeds if seeds is None else range(max(0, seeds))
    made = make_plan(
        given,
        methods=rows if sweep else tuple(dict.fromkeys((*file.methods, *rows))),
        seeds=chosen if seed is None else seed,
    ).only(rows)
    if dry_run:
        folder = open_bench(made, out, until=until, records=records)
        folder.check(made)
        console.print(plan_table(made, folder))
        return
    if overwrite and not train:
        raise ConfigError("--overwrite and --no-train cannot be used together.")
    if (executor == "dask") != (scheduler is not None):
        raise ConfigError("--executor dask and --scheduler need each other.")
    if executor == "slurm" and not train:
        raise ConfigError("--executor and --no-train cannot be used together.")
    if executor == "slurm":
        submit_bench(made, out, until=until, records=records, options=sbatch, overwrite=overwrite)
        return
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
        connect=None if scheduler is None else partial(dask, scheduler),
    )


def submit_bench(
    plan: Plan,
    out: Path,
    *,
    until: int | None,
    records: Sequence[Path],
    options: str,
    overwrite: bool,
) -> None:
    """Submit the incomplete runs as a Slurm array."""
    from peerdg.benches.bench import open_bench
    from peerdg.benches.execute import incomplete_runs, resume_command, run_options
    from peerdg.benches.executors import submit_slurm

    folder = open_bench(plan, out, until=until, records=records)
    with folder.locked(plan, overwrite=overwrite):
        folder.write_plan(plan)
        given = run_options(folder)
        commands = [resume_command(str(p), **given) for _, p in incomplete_runs(plan, folder)]
        job = submit_slurm(commands, out, options) if commands else None
    if job is not None:
        console.print(f"{len(commands)} runs are submitted as job {job}. When they are complete:")
    console.print("Make the report with the same command, with --no-train instead of --executor.")


def bench_and_report(plan: Plan, out: Path, **options: Any) -> None:
    """Run a bench (see `run_bench`), and print its table and failed runs."""
    from peerdg.benches.bench import run_bench

    for line in plan.notes:
        error_console.print(line)
    made = run_bench(plan, out, console=error_console, **options)
    console.print(made.table.table())
    for note in (*made.table.notes(), *made.table.cautions):
        console.print(note)
    console.print(f"Page: {made.page}")
    if made.failures:
        reasons = [f"{name}: {failure}" for name, failure in made.failures.items()]
        raise PeerdgError(
            f"{len(made.failures)} of {len(plan.runs)} runs failed:\n  " + "\n  ".join(reasons),
            hint=f"Repeat the command to retry. See their output in {out}/runs/*/log.txt.",
        )
