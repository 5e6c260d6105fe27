from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerdg.evaluate.fluctuation import accuracy_series, fluctuation, late_mean, run_fluctuation

series = st.lists(st.floats(0, 100), min_size=1, max_size=40)


def test_a_constant_series_does_not_fluctuate():
    assert set(astuple(fluctuation([42.0] * 12))) == {0}


def test_a_square_wave_of_amplitude_a_has_variance_a_squared():
    f = fluctuation([50 + 3 * (-1) ** t for t in range(20)])
    assert f.var == pytest.approx(9)
    assert f.range == pytest.approx(6)
    assert f.mean_abs_step == pytest.approx(6)


def test_a_ramp_has_variance_but_none_once_detrended():
    f = fluctuation([2.0 * t for t in range(30)])
    assert f.var > 100
    assert f.detrended_var == pytest.approx(0, abs=1e-18)
    assert f.max_drawdown == 0


@given(series)
def test_statistics_agree_with_plain_python(values):
    f = fluctuation(values)
    mean = sum(values) / len(values)
    assert f.var == pytest.approx(sum((a - mean) ** 2 for a in values) / len(values), abs=1e-8)
    steps = [abs(b - a) for a, b in pairwise(values)]
    assert f.mean_abs_step == pytest.approx(sum(steps) / max(1, len(steps)), abs=1e-8)
    falls = [max(values[: t + 1]) - a for t, a in enumerate(values)]
    assert f.max_drawdown == max(falls)
    assert f.gap == max(values) - values[-1]


def test_detrending_subtracts_the_mean_of_five_and_of_fewer_at_the_ends():
    values = [10.0, 14.0, 9.0, 17.0, 12.0, 30.0, 11.0]
    windows = [values[:1], values[:3], values[:5], values[1:6], values[2:], values[4:], values[6:]]
    rest = [a - np.mean(window) for a, window in zip(values, windows, strict=True)]
    assert fluctuation(values).detrended_var == pytest.approx(np.var(rest))


def evaluation(epoch, accuracy, *, model="task", domain="svhn"):
    return {"kind": "evaluation", "epoch": epoch, "model": model, "domain": domain,
            "accuracy": accuracy}  # fmt: skip


def test_series_has_every_kth_epoch_without_start_source_and_burn_in():
    records = [{"kind": "epoch", "epoch": 4}]
    records += [evaluation(e, float(e)) for e in range(13)]
    records += [evaluation(e, 0.0, model="proxy") for e in range(13)]
    records += [evaluation(e, 99.0, domain="validation") for e in range(13)]
    taken = accuracy_series(records, model="task", every=2, burn_in_periods=3)
    assert taken == {"svhn": [8.0, 10.0, 12.0]}
    assert accuracy_series(records, model="task", every=2, burn_in_periods=0)["svhn"][0] == 2.0


def test_both_readings_of_the_average_column_are_given():
    # Two domains that move against each other: each fluctuates, their average does not.
    result = run_fluctuation({"a": [10, 20, 10, 20], "b": [20, 10, 20, 10]})
    assert result.mean.var == pytest.approx(25)
    assert result.of_mean.var == 0


def test_the_averaged_series_is_the_mean_over_domains_at_each_time():
    result = run_fluctuation({"a": [10.0, 20.0, 60.0], "b": [30.0, 20.0, 0.0]})
    assert result.of_mean == fluctuation([20.0, 20.0, 30.0])
    assert result.mean.gap == (0 + 30) / 2


def test_a_run_without_enough_periods_has_no_fluctuation():
    assert run_fluctuation({}) is None
    assert run_fluctuation({"a": [1.0, 9.0], "b": [1.0, 2.0, 3.0]}) is None
    assert run_fluctuation({"a": [1.0, 3.0, 9.0], "b": [1.0, 2.0, 3.0]}) is not None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=10, max_size=30))
def test_the_late_mean_is_that_of_the_last_five_over_all_domains(values):
    a, b = ([pair[domain] for pair in values] for domain in (0, 1))
    expected = (sum(a[-5:]) / 5 + sum(b[-5:]) / 5) / 2
    assert late_mean({"a": a, "b": b}) == pytest.approx(expected)
    assert late_mean({"a": [0.0, *a], "b": [100.0, *b]}) == pytest.approx(expected)


def test_fewer_than_ten_evaluations_have_no_late_mean():
    assert late_mean({}) is None
    assert late_mean({"a": [1.0] * 9, "b": [1.0] * 10}) is None
    assert late_mean({"a": [1.0] * 10, "b": [3.0] * 10}) == 2.0
