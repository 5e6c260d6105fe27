"""The rows of a bench beside published numbers."""

from pathlib import Path

import numpy as np
import pytest

from peerdg.benches.plan import read_plan_file
from peerdg.benches.published import published_section, published_table
from peerdg.benches.report import bench_page
from peerdg.benches.study import Published, Study
from peerdg.benches.table import bench_table
from tests.benches.test_table import GROUPS

PUBLISHED = Published(
    "Table 3 | of <it>",
    {
        "randaugment": {"syn": 50.0, "uci": 70.0, "cartoon": 1.0},
        "p-ens": {"syn": 53.0, "uci": 75.0},
        "peer": {"syn": 1.0, "uci": 1.0},
    },
)


@pytest.fixture(scope="module")
def table():
    return bench_table(GROUPS)


def ours(table, method: str, target: str) -> tuple[float, ...]:
    return next(row for row in table.rows if row.method == method).targets[target].values


def test_rows_that_both_have_stand_side_by_side(table):
    shown = published_table(table, PUBLISHED)  # of PEER there is no run, of cartoon no target
    assert shown.columns == ["method", "seeds", "syn", "uci", "mean", "vs randaugment"]
    assert [row[0] for row in shown.rows] == ["randaugment", "p-ens"]
    first, second = shown.rows
    assert first[4].endswith(" / 60.0") and second[4].endswith(" / 64.0")
    assert first[2].endswith(" / 50.0") and second[3].endswith(" / 75.0")
    assert first[5] == "-"
    means = {
        method: (np.array(ours(table, method, "syn")) + ours(table, method, "uci")) / 2
        for method in ("randaugment", "p-ens")
    }
    gained = sum(means["p-ens"]) / 3 - sum(means["randaugment"]) / 3
    assert second[5] == f"{gained:+.1f} / +4.0"
    assert first[4].startswith(f"{sum(means['randaugment']) / 3:.1f} ± ")


def test_differences_are_over_seeds_that_both_rows_have():
    table = bench_table({**GROUPS, "p-ens": GROUPS["p-ens"][1:2]})
    seed = GROUPS["p-ens"][1].seed
    one, other = (
        next(r for r in table.rows if r.method == m).by_seed[seed] for m in ("p-ens", "randaugment")
    )
    row = published_table(table, PUBLISHED).rows[1]
    assert (row[1], row[5]) == ("1", f"{one - other:+.1f} / +4.0")


def test_a_mean_is_over_targets_that_all_published_rows_have(table):
    some = Published("", {"randaugment": {"syn": 50.0, "uci": 70.0}, "p-ens": {"uci": 75.0}})
    shown = published_table(table, some)
    assert shown.columns == ["method", "seeds", "uci", "mean", "vs randaugment"]
    assert shown.rows[1][3].endswith(" / 75.0") and shown.rows[1][4].endswith(" / +5.0")


def test_without_a_row_or_target_in_common_there_is_no_table(table):
    assert published_section(table, None) == []
    assert published_section(table, Published("", {"peer": {"syn": 1.0}})) == []
    assert published_section(table, Published("", {"p-ens": {"cartoon": 1.0}})) == []


def test_a_row_that_was_published_on_other_targets_only_is_left_out_by_name(table):
    some = {"randaugment": {"uci": 70.0}, "p-ens": {"cartoon": 75.0}}
    assert [row[0] for row in published_table(table, Published("", some)).rows] == ["randaugment"]
    section = "\n".join(published_section(table, Published("", some)))
    assert "Published on other targets only: p-ens." in section


def test_the_page_has_the_table_and_where_it_is_from(table):
    runs = [run for group in GROUPS.values() for run in group]
    page = bench_page(table, runs, title="x", study=Study(published=PUBLISHED))
    assert "## Beside the published numbers" in page
    assert "Left out, since not all rows have them: cartoon." in page
    assert "Table 3 | of <it>" not in page  # as text, not as Markdown
    assert "## Beside" not in bench_page(table, runs, title="x")


PLAN = """
methods = ["erm", "peer"]
[options]
benchmark = "digits-mini"
"""


def test_a_plan_has_them_by_row_and_target(tmp_path: Path):
    file = tmp_path / "plan.toml"
    file.write_text(f'{PLAN}[published]\nsource = "s"\npeer = {{ syn = 1, uci = 2.5 }}\n')
    assert read_plan_file(file).study.published == Published("s", {"peer": {"syn": 1, "uci": 2.5}})
    file.write_text(PLAN)
    assert read_plan_file(file).study.published is None
