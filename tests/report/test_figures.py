from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageColor

from peerdg.report.comparison import FIGURE, OVERVIEW, write_comparison
from peerdg.report.figures import COLORS, Curve, name_with_seeds, overview_figure, spread_apart
from peerdg.report.runs import load_runs
from peerdg.report.variants import MANY, by_variant
from tests.report.test_selection_report import RUNS

ROOT = Path(__file__).parents[2]


@given(st.lists(st.floats(-100, 100), max_size=12), st.floats(0.1, 20))
def test_labels_are_moved_apart_in_order_and_around_where_they_belong(values, room):
    values = sorted(values)
    places = spread_apart(values, room=room)
    assert len(places) == len(values)
    assert all(b - a > room * (1 - 1e-6) for a, b in pairwise(places))
    assert sum(places) == pytest.approx(sum(values), abs=1e-6)


def test_labels_with_room_stay_where_they_are():
    assert spread_apart([0.0, 5.0, 10.0], room=5) == [0.0, 5.0, 10.0]
    assert spread_apart([1.0, 1.0, 9.0], room=2) == [0.0, 2.0, 9.0]


def test_a_curve_of_many_equal_models_is_called_by_the_first():
    values = np.zeros((1, 1, 2))
    named = [Curve(("a", "b", "c", "d")[:n], "k", "-", values[0, 0], values) for n in (1, 2, 4)]
    assert [curve.label for curve in named] == ["a", "a = b", "a = 3 others"]


def test_a_row_of_fewer_seeds_is_named_as_such():
    assert name_with_seeds("a", [0, 1, 2], 3) == "a"
    assert name_with_seeds("a", [1], 3) == "a (seed 1)"
    assert name_with_seeds("a", [0, 2], 3) == "a (2 of 3 seeds)"


def colors_in(path: Path) -> set[tuple[int, ...]]:
    with Image.open(path) as picture:
        return {tuple(c) for c in np.asarray(picture.convert("RGB")).reshape(-1, 3).tolist()}


def test_every_variant_has_its_color_in_the_overview_of_the_demo(tmp_path: Path):
    runs = load_runs(ROOT / "results/demo/runs.json")
    overview_figure(runs, tmp_path / OVERVIEW, title="t")
    found = colors_in(tmp_path / OVERVIEW)
    for color in COLORS[: len(by_variant(runs))]:
        wanted = np.array(ImageColor.getrgb(color))
        assert min(np.abs(wanted - np.array(c)).max() for c in found) < 12, color


def test_the_figures_have_a_ground_and_load_at_once(tmp_path: Path):
    runs = load_runs(ROOT / "results/demo/runs.json")
    page = write_comparison(runs, tmp_path, title="t")
    assert f"]({OVERVIEW})" in page.read_text() and f"]({FIGURE})" in page.read_text()
    for name, limit in ((OVERVIEW, 60_000), (FIGURE, 150_000)):
        assert (tmp_path / name).stat().st_size < limit
        with Image.open(tmp_path / name) as picture:
            assert "transparency" not in picture.info and picture.mode == "P"
            assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
            if name == OVERVIEW:
                assert picture.width >= 1600  # sharp at twice the width of a page


def test_many_variants_have_a_panel_each_and_no_figure_of_all_targets(tmp_path: Path):
    usual = load_runs(ROOT / "results/demo/runs.json")
    write_comparison(usual, tmp_path, title="t")
    runs = [
        replace(run, config={**run.config, "train": {**run.config["train"], "lr": 0.1 * n + 0.1}})
        for n in range(3)
        for run in usual
    ]
    assert len(by_variant(runs)) > MANY
    page = write_comparison(runs, tmp_path, title="t").read_text()
    assert f"]({OVERVIEW})" in page and f"]({FIGURE})" not in page
    assert not (tmp_path / FIGURE).exists()  # that of the few
    with Image.open(tmp_path / OVERVIEW) as picture:
        tall = picture.height / picture.width
    overview_figure(runs[: 2 * len(usual)], tmp_path / OVERVIEW, title="t")
    with Image.open(tmp_path / OVERVIEW) as picture:
        assert picture.height / picture.width < tall  # fewer rows of panels


def test_the_kept_figure_of_the_readme_is_small():
    assert (ROOT / "results/demo" / OVERVIEW).stat().st_size < 60_000


def test_one_seed_and_one_target_are_drawn_too(tmp_path: Path):
    one = replace(RUNS[0], records=[r for r in RUNS[0].records if r["domain"] != "sketch"])
    overview_figure([one], tmp_path / OVERVIEW, title="t")
    assert (tmp_path / OVERVIEW).stat().st_size > 5_000
