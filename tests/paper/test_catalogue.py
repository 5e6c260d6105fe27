"""The catalogue is complete and valid, and has the numbers of the paper's source."""

import os
import re
from pathlib import Path

import pytest

from peerdg.errors import ConfigError
from peerdg.paper.catalogue import MEAN, columns, find_items, items, paper_plan
from peerdg.paper.cells import MEASURES
from peerdg.run.presets import BUDGETS

DATA = ("digits-mini", "digits", "pacs", "office-home", "vlcs", "terra")


@pytest.fixture(scope="module")
def source() -> str:
    """The LaTeX source of the paper, without comments and formatting of single numbers."""
    if not (path := os.environ.get("PEERDG_PAPER")):
        pytest.skip("PEERDG_PAPER does not name the paper's LaTeX source")
    text = re.sub(r"(?<!\\)%.*", "", Path(path).read_text("utf-8"))
    return re.sub(r"\\text(?:bf|it)\{|\\textcolor\{\w+\}\{|\\phantom\{0\}|\}", "", text)


def test_has_15_tables_and_9_figures_with_unique_labels():
    known = items()
    assert list(known) == [f"T{n}" for n in range(1, 16)] + [f"F{n}" for n in range(1, 10)]
    assert len({item.label for item in known.values()}) == 24


def test_has_as_many_items_as_the_paper(source):
    tables = len(re.findall(r"\\begin\{table\*?", source)) + source.count(r"\captionof{table")
    figures = len(re.findall(r"\\begin\{figure\*?", source))
    kinds = [name[0] for name in items()]
    assert (kinds.count("T"), kinds.count("F")) == (tables, figures)


@pytest.mark.parametrize("item", items().values(), ids=lambda item: item.id)
def test_published_values_are_those_of_the_paper(item, source):
    position = source.index(rf"\label{{{item.label}")
    ends = [match.start() for match in re.finditer(r"\\end\{(table|figure)\*?", source)]
    begins = [match.start() for match in re.finditer(r"\\begin\{(table|figure)\*?", source)]
    inside = source[max(b for b in begins if b < position) : min(e for e in ends if e > position)]
    lines = []  # numbers after the label of each line, "--" left out
    for line in inside.split(r"\\"):
        cells = [cell.strip() for cell in line.split("&")]
        lines.append([float(cell) for cell in cells if re.fullmatch(r"\d+\.?\d*", cell)])
    for panel in item.panels:
        for row in panel.rows:
            values = [v for by_column in row.published.values() for v in by_column.values()]
            values = [value for value in values if value is not None]
            assert any(line[-len(values) :] == values for line in lines), row.label


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("data", DATA)
def test_every_row_of_every_item_is_planned(data, budget, tmp_path):
    plan = paper_plan(data, {"budget": budget}, seeds=[0], bench=tmp_path)
    for item in items().values():
        for row in item.rows(data):
            assert plan.same[row] in plan.plan.methods


def test_published_rows_have_a_value_or_a_gap_for_each_column():
    for item in items().values():
        for panel in item.panels:
            assert panel.measure in (*MEASURES, "distance")
            for row in panel.rows:
                for data, values in row.published.items():
                    assert tuple(values) == columns(panel.measure, data)
                    numbers = [value for value in values.values() if value is not None]
                    assert numbers and all(0 < value <= 100 for value in numbers)


def test_averages_differ_from_their_row_only_where_a_note_says_so():
    for item in items().values():
        for panel in item.panels:
            for row in panel.rows:
                for values in row.published.values():
                    cells = [value for name, value in values.items() if name != MEAN]
                    if MEAN in values and None not in cells:
                        difference = abs(sum(cells) / len(cells) - values[MEAN])
                        noted = any(f"{values[MEAN]:.2f}" in note for note in item.notes)
                        assert difference < 0.0101 or noted, (item.id, row.label, values)


def test_equal_settings_are_trained_once(tmp_path):
    plan = paper_plan("digits-mini", {"budget": "quick"}, seeds=[0], bench=tmp_path)
    keys = [repr({**m.config.tables(), "recipe": 0}) for m in plan.plan.members.values()]
    assert len(keys) == len(set(keys))
    assert plan.same["peer-k-10"] == "peer"


@pytest.mark.parametrize("budget", BUDGETS)
def test_rows_with_different_k_are_evaluated_in_the_same_epochs(budget, tmp_path):
    plan = paper_plan("pacs", {"budget": budget}, seeds=[0], bench=tmp_path)
    rows = {f"peer-k-{k}" for k in (1, 5, 10, 20, 30)}
    every = {plan.plan.members[plan.same[row]].config.evaluate_every for row in rows}
    assert len(every) == 1


def test_runs_keep_their_names_whichever_item_is_made(tmp_path):
    plan = paper_plan("digits-mini", {"budget": "quick"}, seeds=[0, 1], bench=tmp_path)
    names = {run.name for run in plan.plan.runs}
    for item in items().values():
        if rows := item.rows("digits-mini"):
            assert {run.name for run in plan.only(rows).runs} <= names


def test_all_names_every_item_and_an_unknown_one_gets_the_nearest():
    assert len(find_items(["all"])) == 24
    assert [item.id for item in find_items(["f1", "T2"])] == ["T2", "F1"]
    with pytest.raises(ConfigError) as error:
        find_items(["T22"])
    assert "'T2'" in str(error.value.hint)
