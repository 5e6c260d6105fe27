from pathlib import Path

import pytest

from peerdg.report.comparison import comparison_page
from peerdg.report.result import RunResult
from peerdg.report.selection import (
    choices_table,
    crafted_table,
    selection_section,
    selection_table,
    settings_findings,
)

SERIES = {
    # epochs 1, 2, 3
    "validation": [[90, 95, 94], [90, 91, 92]],
    "crafted:blur": [[50, 40, 30], [50, 60, 40]],
    "crafted:edges": [[50, 40, 30], [50, 60, 44]],
    "crafted:color": [[0, 0, 90], [0, 0, 90]],
    "art": [[60, 50, 70], [66, 70, 64]],
    "sketch": [[40, 50, 60], [54, 60, 56]],
}


def run(seed: int, domains=tuple(SERIES), *, shift: float = 0.0, w: float = 2.0) -> RunResult:
    """A finished run of PEER; `shift` is added to every accuracy."""
    config = {
        "method": "peer", "seed": seed, "peer": {"regularizer": "barlow-twins", "w": w, "k": 1},
        "benchmark": "own-data", "backbone": "tiny", "budget": "quick", "evaluate_every": 1,
        "pretrain": {"epochs": 1},
        "train": {"epochs": 3, "batch_size": 8, "optimizer": "adam", "lr": 0.01},
    }  # fmt: skip
    records = [
        {"kind": "evaluation", "phase": "train", "epoch": n + 1, "model": model,
         "domain": d, "accuracy": (a + shift) if model == "task" else 1.0}
        for model in ("proxy", "task")
        for d in domains
        for n, a in enumerate(SERIES[d][seed])
    ]  # fmt: skip
    return RunResult(Path(f"peer-{seed}-{w}"), config, "done", records, [])


RUNS = [run(0), run(1)]


def test_rules_stand_side_by_side_with_their_regret_over_seeds():
    table = selection_table(RUNS)
    # Target means, seed 0: 50, 50, 65; seed 1: 60, 65, 60. The oracle takes epochs 3 and 2.
    # Source validation takes epochs 2 and 3, crafted validation (blur, edges) epochs 1 and 2.
    assert list(table.columns) == [
        "target mean by selection", "last", "regret", "source-val", "regret",
        "crafted-val", "regret", "oracle (sees targets)",
    ]  # fmt: skip
    assert table.rows == [
        ["peer", "62.5 ± 3.5", "2.5 ± 3.5", "55.0 ± 7.1", "10.0 ± 7.1",
         "57.5 ± 10.6", "7.5 ± 10.6", "65.0 ± 0.0"],
    ]  # fmt: skip


def test_every_run_lists_what_each_rule_chose():
    rows = choices_table(RUNS).rows
    assert rows[:4] == [
        ["peer, seed 0", "last", "3", "-", "65.0", "0.0"],
        ["peer, seed 0", "source-val", "2", "95.0", "50.0", "15.0"],
        ["peer, seed 0", "crafted-val", "1", "50.0", "50.0", "15.0"],
        ["peer, seed 0", "oracle (sees targets)", "3", "65.0", "65.0", "0.0"],
    ]
    assert [row[2] for row in rows[4:]] == ["3", "3", "2", "2"]


def test_crafted_validation_is_given_over_the_disjoint_and_over_all_families():
    table = crafted_table(RUNS)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["source val"] == "93.0 ± 1.4"
    assert row["crafted val"] == "36.0 ± 8.5"  # 30 and 42
    assert row["all families"] == "54.0 ± 5.7"  # 50 and 58
    assert row["color"] == "90.0 ± 0.0"
    assert list(table.columns)[4:] == ["blur", "color", "edges"]


def test_the_page_says_that_the_oracle_is_no_option():
    page = comparison_page(RUNS, title="t")
    assert "## Model selection" in page
    assert "oracle: mean target accuracy, NOT AVAILABLE IN PRACTICE" in page
    assert "crafted:" not in page.split("## Model selection")[0]  # no table of targets has them
    assert selection_table(RUNS).markdown() in page
    assert crafted_table(RUNS).markdown() in page


def test_without_targets_only_epochs_and_scores_are_reported():
    runs = [run(0, ("validation", "crafted:blur"))]
    section = "\n".join(selection_section(runs))
    assert "by selection" not in section
    assert choices_table(runs).rows == [
        ["peer, seed 0", "last", "3", "-", "-", "-"],
        ["peer, seed 0", "source-val", "2", "95.0", "-", "-"],
        ["peer, seed 0", "crafted-val", "1", "50.0", "-", "-"],
    ]


def test_without_crafted_images_there_is_no_column_and_no_table_for_them():
    runs = [run(0, ("validation", "art"))]
    assert "crafted-val" not in selection_table(runs).columns
    assert "Crafted validation" not in "\n".join(selection_section(runs))


def test_of_several_settings_the_preferred_one_is_named_with_its_regret():
    better = [run(0, shift=3, w=0.1), run(1, shift=3, w=0.1)]
    assert settings_findings(RUNS) == []
    (sentence,) = settings_findings([*RUNS, *better])
    assert sentence.startswith("of peer w=2, peer w=0.1, crafted validation prefers peer w=0.1 ")
    assert "(39.0); its regret is 0.0 points" in sentence


@pytest.mark.parametrize(
    "other",
    [
        ("validation", "art"),
        ("crafted:blur", "art", "sketch"),
        ("crafted:blur", "crafted:edges", "crafted:color", "art"),
    ],
)
def test_settings_judged_on_other_images_are_not_compared(other):
    assert settings_findings([*RUNS, run(0, other, w=0.1)]) == []


def test_only_rules_that_could_choose_are_explained():
    without = [run(seed, ("validation", "art")) for seed in (0, 1)]
    text = "\n".join(selection_section(without))
    assert "- source-val: " in text
    assert "crafted-val" not in text
    assert "- crafted-val: " in "\n".join(selection_section(RUNS))
