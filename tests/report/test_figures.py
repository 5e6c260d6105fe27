from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from peerdg.report import figures
from peerdg.report.figures import (
    COLORS,
    MANY,
    differences_figure,
    overview_figure,
    pyplot,
    tick_ratios,
)
from peerdg.report.table import make_table
from tests.report.made import GROUPS, level

RESULTS = Path(__file__).parents[2] / "results"


def labels(monkeypatch: pytest.MonkeyPatch, draw, *arguments, **options) -> list[str]:
    """The names that are written into a figure."""
    written: list[str] = []

    def keep(figure, path, *, dpi):
        for axis in figure.axes:
            written.extend(t.get_text() for t in axis.get_yticklabels())
            legend = axis.get_legend()
            written.extend(t.get_text() for t in (legend.get_texts() if legend else ()))
            written.append(axis.get_title())
        pyplot().close(figure)

    monkeypatch.setattr(figures, "save_figure", keep)
    draw(*arguments, **options)
    return written


def test_every_row_has_its_color_and_the_file_is_small(tmp_path: Path):
    overview_figure(GROUPS, tmp_path / "o.png", title="t")
    with Image.open(tmp_path / "o.png") as picture:
        assert picture.width >= 1600 and picture.mode == "P"  # sharp at twice a page's width
        assert "transparency" not in picture.info
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert (pixels[0] == 255).all()
    found = np.unique(pixels, axis=0).astype(int)
    for color in COLORS[: len(GROUPS)]:
        assert np.abs(found - ImageColor.getrgb(color)).max(1).min() < 12, color
    for path in (tmp_path / "o.png", RESULTS / "demo/overview.png"):
        assert path.stat().st_size < 60_000


def test_curves_are_named_by_row_and_network_and_shared_ones_are_drawn_once(monkeypatch, tmp_path):
    shared = replace(level("randaugment", 0), shared_with=("p-ens",))
    average = level("p-ens", 0)
    network = [r for r in average.evaluations if r["model"] == "model"]
    groups = {"randaugment": [replace(shared, evaluations=network)], "p-ens": [average]}
    written = labels(monkeypatch, overview_figure, groups, tmp_path / "o.png", title="t")
    assert "randaugment" in written and "p-ens snapshots" in written
    assert "p-ens model" not in written


def test_many_rows_have_a_panel_each(monkeypatch, tmp_path: Path):
    many = {f"row {n}": [level("erm", 0, level=50 + n)] for n in range(MANY + 1)}
    written = labels(monkeypatch, overview_figure, many, tmp_path / "o.png", title="t")
    assert set(many) <= set(written)


def test_differences_are_sorted_with_the_best_on_top(monkeypatch, tmp_path: Path):
    table = make_table(GROUPS)
    written = labels(monkeypatch, differences_figure, table, tmp_path / "d.png")
    assert written[:4] == ["", "randaugment", "p-ens", "l2d †"]


def test_ticks_of_ratios_are_few_however_wide_the_axis():
    figure, axis = pyplot().subplots()
    for low, high, expected in (
        (0.3, 4.0, ["×0.5", "×1", "×2"]),
        (0.004, 200.0, ["×0.01", "×0.1", "×1", "×10", "×100"]),
        (2e-5, 3e4, ["×0.0001", "×0.01", "×1", "×100", "×10000"]),
    ):
        axis.set_xlim(np.log(low), np.log(high))
        tick_ratios(axis)
        assert [label.get_text() for label in axis.get_xticklabels()] == expected
        assert np.exp(axis.get_xticks()) == pytest.approx([float(label[1:]) for label in expected])
    pyplot().close(figure)
