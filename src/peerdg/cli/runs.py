"""`peerdg runs`: list and compare run folders."""

from pathlib import Path

from peerdg.cli.console import console
from peerdg.errors import ConfigError


def runs(folders: tuple[Path, ...] = (Path("runs"),), /, *, compare: bool = False) -> None:
    """List run folders with their status, or compare finished ones over seeds.

    Args:
        folders: Run folders, or folders that contain them at any depth.
        compare: One row per method: mean and standard deviation over seeds, and fluctuation.
    """
    from peerdg.report.runs import find_runs, read_run
    from peerdg.report.tables import comparison, runs_table, targets_table

    found = find_runs(folders)
    if not found:
        where = ", ".join(map(str, folders))
        raise ConfigError(f"No run was found in {where}.", hint="Make one with `peerdg train`.")
    results = [read_run(path) for path in found]
    if not compare:
        console.print(runs_table(results))
        return
    console.print(comparison(results).rich())
    console.print(targets_table(results).rich())
