"""`peerdg train`: train a method on one domain."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.cli.flags import (
    ConfigFile,
    Data,
    Options,
    Plugin,
    Quiet,
    explained_choices,
    resolve_flags,
)
from peerdg.data.benchmarks import OWN_DATA
from peerdg.errors import ConfigError
from peerdg.options import merge, read_toml
from peerdg.run.config import RunConfig
from peerdg.run.folder import Existing, RunFolder
from peerdg.run.progress import ConsoleProgress, ProgressDisplay
from peerdg.terminal import console, error_console


def train(
    data: Data = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    resume: bool = False,
    accept_new_data: bool = False,
    overwrite: bool = False,
    profile: bool = False,
    quiet: Quiet = False,
    minutes: float | None = None,
    file: ConfigFile = None,
    plugin: Plugin = None,
    options: Options = None,
) -> None:
    """Train a method on one labeled domain, and watch it on domains it never sees.

    Example: `peerdg train photos/ --target sketches/ --epochs 20 --peer.k 5`

    Args:
        out: Run folder; default: runs/DATA-METHOD-SEED.
        resume: Continue the run in this folder.
        accept_new_data: Continue it, or replace it if the data has changed.
        overwrite: Replace the run in this folder.
        profile: Measure where the time goes.
        minutes: Choose epochs and k so that the run takes about this long.
    """
    if overwrite and (resume or accept_new_data):
        other = "--resume" if resume else "--accept-new-data"
        raise ConfigError(f"{other} and --overwrite exclude each other.")
    config, choices = resolve_flags(data, options, file=file)
    for line in [] if quiet else explained_choices(config, choices):
        error_console.print(line)
    name = Path(config.root or "").stem if config.benchmark == OWN_DATA else config.benchmark
    seeds = f"{config.seed}" + ("" if config.train_seed is None else f"-{config.train_seed}")
    out = out or Path("runs") / f"{name or OWN_DATA}-{config.name}-{seeds}"
    existing: Existing = "overwrite" if overwrite else "resume" if resume else "refuse"
    existing = "renew" if accept_new_data else existing
    chosen = merge(read_toml(file) if file else {}, options or {})
    run_and_report(
        config, out, existing, quiet=quiet, profile=profile, minutes=minutes, options=chosen
    )


def run_and_report(
    config: RunConfig, out: Path, existing: Existing, *, quiet: bool, **options: Any
) -> None:
    """Train into `out` (see `start_run`), then print the accuracies and how to use the model."""
    if existing == "resume" and RunFolder(out).done:
        error_console.print(f"{out} is already complete.")
    from peerdg.run.run import start_run

    progress = ProgressDisplay() if quiet else ConsoleProgress(error_console)
    start_run(config, out, existing=existing, progress=progress, **options)
    from peerdg.report.runs import read_run
    from peerdg.report.table import final_table, profile_table

    trained = read_run(out)
    console.print(final_table(trained))
    if options.get("profile"):
        console.print(profile_table(trained))
    console.print(f"Model in {out}/model. Use it with: peerdg predict {out} IMAGE")
