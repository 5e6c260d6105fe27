"""`peerdg train`: train a method on one domain."""

import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.cli.flags import CommonFlags, Options, config_from_flags, given_options
from peerdg.data.benchmarks import OWN_DATA
from peerdg.errors import ConfigError
from peerdg.options import merge, read_toml
from peerdg.run.config import RunConfig
from peerdg.run.folder import Existing, RunFolder, read_run_config
from peerdg.run.minutes import TimeBudget, keep_schedule
from peerdg.terminal import console, error_console

DATA = Parameter(help="data set (`peerdg data list`), or a folder or list of your own images")


def train(
    data: Annotated[
        str | None,
        DATA,
    ] = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    resume: bool = False,
    accept_new_data: bool = False,
    overwrite: bool = False,
    profile: bool = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"))] = False,
    minutes: float | None = None,
    common: CommonFlags | None = None,
    options: Options | None = None,
) -> None:
    """Train a method on one labelled domain; watch it on domains it never sees.

    Args:
        out: Run folder; default: runs/DATA-METHOD-SEED, and the --train-seed if there is one.
        resume: Go on with the run in this folder.
        accept_new_data: Go on with it, or replace it if the data has changed since.
        overwrite: Replace the run in this folder.
        profile: Measure where the time goes; the report shows it by stage.
        quiet: No progress.
        minutes: Choose the number of epochs (and k) so that the run takes about this long in all.
    """
    began = time.monotonic()
    if overwrite and (resume or accept_new_data):
        other = "--resume" if resume else "--accept-new-data"
        raise ConfigError(f"{other} and --overwrite exclude each other.")
    note = (lambda text: None) if quiet else say
    config = config_from_flags(data, common or CommonFlags(), options, note=note)
    name = Path(config.root or "").stem if config.benchmark == OWN_DATA else config.benchmark
    seeds = f"{config.seed}" + ("" if config.train_seed is None else f"-{config.train_seed}")
    out = out or Path("runs") / f"{name or OWN_DATA}-{config.name}-{seeds}"
    existing: Existing = "overwrite" if overwrite else "resume" if resume else "refuse"
    if accept_new_data:
        existing = "renew"
    budget = None
    if minutes is not None:
        given = merge(_from_file(common), given_options(options), _epochs(common))
        budget = TimeBudget.of(minutes, given, config.method, began)
        if existing in ("resume", "renew") and RunFolder(out).holds_run:
            config = keep_schedule(config, read_run_config(out), keep=budget.keep)
    run_and_report(config, out, existing, quiet=quiet, profile=profile, budget=budget)


def _from_file(common: CommonFlags | None) -> dict[str, Any]:
    return read_toml(common.config) if common and common.config else {}


def _epochs(common: CommonFlags | None) -> dict[str, Any]:
    epochs = common and common.epochs
    return {} if epochs is None else {"train": {"epochs": epochs}}


def say(text: str) -> None:
    """A line beside the progress."""
    error_console.print(text, markup=False, highlight=False, soft_wrap=True)


def run_and_report(
    config: RunConfig,
    out: Path,
    existing: Existing,
    *,
    quiet: bool,
    profile: bool = False,
    budget: TimeBudget | None = None,
    stop_after: int | None = None,
) -> None:
    """Train into `out`, then say how it went and what to do with the result."""
    if existing == "resume" and RunFolder(out).done:
        error_console.print(f"{out} is already complete.", markup=False)
    train_into(
        config,
        out,
        existing,
        quiet=quiet,
        profile=profile,
        budget=budget,
        stop_after=stop_after,
    )
    from peerdg.report.runs import read_run
    from peerdg.report.tables import final_table, profile_table

    console.print(final_table(out))
    if profile:
        console.print(profile_table(read_run(out)))
    console.print(f"Model in {out}/model. Use it with: peerdg predict {out} IMAGE", markup=False)


def train_into(
    config: RunConfig,
    out: Path,
    existing: Existing,
    *,
    quiet: bool = False,
    label: str = "",
    profile: bool = False,
    budget: TimeBudget | None = None,
    stop_after: int | None = None,
) -> None:
    """Train into the run folder `out`, showing progress unless `quiet`."""
    run = RunFolder.open(out, config, existing=existing)  # before torch: refusals are instant
    try:
        from peerdg.run.progress import ConsoleProgress, Silent
        from peerdg.run.runner import execute

        progress = Silent() if quiet else ConsoleProgress(error_console, label)
        try:
            execute(config, run, progress, profile=profile, budget=budget, stop_after=stop_after)
        finally:
            progress.close()
    finally:
        run.close()
