"""`peerdg runs`: list and compare run folders."""

from pathlib import Path

from peerdg.errors import ConfigError
from peerdg.terminal import console, visible


def runs(
    places: tuple[Path, ...] = (Path("runs"),),
    /,
    *,
    compare: bool = False,
) -> None:
    """List run folders with their status, or compare finished ones over seeds.

    Example: `peerdg runs runs/demo --compare`

    Args:
        places: Run folders, folders that contain them, or folders with a report's records.
        compare: Print a row per method: accuracy, fluctuation, model selection and costs.
    """
    from peerdg.report.compare import by_variant, require_comparable, variant_differences
    from peerdg.report.runs import collect_runs
    from peerdg.report.table import make_table, runs_table, selection_table, targets_table

    results = collect_runs(places)
    if not results:
        where = ", ".join(map(str, places))
        raise ConfigError(f"No runs were found in {where}.", hint="Start one with `peerdg train`.")
    selected = [
        f"The tables show the last epoch. {run.path} deploys epoch {run.deployed_epoch} "
        f"(--select {run.config['select']})."
        for run in results
        if run.status == "done" and run.evaluations
        if run.deployed_epoch != run.evaluations[-1]["epoch"]
    ]
    if not compare:
        console.print(runs_table(results))
        for sentence in selected:
            console.print(visible(sentence))
        return
    groups = by_variant(results)
    if not groups:
        raise ConfigError("No run is finished yet.", hint="`peerdg runs` shows their status.")
    require_comparable(results)
    table = make_table(groups)
    console.print(table.table())
    if table.rows[0].targets:
        labeled = table.labeled(groups)
        console.print(targets_table(labeled))
        console.print(selection_table(labeled))
    for sentence in (*selected, *table.notes(), *table.cautions, *variant_differences(groups)):
        console.print(visible(sentence))
