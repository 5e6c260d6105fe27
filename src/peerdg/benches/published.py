"""The rows of a bench beside published numbers."""

from collections.abc import Mapping, Sequence

from peerdg.benches.study import Published
from peerdg.benches.table import BenchTable, Row
from peerdg.evaluate.statistics import spread
from peerdg.terminal import Table, markdown_text


def published_section(table: BenchTable, published: Published | None) -> list[str]:
    """Compose the part of the page as Markdown; empty if no row of the table was published."""
    shown = None if published is None else published_table(table, published)
    if shown is None or published is None:
        return []
    return [
        "## Beside the published numbers",
        "",
        markdown_text(
            f"Ours / published, in percent. Published: {published.source}. Means are over the "
            "targets of this table. The last column has the differences of these means to the "
            f"first row, ours of the same seeds.{_left_out(shown, published, table)}"
        ),
        "",
        shown.markdown(),
    ]


def _left_out(shown: Table, published: Published, table: BenchTable) -> str:
    """Name published targets and rows of ours that are not in the table, and why."""
    known = dict.fromkeys(target for row in published.accuracy.values() for target in row)
    missing = [target for target in known if target not in shown.columns]
    text = f" Left out, since not all rows have them: {', '.join(missing)}." if missing else ""
    labels = {row.label for row in table.rows if row.targets and row.method in published.accuracy}
    strange = sorted(labels - {row[0] for row in shown.rows})
    return text + (f" Published on other targets only: {', '.join(strange)}." if strange else "")


def published_table(table: BenchTable, published: Published) -> Table | None:
    """Set finished rows beside their published accuracies, in the order of the latter.

    Args:
        table: The bench.
        published: Accuracy by row and target, in percent.

    Returns:
        None if no row was published, or none on the targets that there are.
    """
    ours = {row.method: row for row in table.rows if row.targets}
    rows = [
        ours[name]
        for name, theirs in published.accuracy.items()
        if name in ours and ours[name].targets.keys() & theirs.keys()
    ]
    targets = [
        target
        for target in (rows[0].targets if rows else ())
        if all(target in published.accuracy[row.method] for row in rows)
    ]
    if not targets:
        return None
    columns = ["method", "seeds", *targets, "mean", f"vs {rows[0].method}"]
    return Table(columns, [_cells(row, rows[0], targets, published.accuracy) for row in rows])


def _cells(
    row: Row, first: Row, targets: Sequence[str], accuracy: Mapping[str, Mapping[str, float]]
) -> list[str]:
    theirs = accuracy[row.method]
    by_target = [
        f"{spread(row.targets[target].values)} / {theirs[target]:.1f}" for target in targets
    ]
    published = _mean([theirs[target] for target in targets])
    ours, base = _means(row, targets), _means(first, targets)
    mean = f"{spread(list(ours.values()))} / {published:.1f}"
    gained = [ours[seed] - base[seed] for seed in ours if seed in base]
    difference = "-"
    if row is not first and gained:
        published -= _mean([accuracy[first.method][target] for target in targets])
        difference = f"{_mean(gained):+.1f} / {published:+.1f}"
    return [row.label, str(len(row.seeds)), *by_target, mean, difference]


def _means(row: Row, targets: Sequence[str]) -> dict[int, float]:
    """Average over the targets, for each seed."""
    values = zip(*(row.targets[target].values for target in targets), strict=True)
    return {seed: _mean(found) for seed, found in zip(row.seeds, values, strict=True)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
