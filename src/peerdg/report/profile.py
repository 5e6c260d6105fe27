"""Where the time of a run went, by stage."""

from collections.abc import Sequence

from peerdg.report.escape import markdown_text
from peerdg.report.runs import RunResult
from peerdg.report.tables import Table


def profile_table(run: RunResult) -> Table:
    """Seconds and share of each stage of one profiled run, the longest first."""
    profile = run.profile or {"seconds": 0.0, "stages": {}}
    whole = profile["seconds"]
    longest_first = sorted(profile["stages"].items(), key=lambda item: -item[1]["seconds"])
    rows = [
        [name, f"{spent['seconds']:.2f}", _share(spent["seconds"], whole), _each(spent)]
        for name, spent in longest_first
    ]
    total = ["all", f"{whole:.2f}", _share(whole, whole), ""]
    return Table(["stage", "seconds", "share", "ms per call"], [*rows, total])


def profile_section(runs: Sequence[RunResult]) -> list[str]:
    """The part of a report about the profiled runs among `runs`; empty if there is none."""
    lines: list[str] = []
    for run in runs:
        if run.profile is not None:
            title = markdown_text(f"Where the time went: {run.method}, seed {run.seed}")
            lines += [f"## {title}", "", profile_table(run).markdown()]
    return lines


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _each(spent: dict[str, float]) -> str:
    return f"{1e3 * spent['seconds'] / spent['calls']:.2f}" if spent["calls"] else "-"
