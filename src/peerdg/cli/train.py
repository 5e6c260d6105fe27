"""`peerdg train`: train a method on one domain."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.cli.flags import ConfigFile, Data, Json, Options, Plugin, Quiet, Whole, resolve_flags
from peerdg.data.benchmarks import OWN_DATA
from peerdg.errors import ConfigError
from peerdg.options import merge, read_toml
from peerdg.run.config import RunConfig
from peerdg.run.folder import Existing, RunFolder
from peerdg.run.launch import launch
from peerdg.run.progress import ConsoleProgress, ProgressDisplay
from peerdg.terminal import command, console, error_console


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
    as_json: Json = False,
    minutes: float | None = None,
    report: bool = False,
    processes: Whole = 1,
    file: ConfigFile = None,
    plugin: Plugin = None,
    options: Options = None,
) -> None:
    """Train a method on one labeled domain, and evaluate it on unseen ones.

    Example: `peerdg train photos/ --target sketches/ --epochs 20 --peer.k 5`

    Args:
        out: Run folder. Default: runs/DATA-METHOD-SEED.
        resume: Continue the run in this folder.
        accept_new_data: Continue the run, or replace it if the data has changed.
        overwrite: Replace the run in this folder.
        profile: Measure the time of each stage.
        minutes: Time budget. Epochs and k are chosen to fit it.
        report: Write a page about the run at its end.
        processes: Number of processes that share each batch, e.g. one per GPU. Slower on one CPU.
    """
    share_among(processes)
    if overwrite and (resume or accept_new_data):
        other = "--resume" if resume else "--accept-new-data"
        raise ConfigError(f"{other} and --overwrite cannot be used together.")
    config, choices = resolve_flags(data, options, file=file)
    chosen = merge(read_toml(file) if file else {}, options or {})
    if data is None and "benchmark" not in chosen:
        hint = "Name a folder of images or a data set, as in `peerdg train photos/`."
        raise ConfigError("No data was given.", hint=hint)
    lines = choices.explain(config.tables()) if choices and not quiet else []
    if minutes is not None:  # drop lines that the time budget overrides
        period = f"{config.method}.{config.method_settings.period_option}"
        lines = [x for x in lines if not re.match(rf"--((pre)?train\.epochs|{period}) ", x)]
    if lines:
        heading = "Chosen for your images; each line begins with the option that changes it:"
        error_console.print("\n  ".join([heading, *lines]))
    name = Path(config.root or "").stem if config.benchmark == OWN_DATA else config.benchmark
    seeds = f"{config.seed}" + ("" if config.train_seed is None else f"-{config.train_seed}")
    out = out or Path("runs") / f"{name or OWN_DATA}-{config.name}-{seeds}"
    if overwrite and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise ConfigError(
            "Each restart by torchrun would repeat --overwrite.", hint=f"Remove {out} instead."
        )
    # `torchrun` repeats the command after a process was lost.
    resume |= os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    existing: Existing = "resume" if resume else "overwrite" if overwrite else "refuse"
    existing = "renew" if accept_new_data else existing
    run_and_report(
        config,
        out,
        existing,
        quiet=quiet,
        as_json=as_json,
        report=report,
        profile=profile,
        minutes=minutes,
        options=chosen,
    )


def share_among(processes: int) -> None:
    """Run this command in several processes instead, unless this is one of them."""
    if processes > 1 and os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(launch(sys.argv[1:], processes))


def run_and_report(
    config: RunConfig,
    out: Path,
    existing: Existing,
    *,
    quiet: bool,
    as_json: bool,
    report: bool = False,
    **options: Any,
) -> None:
    """Train in `out` (see `start_run`), then print accuracies and how to use the model."""
    if report:
        from peerdg.report.html import uplot

        uplot()  # fail early if it is not installed
    if existing == "resume" and RunFolder(out).done:
        error_console.print(f"{out} is already complete.")
    from peerdg.distributed import rank
    from peerdg.run.run import start_run

    progress = ProgressDisplay() if quiet else ConsoleProgress(error_console)
    start_run(config, out, existing=existing, progress=progress, **options)
    if rank():
        return
    from peerdg.models.stored import require_model
    from peerdg.report.runs import as_of, read_run
    from peerdg.report.table import final_table, profile_table

    trained = read_run(out)
    at = as_of(trained, trained.deployed_epoch)
    if report:
        from peerdg.report.html import HTML
        from peerdg.report.pages import write_runs_page

        page = write_runs_page([trained], out / HTML)
    if as_json:
        accuracy = {network: at.final(network) for network in at.networks}
        record = {"run": str(out), "deployed": trained.deployed, "accuracy": accuracy}
        record |= {"page": str(page)} if report else {}
        print(json.dumps(record))  # noqa: T201  (for programs)
        return
    console.print(final_table(at))
    if options.get("profile"):
        console.print(profile_table(trained))
    if config.select != "last":
        chosen = require_model(out / "model")["training"]["selection"]
        console.print(f"Deployed by {chosen}.")
    console.print(f"Model in {out}/model. Use it with: {command('predict', out, 'IMAGE')}")
    made = f"Page: {page}" if report else f"Make a page about it with: {command('report', out)}"
    console.print(made)
