"""Whether source-only scores put rows in the order of the targets."""

from dataclasses import replace

import numpy as np
import pytest

from peerdg.benches.ranking import rank, ranking_section, ranking_table
from peerdg.benches.report import bench_page
from peerdg.benches.study import Study
from peerdg.benches.table import BenchTable, Row, Spread, bench_table
from tests.benches.test_table import GROUPS


def row(name: str, targets: dict[int, float], crafted: tuple[float, ...] | None) -> Row:
    return Row(
        method=name,
        seeds=tuple(targets),
        score=Spread.of(targets.values()),
        by_seed=targets,
        crafted=None if crafted is None else Spread.of(crafted),
    )


def plain_spearman(a: list[float], b: list[float]) -> float:
    """Without ties: 1 - 6 Σ d² / (n (n² - 1)), d the difference of ranks."""
    d = np.argsort(np.argsort(a)) - np.argsort(np.argsort(b))
    return 1 - 6 * float((d**2).sum()) / (len(a) * (len(a) ** 2 - 1))


def test_it_is_the_rank_correlation_of_means_and_of_single_seeds():
    rng = np.random.default_rng(0)
    targets, crafted = rng.uniform(50, 70, (6, 3)), rng.uniform(80, 90, (6, 3))
    rows = [
        row(f"r{n}", dict(zip((4, 7, 9), map(float, targets[n]), strict=True)), tuple(crafted[n]))
        for n in range(6)
    ]
    found = rank(rows, "crafted")
    assert found.correlation == pytest.approx(plain_spearman(crafted.mean(1), targets.mean(1)))
    expected = [plain_spearman(crafted[:, n], targets[:, n]) for n in range(3)]
    assert found.by_seed == pytest.approx(expected)
    low, high = min(expected), max(expected)
    assert found.text() == f"{found.correlation:.2f} ({low:.2f} to {high:.2f})"


def test_only_seeds_that_all_rows_have_count():
    """A row with another seed is not above others because that seed is easy."""
    rows = [
        row("a", {0: 60.0, 1: 90.0}, (80.0, 99.0)),
        row("b", {0: 61.0}, (81.0,)),
        row("c", {0: 62.0}, (82.0,)),
    ]
    assert rank(rows, "crafted").correlation == pytest.approx(1.0)
    assert rank(rows, "crafted").text() == "1.00"
    rows[0] = replace(rows[0], seeds=(1,), by_seed={1: 90.0}, crafted=Spread.of([99.0]))
    assert rank(rows, "crafted").text() == "-"


def test_rows_without_the_score_or_all_alike_have_no_order():
    alike = [row(name, {0: 60.0 + n}, (80.0,)) for n, name in enumerate("abc")]
    assert rank(alike, "crafted").correlation is None
    assert rank([*alike, row("d", {0: 1.0}, None)], "crafted").text() == "-"
    assert rank(alike, "source_val").text() == "-"
    missing = row("e", {0: 1.0, 1: 2.0}, (80.0,))  # one of its two runs has no crafted score
    assert rank([*alike, missing], "crafted").text() == "-"


def test_the_page_has_the_rankings_of_rows_that_it_has():
    table = bench_table(GROUPS)
    names = [row.method for row in table.rows]
    rankings = {"all | of them": names, "two": [*names[:2], "peer"]}
    assert [line[:2] for line in ranking_table(table, rankings).rows] == [
        ["all | of them", str(len(names))]
    ]
    runs = [run for group in GROUPS.values() for run in group]
    page = bench_page(table, runs, title="x", study=Study(rankings=rankings))
    assert "## Choosing without targets" in page and "| all | of them" not in page
    assert ranking_section(table, {}) == [] == ranking_section(BenchTable(
        data="d", score="target mean", reference="a", plain=None, rows=()), rankings
    )  # fmt: skip


def test_without_targets_crafted_validation_is_not_compared_with_itself():
    table = bench_table(GROUPS)
    rankings = {"all": [row.method for row in table.rows]}
    assert ranking_section(table, rankings) != []
    assert ranking_section(replace(table, score="crafted val"), rankings) == []
