"""The table of a report: each number by its definition, in every format."""

import csv
import io
import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from peerdg.evaluate.statistics import accuracy_spread, accuracy_text, paired_difference, spread
from peerdg.report.compare import by_variant
from peerdg.report.page import DETAILS, compose_pages
from peerdg.report.runs import RunResult
from peerdg.report.table import (
    ReportTable,
    common_period,
    final_table,
    fluctuation_table,
    gradients_table,
    make_table,
    profile_table,
    runs_table,
    targets_table,
)
from peerdg.run.config import resolve
from tests.report.made import GROUPS, level, peer


@pytest.fixture(scope="module")
def table() -> ReportTable:
    return make_table(GROUPS, failed={"l2d": 1})


def row(table: ReportTable, name: str):
    return next(row for row in table.rows if row.method == name)


def test_scores_are_of_the_last_epoch_over_seeds(table):
    erm = row(table, "erm")
    assert erm.score.by_seed == {0: 65.0, 1: 66.0, 2: 67.0}  # mean of 60 and 70, and the seed
    assert (erm.score.mean, erm.score.std) == (66.0, 1.0)
    assert erm.targets["uci"].mean == 71.0 and erm.values["source val"].mean == 90.0
    assert row(table, "l2d").seeds == (0, 1) and row(table, "l2d").failed == 1


def test_differences_are_paired_with_the_reference(table):
    assert (table.reference, table.plain) == ("erm", "erm")
    found = row(table, "randaugment").difference
    assert (found.n, found.mean) == (3, pytest.approx(np.mean([3, 4, 7])))
    expected = paired_difference({0: 3.0, 1: 4.0, 2: 7.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert found == expected
    assert row(table, "erm").difference is None
    assert row(table, "l2d").difference.n == 2
    other = make_table(GROUPS, reference="p-ens")
    assert row(other, "erm").difference.mean == 1.0


def test_pairs_are_made_by_seed_whatever_the_order_of_the_runs(table):
    """Folders are read in the order of their names: seed 10 before seed 2."""
    first, second, third = GROUPS["randaugment"]
    mixed = {**GROUPS, "randaugment": [third, first, second], "p-ens": GROUPS["p-ens"][::-1]}
    questions = {"q": [(("randaugment",), ("p-ens",))]}
    found = make_table(mixed, questions=questions)
    assert row(found, "randaugment").difference == row(table, "randaugment").difference
    usual = make_table(GROUPS, questions=questions)
    assert found.answers[0].differences == usual.answers[0].differences
    by_seed = found.answers[0].differences["target mean"].by_seed
    assert by_seed == {0: 4.0, 1: 5.0, 2: 8.0}
    # Seeds that only one side has belong to no pair.
    apart = {"erm": GROUPS["erm"][:2], "randaugment": GROUPS["randaugment"][1:]}
    assert row(make_table(apart), "randaugment").difference.mean == 4.0


def test_steadiness_is_that_of_the_deployed_network_around_its_trend(table):
    """Epochs 6, 7 and 8, the first five periods left out: around a mean of three one moves."""

    def moved(*accuracies: float) -> float:
        return float(np.std([0, accuracies[1] - np.mean(accuracies), 0]))

    assert row(table, "erm").values["steadiness"].mean == pytest.approx(moved(4.0, 1.0, 0.0))
    assert row(table, "p-ens").values["steadiness"].mean == pytest.approx(moved(4.0, 0.5, 0.0))


def test_late_mean_is_that_of_the_last_five_evaluations(table):
    """Epochs 10 to 14 of 14, of which 11 and 13 are up by 1, the average by half of it."""
    assert all(
        row.values["late mean"] is None for row in table.rows
    )  # eight evaluations are too few
    assert "late mean" not in table.further().columns
    runs = {
        name: [level(name, seed, level=60 + seed, epochs=14) for seed in range(2)]
        for name in ("randaugment", "p-ens")
    }
    questions = {"Does averaging help?": [(("p-ens",), ("randaugment",))]}
    found = make_table(runs, questions=questions)
    assert row(found, "randaugment").values["late mean"].values == pytest.approx((65.4, 67.4))
    assert row(found, "p-ens").values["late mean"].values == pytest.approx((65.2, 67.2))
    assert found.answers[0].differences["late mean"].mean == pytest.approx(-0.2)
    assert found.answers[0].differences["target mean"].mean == 0.0  # epoch 14 has no swing
    assert "66.4 ± 1.4" in found.further().rows[0]
    assert found.late_epochs == ((10, 14),) and table.late_epochs == ()
    assert "epochs 10 to 14" in compose_pages(found, runs, title="t")[DETAILS]
    line = next(csv.DictReader(io.StringIO(found.csv())))
    assert float(line["late mean"]) == pytest.approx(66.4)


def test_late_mean_is_over_the_same_evaluations_for_all_methods():
    """Every fourth epoch, since PEER was evaluated then: 24 to 40 of 40, none of them up."""
    often = level("randaugment", 0, epochs=40)
    seldom = level("peer", 0, epochs=40, options={"peer": {"k": 4}, "evaluate_every": 4})
    found = make_table({"randaugment": [often], "peer": [seldom]})
    assert found.period == 4 and {row.values["late mean"].mean for row in found.rows} == {65.0}
    assert found.late_epochs == ((24, 40),)
    longer = make_table({"randaugment": [often], "p-ens": [level("p-ens", 0, epochs=60)]})
    assert longer.late_epochs == ((36, 40), (56, 60))
    assert often.late_mean("model", every=1) == pytest.approx(65.4)  # by itself: epochs 36 to 40


def test_fluctuation_is_over_the_same_evaluations_for_all_methods():
    often, seldom = level("randaugment", 0), level("peer", 0, options={"peer": {"k": 4}})
    assert (often.period, seldom.period) == (1, 4)
    found = make_table({"randaugment": [often], "peer": [seldom]})
    assert found.period == 1 and len({r.values["steadiness"].mean for r in found.rows}) == 1
    cells = list(csv.DictReader(io.StringIO(found.csv())))
    assert [line["steadiness period"] for line in cells] == ["1", "1"]
    # The shortest k that leaves evaluations: four times five periods are more than the run has.
    alone = make_table({"erm": GROUPS["erm"], "peer": [seldom]})
    assert alone.period == 1 and alone.rows[1].values["steadiness"] is not None


def test_fluctuation_goes_by_k_where_evaluations_are_more_frequent():
    def config(method: str, **options: Any) -> RunResult:
        given = {"benchmark": "digits-mini", "budget": "paper", "method": method, **options}
        return RunResult(path=GROUPS["erm"][0].path, config=resolve(given).tables())

    erm, peer, pden = config("erm"), config("peer"), config("pden")
    assert (erm.period, peer.period, pden.period) == (10, 10, 50)
    assert common_period([erm, peer, pden]) == common_period([erm, pden]) // 5 == 10
    frequent = config("erm", evaluate_every=1)
    assert common_period([frequent, config("peer", evaluate_every=1)]) == 10
    # An evaluation that one of them lacks counts for none.
    assert common_period([config("peer", peer={"k": 4}), peer]) == 20


def test_source_only_selection_and_its_cost(table):
    erm = row(table, "erm")
    assert (
        erm.values["by source-val"].mean == 67.0
    )  # epoch 7, the best on validation, is one above the last
    assert erm.values["regret"].values == (3.0, 3.0, 3.0)  # the oracle takes epoch 6, four above it


def test_costs_are_relative_to_plain_training(table):
    assert row(table, "randaugment").values["step seconds"].mean == pytest.approx(0.02)
    assert row(table, "randaugment").step_ratio == pytest.approx(2.0)
    assert row(table, "randaugment").memory_ratio == pytest.approx(1.25)
    assert row(table, "erm").values["seconds"].mean == pytest.approx(0.8)
    without = make_table({name: GROUPS[name] for name in ("randaugment", "p-ens")})
    assert without.plain is None and without.reference == "randaugment"
    assert not any("×" in column for column in without.further().columns)


def test_a_seed_that_ran_next_to_other_work_does_not_make_a_method_expensive():
    first, *others = GROUPS["randaugment"]
    slow = [{**epoch, "seconds": 9 * epoch["seconds"]} for epoch in first.epochs]
    groups = {"erm": GROUPS["erm"], "randaugment": [replace(first, epochs=slow), *others]}
    found = row(make_table(groups), "randaugment")
    assert found.step_ratio == pytest.approx(2.0)
    assert found.values["step seconds"].mean > 0.05  # its seconds are unchanged


def test_the_table_says_what_is_shared_failed_or_a_reconstruction(table):
    cells = {line[0]: line for line in table.table().rows}
    columns = table.table().columns
    assert cells["l2d †"][columns.index("seeds")] == "2 (1 failed)"
    assert cells["erm"][columns.index("vs erm")] == ""
    assert cells["p-ens"][columns.index("vs erm")] == "-1.0 (-1.0, -1.0, -1.0)"
    assert cells["randaugment"][columns.index("vs erm")] == "+4.7 (+3.0, +4.0, +7.0)"
    more = {n: [level(n, seed, level=60 + seed) for seed in range(5)] for n in ("erm", "p-ens")}
    difference = make_table(more).table().rows[1][3]
    assert difference == "+0.0 [+0.0, +0.0]"
    cells = {line[0]: line for line in table.further().rows}
    columns = table.further().columns
    assert cells["randaugment"][columns.index("seconds")] == "2 ± 0 shared"
    assert cells["erm"][columns.index("MB")] == "400 ± 0"
    notes = "\n".join(table.notes())
    for part in ("† reconstruction", "l2d †: 1 runs failed"):
        assert part in notes


def test_a_network_from_elsewhere_and_a_run_on_targets_are_oracles():
    teacher = {"teacher": {"k": 1, "model": "runs/large"}}
    for marked in (level("teacher", 0, options=teacher), level("erm", 0, oracle=True)):
        found = make_table({"a": [marked]})
        assert found.rows[0].marks == ("oracle",) and found.rows[0].label == "a ‡"
        assert "oracle" in found.notes()[0]


def test_a_row_is_inert_if_the_records_of_a_run_say_so():
    def run(seed: int, moved: float) -> RunResult:
        found = level("ada", seed)
        epochs = [{**epoch, "perturbation": moved} for epoch in found.epochs]
        return replace(found, epochs=[*epochs, {"phase": "pretrain", "epoch": 1}])

    found = make_table({"a": [run(0, 2.0), run(1, 0.05)], "b": [run(0, 2.0)]})
    assert [row.label for row in found.rows] == ["a (inert)", "b"]
    assert "(inert): the method" in found.notes()[0]
    assert "a (inert): perturbation 0.05 gray levels." in found.notes()
    lines = csv.DictReader(io.StringIO(found.csv()))
    assert [line["inert"] for line in lines] == ["perturbation 0.05 gray levels", ""]
    assert runs_table([run(1, 0.05)]).rows[0][2] == "ada (inert)"


def test_an_oracle_is_not_the_reference_unless_it_is_asked_for():
    groups = {name: [level(name, 0)] for name in ("randaugment", "erm")}
    groups = {"oracle-erm": [level("oracle-erm", 0, oracle=True)], **groups}
    found = make_table(groups)
    assert (found.reference, found.plain) == ("erm", "erm")
    assert make_table({name: groups[name] for name in list(groups)[:2]}).plain is None
    assert make_table(groups, reference="oracle-erm").reference == "oracle-erm"


def test_a_method_without_a_finished_run_keeps_its_row():
    found = make_table({"peer": [], "erm": GROUPS["erm"]}, failed={"peer": 3}, reference="peer")
    assert found.table().rows[0][:3] == ["peer", "0 (3 failed)", "-"]
    assert found.rows[1].difference is None


def test_without_targets_crafted_validation_is_the_score():
    found = make_table({"erm": [level("erm", 0, targets=("crafted:blur",))]})
    assert found.score == "crafted val" and found.rows[0].score.mean == 60.0
    assert (
        found.rows[0].values["by source-val"] is None and found.rows[0].values["steadiness"] is None
    )
    cells = dict(zip(found.table().columns, found.table().rows[0], strict=True))
    assert list(cells)[:3] == ["method", "seeds", "crafted val"] and cells["crafted val"] == "60.0"


def test_csv_and_plain_data_have_every_number_in_full(table):
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["method"] for row in rows] == list(GROUPS)
    randaugment = row(table, "randaugment")
    assert float(rows[1]["difference"]) == randaugment.difference.mean
    assert float(rows[1]["target uci"]) == randaugment.targets["uci"].mean
    assert rows[1]["shared with"] == "p-ens" and rows[3]["reconstruction"] == "True"
    assert rows[0]["difference"] == ""
    again = json.loads(json.dumps(asdict(table)))
    assert again["rows"][0]["score"]["mean"] == 66.0
    assert len(again["rows"][1]["difference"]["by_seed"]) == 3


def test_text_of_accuracies_follows_the_number_of_images():
    # Wilson's 95 % interval of 33 of 42 is 64.06 to 88.29.
    assert accuracy_text(100 * 33 / 42, 42) == "78.6 (64-89, n=42)"
    assert accuracy_text(100 * 33 / 42, 42, digits=2, with_n=False) == "78.6 (64-89)"
    assert accuracy_text(100.0, 9) == "100.0 (70-100, n=9)"
    assert accuracy_text(0.0, 1) == "0.0 (0-80, n=1)"
    assert accuracy_text(78.5714, 100) == accuracy_text(78.5714, None) == "78.6"
    assert accuracy_text(78.5714, 100, digits=2) == "78.57"
    assert accuracy_spread([70.0, 80.0], 42) == "75.0 ± 7.1 (n=42)"
    assert accuracy_spread([70.0, 80.0], 100) == "75.0 ± 7.1"
    assert accuracy_spread([70.0], 42) == accuracy_text(70.0, 42)
    assert accuracy_spread([], 42) == spread([]) == "-"
    assert (spread([1.0, 3.0]), spread([2.0])) == ("2.0 ± 1.4", "2.0")


def test_tables_of_targets_mark_few_images():
    few = by_variant([peer(seed, n=42) for seed in (0, 1)])
    found = targets_table(few)
    assert dict(zip(found.columns, found.rows[0], strict=True))["art"] == "67.0 ± 4.2 (n=42)"
    (one,) = targets_table(by_variant([peer(0, n=42)])).rows
    assert one[1] == accuracy_text(70, 42)


def test_the_fluctuation_of_every_network_is_listed(table):
    found = fluctuation_table({"p-ens": GROUPS["p-ens"], "erm": GROUPS["erm"]})
    assert [row[0] for row in found.rows] == ["p-ens model", "p-ens snapshots", "erm model"]
    cells = dict(zip(found.columns, found.rows[1], strict=True))
    assert cells["var"] == f"{np.var([4.0, 0.5, 0.0]):.2f} ± 0.00"
    assert cells["gap"] == "4.00 ± 0.00"
    whole = np.var([0.5 * (e % 2) + 4 * (e == 6) for e in range(1, 9)])
    assert cells["var, all periods"] == f"{whole:.2f} ± 0.00"


def test_gradients_are_compared_with_those_of_cross_entropy():
    def measured(seed: int, *regularizer: float) -> RunResult:
        epochs = [
            {"phase": "train", "epoch": n + 1,
             "gradients": {"cross_entropy": 2.0, "regularizer": value}}
            for n, value in enumerate(regularizer)
        ]  # fmt: skip
        return replace(peer(seed), epochs=[*epochs, {"phase": "train", "epoch": 9}])

    groups = {"peer": [measured(0, 4, 2, 1), measured(1, 2, 2, 3)], "erm": GROUPS["erm"]}
    assert gradients_table(groups).rows == [["peer", "regularizer", "1.5", "1", "1"]]
    assert gradients_table({"erm": GROUPS["erm"]}) is None


def test_a_profile_is_sorted_by_time():
    stages = {"augment": {"seconds": 1.0, "calls": 2}, "backward": {"seconds": 3.0, "calls": 2}}
    found = profile_table(replace(peer(), profile={"seconds": 4.0, "stages": stages}))
    assert found.rows[0] == ["backward", "3.00", "75.0 %", "1500.00"]
    assert [row[0] for row in found.rows] == ["backward", "augment", "all"]


def test_the_tables_of_single_runs_have_the_score_that_the_run_has():
    with_targets, without = peer(n=42), peer(domains=["validation", "crafted:blur"], n=42)
    table = final_table(with_targets)
    assert table.columns == ["accuracy %", "validation", "art", "sketch", "target mean"]
    assert [row[0] for row in table.rows] == ["peer proxy", "peer task (deployed)"]
    assert table.rows[1][1:] == [*(accuracy_text(a, 42) for a in (94, 70, 60)), "65.0 (n=42)"]
    assert final_table(without).rows[1][-1] == "30.0 (n=42)"
    both = runs_table([with_targets, without, replace(without, status="running")])
    assert both.columns[-3:] == ["validation", "target mean", "crafted val"]
    assert [row[-3:] for row in both.rows] == [
        [accuracy_text(94, 42, with_n=False), "65.0 (n=42)", "-"],
        [accuracy_text(94, 42, with_n=False), "-", "30.0 (n=42)"],
        ["-", "-", "-"],
    ]
    assert runs_table([without]).columns[-2:] == ["validation", "crafted val"]
    reconstruction = GROUPS["l2d"][0]
    assert runs_table([reconstruction]).rows[0][2] == "l2d †"
    assert final_table(reconstruction).rows[0][0].startswith("l2d †")
