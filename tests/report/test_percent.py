"""Accuracies of few images, and what stands in for a target: in every table that shows them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import peerdg
from peerdg.cli.main import run
from peerdg.crafted import DISJOINT
from peerdg.evaluate.detail import evaluate_in_detail
from peerdg.evaluate.statistics import accuracy_spread, accuracy_text
from peerdg.report.comparison import comparison_page
from peerdg.report.evaluation import class_table, summary_table
from peerdg.report.runs import read_run
from peerdg.report.selection import crafted_table
from peerdg.report.tables import comparison, final_accuracies, listed_runs, targets_table
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits
from tests.report.test_selection_report import RUNS
from tests.run.test_choices import folder

SHORT = {
    "pretrain": {"epochs": 0, "batch_size": 8},
    "train": {"epochs": 2, "batch_size": 8},
    "peer": {"k": 1},
}


def test_few_images_have_their_interval_and_many_have_not():
    # Wilson's 95 % interval of 33 of 42 is 64.06 to 88.29.
    assert accuracy_text(100 * 33 / 42, 42) == "78.6 (64-89, n=42)"
    assert accuracy_text(100 * 33 / 42, 42, digits=2, with_n=False) == "78.6 (64-89)"
    assert accuracy_text(100.0, 9) == "100.0 (70-100, n=9)"
    assert accuracy_text(0.0, 1) == "0.0 (0-80, n=1)"
    assert accuracy_text(78.5714, 99).endswith(", n=99)")
    assert accuracy_text(78.5714, 100) == accuracy_text(78.5714, None) == "78.6"
    assert accuracy_text(78.5714, 100, digits=2) == "78.57"


def test_several_runs_name_the_few_images_they_share():
    assert accuracy_spread([70.0, 80.0], 42) == "75.0 ± 7.1 (n=42)"
    assert accuracy_spread([70.0, 80.0], 100) == "75.0 ± 7.1"
    assert accuracy_spread([70.0], 42) == accuracy_text(70.0, 42)
    assert accuracy_spread([], 42) == "-"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PEER on domains in memory, without a target."""
    out = tmp_path_factory.mktemp("runs") / "without"
    splits = peerdg.Splits(tiny_splits().train, tiny_splits().validation, {})
    peerdg.fit(splits, out=out, model=tiny_classifier(), crafted="all", **SHORT)
    return out


def last_accuracies(path: Path, model: str) -> dict[str, float]:
    """Of each domain, straight from the file."""
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    evaluated = [r for r in records if r["kind"] == "evaluation" and r["model"] == model]
    return {r["domain"]: 100 * r["correct"] / r["n"] for r in evaluated}


def crafted_by_hand(path: Path, model: str) -> float:
    final = last_accuracies(path, model)
    assert len([d for d in final if d.startswith("crafted:")]) == 10
    return sum(final[f"crafted:{family}"] for family in DISJOINT) / 6


def test_without_a_target_the_final_table_has_the_crafted_score(trained: Path):
    table = final_accuracies(read_run(trained))
    assert list(table.columns) == ["accuracy %", "validation", "crafted val"]
    for row, model in zip(table.rows, ("proxy", "task"), strict=True):
        final = last_accuracies(trained, model)
        assert row[1] == accuracy_text(final["validation"], 9)
        assert row[2] == f"{crafted_by_hand(trained, model):.1f} (n=9)"


def test_runs_lists_validation_and_crafted_score_beside_runs_that_have_targets(trained, tmp_path):
    splits = tiny_splits()
    with_targets = peerdg.fit(
        splits, out=tmp_path / "with", model=tiny_classifier(), method="erm", crafted="off",
        pretrain=SHORT["pretrain"], train=SHORT["train"],
    ).path  # fmt: skip
    table = listed_runs([read_run(trained), read_run(with_targets)])
    assert list(table.columns)[-3:] == ["validation", "target mean", "crafted val"]
    without, with_ = table.rows
    task = last_accuracies(trained, "task")
    assert without[-3:] == [
        accuracy_text(task["validation"], 9, with_n=False), "-",
        f"{crafted_by_hand(trained, 'task'):.1f} (n=9)",
    ]  # fmt: skip
    model = last_accuracies(with_targets, "model")
    mean = (model["one"] + model["two"]) / 2
    validation = accuracy_text(model["validation"], 9, with_n=False)
    assert with_[-3:] == [validation, f"{mean:.1f} (n=12)", "-"]
    for path, last in ((with_targets, "target mean"), (trained, "crafted val")):
        assert list(listed_runs([read_run(path)]).columns)[-2:] == ["validation", last]


def test_a_comparison_without_targets_is_by_the_crafted_score(trained: Path):
    table = comparison([read_run(trained)])
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert "target mean" not in row
    assert row["crafted val"] == f"{crafted_by_hand(trained, 'task'):.1f}"
    assert row["source val"] == accuracy_text(last_accuracies(trained, "task")["validation"], 9)
    page = comparison_page([read_run(trained)], title="t")
    assert "| accuracy % |\n" not in page  # no table of no targets


def test_the_tables_of_a_report_mark_few_images():
    few = [run_with_images(run, 42) for run in RUNS]
    row = dict(zip(targets_table(few).columns, targets_table(few).rows[0], strict=True))
    assert row["art"] == "67.0 ± 4.2 (n=42)"
    row = dict(zip(crafted_table(few).columns, crafted_table(few).rows[0], strict=True))
    assert row["source val"] == "93.0 ± 1.4 (n=42)"
    (row,) = targets_table(few[:1]).rows
    assert row[1] == accuracy_text(70, 42)


def run_with_images(run, n: int):
    return replace(run, records=[{**record, "n": n} for record in run.records])


def test_evaluate_shows_the_interval_by_domain_and_class_and_keeps_it_in_json():
    few, many = (
        evaluate_in_detail(tiny_classifier(), tiny_domain("few", n=30)),
        evaluate_in_detail(tiny_classifier(), tiny_domain("many", n=330)),
    )
    rows = summary_table([few, many]).rows
    assert rows[0][2] == accuracy_text(few.accuracy, 30, with_n=False)
    assert "(" in rows[0][2]
    assert rows[1][2] == f"{many.accuracy:.2f}"
    for shown, result in zip(class_table(few).rows, few.classes, strict=True):
        assert shown[3] == accuracy_text(100 * result.correct / 10, 10, with_n=False)
    assert class_table(many).rows[0][3] == f"{many.classes[0].accuracy:.2f}"
    low, high = few.to_dict()["interval_95"]
    assert low < few.accuracy < high or few.accuracy in (0, 100)


def test_a_person_with_few_photos_and_no_target_sees_both(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder(Path("photos"))
    arguments = ["train", "photos", "--epochs", "2", "--pretrain.epochs", "0", "--peer.k", "1",
                 "--quiet", "--out", "run"]  # fmt: skip
    assert run(arguments, debug=True) == 0
    shown = capsys.readouterr().out
    crafted = sum(last_accuracies(Path("run"), "task")[f"crafted:{f}"] for f in DISJOINT) / 6
    assert re.search(
        rf"peer task \(deployed\) +[\d.]+ \(\d+-\d+, n=2\) +{crafted:.1f} \(n=2\)", shown
    )
    assert run(["runs", "run"], debug=True) == 0
    assert f"{crafted:.1f} (n=2)" in " ".join(capsys.readouterr().out.split())


def test_a_model_card_does_not_promise_hundredths_of_nine_images(trained: Path):
    card = (trained / "model/MODEL_CARD.md").read_text()
    accuracy = last_accuracies(trained, "task")["validation"]
    assert f"| validation | {accuracy_text(accuracy, 9, with_n=False)} | 9 |" in card
