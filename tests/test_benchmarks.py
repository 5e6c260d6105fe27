import importlib

import pytest
import torch
from benchmarks import reference
from benchmarks.measure import Rounds, rounds, summary
from benchmarks.table import BEGIN, END, NAMES, PAGE, tables

from peerdg.losses.barlow_twins import barlow_twins
from peerdg.models.backbones import DigitsCNN


def test_the_tables_of_the_docs_match_the_stored_results():
    shown = PAGE.read_text("utf-8").split(BEGIN)[1].split(END)[0]
    assert shown.strip() == tables().strip()


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_can_be_run(name: str):
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


def test_the_reference_trains_the_same_method():
    """It is slower, but has our network and regularizer."""
    z_a, z_b = torch.randn(32, 8, dtype=torch.float64), torch.randn(32, 8, dtype=torch.float64)
    expected = barlow_twins(z_a, z_b, lam=reference.LAM)
    assert float(reference.barlow_twins(z_a, z_b)) == pytest.approx(float(expected), rel=1e-4)
    theirs, ours = reference.Network().encoder, DigitsCNN()
    for target, source in ((ours.conv1, 0), (ours.conv2, 3), (ours.fc1, 7), (ours.fc2, 9)):
        target.load_state_dict(theirs[source].state_dict())
    x = torch.rand(4, 3, 32, 32)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_contenders_alternate_and_ratios_are_taken_within_a_turn():
    seen = []
    results = rounds(
        {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repeats=3, warm_up=1
    )
    assert seen == ["a", "b"] * 4
    assert len(results.seconds["a"]) == 3
    made = Rounds({"slow": [2.0, 20.0, 6.0], "floor": [1.0, 10.0, 2.0]})
    assert made.ratio("slow", "floor").median == 2.0
    assert made.means(2).seconds == {"slow": [11.0], "floor": [5.5]}
    assert made.plus("more", of="floor", seconds=1.0).ratio("more", "floor").high == 2.0


def test_a_summary_has_the_median_and_the_deciles():
    timing = summary([float(n) for n in range(1, 22)])
    assert (timing.median, timing.low, timing.high) == (11.0, 3.0, 19.0)
