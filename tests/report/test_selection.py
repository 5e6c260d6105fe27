from peerdg.report.compare import by_variant, choices
from peerdg.report.page import DETAILS, compose_pages
from peerdg.report.table import crafted_table, make_table, selection_table
from tests.report.made import peer

RUNS = [peer(0), peer(1)]
GROUP = by_variant(RUNS)


def test_rules_are_compared_with_their_regret_over_seeds():
    table = selection_table(GROUP)
    # Target means, seed 0: 50, 50, 65. Seed 1: 60, 65, 60. The oracle takes epochs 3 and 2.
    # Source validation takes epochs 2 and 3, crafted validation (blur, edges) epochs 1 and 2.
    assert list(table.columns) == [
        "target mean by selection", "last", "regret", "source-val", "regret",
        "crafted-val", "regret", "oracle (sees targets)",
    ]  # fmt: skip
    assert table.rows == [
        ["peer", "62.5 ± 3.5", "2.5 ± 3.5", "55.0 ± 7.1", "10.0 ± 7.1",
         "57.5 ± 10.6", "7.5 ± 10.6", "65.0 ± 0.0"],
    ]  # fmt: skip
    chosen = [[choice.epoch for choice in choices(run).values()] for run in RUNS]
    assert chosen == [[3, 2, 1, 3], [3, 3, 2, 2]]


def test_crafted_validation_is_given_over_the_disjoint_and_over_all_families():
    table = crafted_table(GROUP)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["source val"] == "93.0 ± 1.4"
    assert row["crafted val"] == "36.0 ± 8.5"  # 30 and 42
    assert row["all families"] == "54.0 ± 5.7"  # 50 and 58
    assert row["color"] == "90.0 ± 0.0"
    assert list(table.columns)[4:] == ["blur", "color", "edges"]
    few = crafted_table(by_variant([peer(0, n=42), peer(1, n=42)]))
    assert few.rows[0][1] == "93.0 ± 1.4 (n=42)"


def test_only_rules_that_could_choose_are_explained():
    def section(groups) -> str:
        pages = compose_pages(make_table(groups), groups, title="t")
        return pages[DETAILS].partition("## Model sel")[2]

    whole = section(GROUP)
    assert "oracle: mean target accuracy, NOT AVAILABLE" in whole and "- crafted-val: " in whole
    uncrafted = section(by_variant([peer(seed, ("validation", "art")) for seed in (0, 1)]))
    assert "- source-val: " in uncrafted and "rafted" not in uncrafted
    assert "oracle" not in section(by_variant([peer(0, ("validation", "crafted:blur"))]))
