"""`peerdg resume`: go on with an interrupted run."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from peerdg.cli.flags import PLUGIN, whole_number
from peerdg.methods.registry import loaded_plugin
from peerdg.run.config import resolve
from peerdg.run.folder import read_run_config


def resume(
    run: Path,
    /,
    *,
    root: Annotated[str | None, Parameter(help="folder with the data, if it has moved")] = None,
    device: Annotated[str | None, Parameter(help="auto, cpu, cuda, ...")] = None,
    threads: Annotated[int | None, Parameter(help="CPU threads", converter=whole_number)] = None,
    accept_new_data: Annotated[bool, Parameter(help="start anew if the data has changed")] = False,
    stop_after: Annotated[
        int | None, Parameter(help="save and stop after this epoch", converter=whole_number)
    ] = None,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), help="no progress")] = False,
    plugin: Annotated[Path | None, PLUGIN] = None,
) -> None:
    """Continue a run that was stopped or killed. It ends as if it had not been.

    Args:
        run: The run folder. It may hold only a `config.toml`: then the run starts.
    """
    from peerdg.cli.train import run_and_report

    loaded = loaded_plugin()
    given = {"root": root, "device": device, "threads": threads}
    given["plugin"] = loaded.identity if loaded else None
    config = resolve(
        read_run_config(run), {name: value for name, value in given.items() if value is not None}
    )
    run_and_report(
        config, run, "renew" if accept_new_data else "resume", quiet=quiet, stop_after=stop_after
    )
