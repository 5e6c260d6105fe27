"""`peerdg runs`: list and compare run folders."""

from pathlib import Path

from peerdg.errors import ConfigError
from peerdg.terminal import console


def runs(
    places: tuple[Path, ...] = (Path("runs"),),
    /,
    *,
    compare: bool = False,
    report: Path | None = None,
    title: str = "Comparison",
) -> None:
    """List run folders with their status, or compare finished ones over seeds.

    Args:
        places: Run folders, folders that contain them, or the runs.json of a report.
        compare: One row per method: mean and standard deviation over seeds, fluctuation, and
            the regret of each rule of model selection.
        report: Folder for a report: report.md, its figures, and runs.json with the records.
        title: Heading of the report.
    """
    from peerdg.report.comparable import comparison_notes, require_comparable
    from peerdg.report.comparison import write_comparison
    from peerdg.report.runs import collect_runs
    from peerdg.report.selection import selection_table
    from peerdg.report.tables import comparison, runs_table, targets_table
    from peerdg.report.variants import by_variant, variant_differences
    from peerdg.terminal import visible

    found = collect_runs(places)
    if not found:
        where = ", ".join(map(str, places))
        raise ConfigError(f"No run was found in {where}.", hint="Make one with `peerdg train`.")
    if not compare and report is None:
        console.print(runs_table(found))
        return
    if not by_variant(found):
        raise ConfigError("No run is finished yet.", hint="`peerdg runs` shows how far they are.")
    require_comparable(found)
    console.print(comparison(found))
    if any(run.targets for run in found):
        console.print(targets_table(found))
        console.print(selection_table(found))
    groups = by_variant(found)
    for sentence in (*variant_differences(groups), *comparison_notes(groups)):
        console.print(visible(sentence), markup=False, soft_wrap=True)
    if report is not None:
        page = write_comparison(found, report, title=title)
        console.print(f"Report: {page}", markup=False)
