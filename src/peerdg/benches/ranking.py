"""Whether scores of the source's own images put the rows of a study in the order of the targets."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peerdg.benches.study import MIN_RANKED
from peerdg.benches.table import BenchTable, Row, Spread
from peerdg.evaluate.statistics import scipy_stats
from peerdg.report.tables import CRAFTED_MEAN
from peerdg.terminal import Table


@dataclass(frozen=True)
class Ranking:
    """How well a score orders rows.

    Attributes:
        correlation: Spearman's rank correlation of the rows' means with their target means, over
            the seeds that all rows have; None without such seeds, or if all rows are alike.
        by_seed: The same within single seeds.
    """

    correlation: float | None
    by_seed: tuple[float, ...]

    def text(self) -> str:
        """Format as `0.92 (0.45 to 0.83)`."""
        if self.correlation is None:
            return "-"
        if len(self.by_seed) < 2:
            return f"{self.correlation:.2f}"
        return f"{self.correlation:.2f} ({min(self.by_seed):.2f} to {max(self.by_seed):.2f})"


def ranking_section(table: BenchTable, rankings: Mapping[str, Sequence[str]]) -> list[str]:
    """Compose the part of the page as Markdown; empty if nothing is to be ranked."""
    shown = ranking_table(table, rankings)
    if not shown.rows or table.score == CRAFTED_MEAN:  # there are no targets to agree with
        return []
    return [
        "## Choosing without targets",
        "",
        "Spearman's rank correlation of source-only scores with the target mean, over rows: of "
        "their means over the seeds that all of them have and, in brackets, within single seeds. "
        "1: the same order.",
        "",
        shown.markdown(),
    ]


def ranking_table(table: BenchTable, rankings: Mapping[str, Sequence[str]]) -> Table:
    """Tabulate how well validation and crafted validation order rows."""
    lines = []
    for name, methods in rankings.items():
        rows = [row for row in table.rows if row.method in methods and row.score is not None]
        if len(rows) >= MIN_RANKED:
            source, crafted = (rank(rows, score) for score in ("source_val", "crafted"))
            lines.append([name, str(len(rows)), source.text(), crafted.text()])
    return Table(["rows", "n", "source val", CRAFTED_MEAN], lines)


def rank(rows: Sequence[Row], score: str) -> Ranking:
    """Correlate a score with the target mean over rows.

    Args:
        rows: Finished rows.
        score: The attribute that holds it.
    """
    scores = [_by_seed(row, getattr(row, score)) for row in rows]
    common = [s for s in rows[0].seeds if all(s in row.by_seed for row in rows)]
    common = [s for s in common if all(s in values for values in scores)]
    if not common:
        return Ranking(None, ())
    ours = np.array([[values[seed] for seed in common] for values in scores])  # (rows, seeds)
    targets = np.array([[row.by_seed[seed] for seed in common] for row in rows])
    single = [_spearman(ours[:, n], targets[:, n]) for n in range(len(common))]
    whole = _spearman(ours.mean(1), targets.mean(1))
    return Ranking(whole, tuple(value for value in single if value is not None))


def _by_seed(row: Row, found: Spread | None) -> dict[int, float]:
    """Return a score for each seed; empty unless all runs of the row have it."""
    if found is None or len(found.values) < len(row.seeds):
        return {}
    return dict(zip(row.seeds, found.values, strict=True))


def _spearman(scores: NDArray[np.float64], targets: NDArray[np.float64]) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal values have no order, which is looked for below
        found = float(scipy_stats().spearmanr(scores, targets).statistic)
    return found if np.isfinite(found) else None
