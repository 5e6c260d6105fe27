"""`peerdg resume`: continue an interrupted run."""

from pathlib import Path

from peerdg.cli.flags import Json, OptionalWhole, Plugin, Quiet, Whole
from peerdg.methods.registry import loaded_plugin
from peerdg.run.config import resolve
from peerdg.run.folder import read_run_config


def resume(
    run: Path,
    /,
    *,
    root: str | None = None,
    device: str | None = None,
    threads: OptionalWhole = None,
    accept_new_data: bool = False,
    stop_after: OptionalWhole = None,
    processes: Whole = 1,
    quiet: Quiet = False,
    as_json: Json = False,
    plugin: Plugin = None,
) -> None:
    """Continue a run that was stopped or killed. The result is the same as without interruption.

    Example: `peerdg resume runs/first`

    Args:
        run: Run folder. If it only has a `config.toml`, the run is started.
        root: Folder with the data, if it was moved.
        device: auto, cpu, cuda, ...
        threads: Number of CPU threads.
        accept_new_data: Start again if the data has changed.
        stop_after: Epoch after which to save and stop.
        processes: Number of processes that share each batch.
    """
    from peerdg.cli.train import run_and_report, share_among

    share_among(processes)
    loaded = loaded_plugin()
    given = {"root": root, "device": device, "threads": threads}
    given["plugin"] = loaded.identity if loaded else None
    config = resolve(
        read_run_config(run), {name: value for name, value in given.items() if value is not None}
    )
    run_and_report(
        config,
        run,
        "renew" if accept_new_data else "resume",
        quiet=quiet,
        as_json=as_json,
        stop_after=stop_after,
    )
