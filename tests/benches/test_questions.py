"""The questions of a study: pairs of rows, compared seed by seed in every measure."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peerdg.benches.figures import tick_ratios
from peerdg.benches.plan import read_plan_file
from peerdg.benches.questions import answers_csv, answers_table
from peerdg.benches.report import ANSWERS, ANSWERS_CSV, write_bench
from peerdg.benches.table import bench_table
from peerdg.evaluate.statistics import paired_difference
from peerdg.report.figures import pyplot
from peerdg.terminal import markdown_text
from tests.benches.test_table import GROUPS

WORTH, OTHER = "What is averaging worth?", "And <the> rest | of it?"
QUESTIONS = {WORTH: [("p-ens", "randaugment")], OTHER: [("l2d", "erm"), ("peer", "erm")]}


@pytest.fixture(scope="module")
def table():
    return bench_table(GROUPS, questions=QUESTIONS)


def test_a_pair_is_compared_seed_by_seed(table):
    first, second = table.answers  # of PEER there is no run
    assert (first.question, first.method, first.partner) == (WORTH, "p-ens", "randaugment")
    assert first.by_seed["target mean"] == {0: -4.0, 1: -5.0, 2: -8.0}  # 59 against 63, 64, 67
    expected = paired_difference({0: -4.0, 1: -5.0, 2: -8.0}, dict.fromkeys(range(3), 0.0))
    found = first.differences["target mean"]
    assert replace(found, margin=expected.margin) == expected
    assert found.margin > expected.margin  # three pairs: the spread of both counts, too
    assert second.differences["target mean"].n == 2  # seeds that both have


def test_fluctuation_is_that_of_the_deployed_and_of_the_trained_network(table):
    """The trained network moves by 1 from epoch to epoch, the average by half of it."""
    found = table.answers[0].differences

    def variance(swing: float) -> float:
        # Epochs 6 to 8, the first five periods left out; epoch 6 is four points higher.
        return float(np.var([4.0, swing, 0.0]))

    ratio = variance(0.5) / variance(1.0)
    assert found["fluctuation"].mean == pytest.approx(np.log(ratio))
    assert f"×{ratio:.2f} (equal in all seeds)" in answers_table(table.answers[:1]).rows[0]
    assert found["trained: fluctuation"].mean == pytest.approx(0.0)
    assert found["trained: target mean"].mean == found["target mean"].mean  # epoch 8: no swing
    assert found["source val"].mean == 0.0
    assert "crafted val" not in found  # nothing was crafted in these runs


def test_numbers_are_the_same_in_table_and_file(table):
    shown = answers_table(table.answers[:1])
    assert shown.columns[:3] == ["difference", "seeds", "target mean"]
    assert shown.rows[0][:2] == ["p-ens - randaugment", "3"]
    written = list(csv.DictReader(io.StringIO(answers_csv(table.answers))))
    first = written[0]
    assert (first["method"], first["measure"], first["pairs"]) == ("p-ens", "target mean", "3")
    assert shown.rows[0][2].startswith(f"{float(first['difference']):+.1f} [")
    assert len(written) == sum(len(found.differences) for found in table.answers)


def test_the_page_has_each_question_once_and_marks_reconstructions(table, tmp_path: Path):
    runs = [run for group in GROUPS.values() for run in group]
    page = write_bench(table, runs, tmp_path, title="Study").read_text()
    assert page.count(f"**{WORTH}**") == 1 and page.count(f"]({ANSWERS})") == 1
    assert f"**{markdown_text(OTHER)}**" in page and OTHER not in page
    assert "l2d † - erm" in page
    assert "## What it shows" not in page  # what was asked is answered; nobody asked the rest
    assert (tmp_path / ANSWERS).stat().st_size > 10_000 and (tmp_path / ANSWERS_CSV).exists()
    again = write_bench(bench_table(GROUPS), runs, tmp_path, title="Study").read_text()
    assert "## Questions" not in again
    assert not (tmp_path / ANSWERS).exists() and not (tmp_path / ANSWERS_CSV).exists()


def test_questions_are_read_from_a_plan(tmp_path: Path):
    file = tmp_path / "plan.toml"
    file.write_text('methods = ["erm", "peer"]\n[question]\n"Is it?" = [["peer", "erm"]]\n')
    assert read_plan_file(file).study.questions == {"Is it?": [("peer", "erm")]}


def test_two_differences_are_compared_seed_by_seed(tmp_path: Path):
    file = tmp_path / "plan.toml"
    rows = '["p-ens", "erm"], ["randaugment", "erm"]'
    file.write_text(f"methods = {list(GROUPS)}\n[question]\n'More?' = [[{rows}]]\n")
    questions = read_plan_file(file).study.questions
    assert questions == {"More?": [(("p-ens", "erm"), ("randaugment", "erm"))]}
    (found,) = bench_table(GROUPS, questions=questions).answers
    assert found.by_seed["target mean"] == {0: -4.0, 1: -5.0, 2: -8.0}  # as without ERM
    assert found.label == "(p-ens - erm) - (randaugment - erm)"
    assert (found.method, found.partner) == ("(p-ens - erm)", "(randaugment - erm)")
    crossed = {"?": [(("p-ens", "randaugment"), ("l2d", "erm"))]}
    (found,) = bench_table(GROUPS, questions=crossed).answers
    alone = {
        (a, b): bench_table(GROUPS, questions={"?": [(a, b)]}).answers[0].by_seed["target mean"]
        for a, b in crossed["?"][0]
    }
    assert found.by_seed["target mean"] == {
        seed: alone["p-ens", "randaugment"][seed] - alone["l2d", "erm"][seed] for seed in (0, 1)
    }
    assert found.label.endswith(" - (l2d † - erm)")
    absent = {"?": [(("peer", "erm"), ("l2d", "erm"))]}  # of PEER there is no run
    assert bench_table(GROUPS, questions=absent).answers == ()


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.6, 1.5, ["×1"]),
        (0.3, 4.0, ["×0.5", "×1", "×2"]),
        (0.004, 200.0, ["×0.01", "×0.1", "×1", "×10", "×100"]),
        (2e-5, 3e4, ["×0.0001", "×0.01", "×1", "×100", "×10000"]),
    ],
)
def test_ticks_of_ratios_are_few_however_wide_the_axis(low: float, high: float, labels: list[str]):
    figure, axis = pyplot().subplots()
    axis.set_xlim(np.log(low), np.log(high))
    tick_ratios(axis)
    assert [label.get_text() for label in axis.get_xticklabels()] == labels
    assert np.exp(axis.get_xticks()) == pytest.approx([float(label[1:]) for label in labels])
    pyplot().close(figure)
