import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binom, binomtest

from peerdg.evaluate.statistics import (
    Difference,
    bootstrap_interval,
    paired_difference,
    wilson,
)

VALUES = [1.0, 2.5, 0.5, 4.0, 3.0]


def test_seeds_of_both_are_paired_whatever_their_order():
    a = {0: 60.0, 7: 10.0, 2: 70.0, 1: 62.0}  # folders are read in any order
    b = {2: 64.0, 0: 58.0, 1: 61.0, 8: 90.0}
    found = paired_difference(a, b)
    assert (found.n, found.mean) == (3, 3.0)
    assert found.std == pytest.approx(np.std([2.0, 1.0, 6.0], ddof=1))
    assert 1.0 <= found.low < 3.0 < found.high <= 6.0


def test_the_pairing_takes_what_seeds_have_in_common_out_of_the_interval():
    seeds = {n: 10.0 * n for n in range(6)}
    better = {n: value + 1 + 0.1 * (n % 2) for n, value in seeds.items()}
    found = paired_difference(better, seeds)
    assert 1.0 <= found.low < found.high <= 1.1  # the seeds themselves differ by 50


def test_is_the_exact_bca_interval_over_all_resamples():
    """Efron's formulas, with every one of the n^n resamples in place of some at random."""
    n, mean = len(VALUES), np.mean(VALUES)
    means = np.array([np.mean(s) for s in itertools.product(VALUES, repeat=n)])
    below = (np.mean(means < mean) + np.mean(means <= mean)) / 2
    z0 = stats.norm.ppf(below)
    left_out = np.array([np.mean(np.delete(VALUES, i)) for i in range(n)])
    apart = left_out.mean() - left_out
    a = (apart**3).sum() / (6 * (apart**2).sum() ** 1.5)
    ends = [z0 + (z0 + z) / (1 - a * (z0 + z)) for z in stats.norm.ppf([0.025, 0.975])]
    exact = np.quantile(means, stats.norm.cdf(ends))
    assert bootstrap_interval(VALUES) == pytest.approx(tuple(exact), abs=0.06)


def test_is_clear_if_a_paired_t_test_and_the_bootstrap_agree():
    for n, shift in itertools.product((2, 3, 5, 9, 30), (0.0, 0.6, 0.9, 2.0)):
        values = np.random.default_rng(n).normal(shift, 1.0, n)
        a, b = dict(enumerate(values + 50)), dict.fromkeys(range(n), 50.0)
        found = paired_difference(a, b)
        test = stats.ttest_rel(list(a.values()), list(b.values()))
        interval = test.confidence_interval(0.95)
        assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx(interval)
        assert found.is_clear == (test.pvalue < 0.05 and (found.low > 0 or found.high < 0))


def test_a_few_differences_that_are_alike_by_chance_show_nothing():
    seeds, gain = [66.0, 70.0, 73.0], [1.6, 1.5, 1.6]
    assert stats.ttest_1samp(gain, 0.0).pvalue < 0.001

    def gained(gains: list[float], seeds: list[float]) -> Difference:
        better = dict(enumerate(np.add(seeds, gains)))
        return paired_difference(better, dict(enumerate(seeds)))

    alike = gained(gain, seeds)
    assert alike.low > 0 and not alike.is_clear
    assert gained([21.0, 23.0, 24.0], seeds).is_clear
    assert gained([1.6, 1.5, 1.6, 1.4, 1.7], [66.0, 70.0, 73.0, 69.0, 68.0]).is_clear


def test_turns_with_the_sign_and_scales():
    low, high = bootstrap_interval(VALUES)
    assert bootstrap_interval(VALUES) == (low, high)  # the draws are seeded
    assert bootstrap_interval([-v for v in VALUES]) == pytest.approx((-high, -low), abs=0.05)
    assert bootstrap_interval([3 * v for v in VALUES]) == pytest.approx((3 * low, 3 * high))


def test_an_interval_never_leaves_the_seeds_that_there_are():
    assert bootstrap_interval([1.0, 3.0]) == (1.0, 3.0)
    low, high = bootstrap_interval([1.0, 3.0, 4.0])
    assert 1.0 <= low < 8 / 3 < high <= 4.0


def test_where_there_can_be_no_interval_it_says_why():
    one = paired_difference({0: 3.0}, {0: 1.0})
    assert one == Difference(1, 2.0, reason="one seed") and not one.is_clear
    equal = paired_difference({0: 3.0, 1: 4.0}, {0: 1.0, 1: 2.0})
    assert not equal.is_clear
    assert (equal.n, equal.mean, equal.low, equal.reason) == (2, 2.0, None, "equal in all seeds")
    assert paired_difference({0: 3.0}, {1: 1.0}) is None


def test_an_interval_is_finite_whatever_the_values():
    for values in ([0.0, 0.0, 0.0, 1.0], [1e-12, 2e-12], [1e9, 1e9 + 1], [5.0] * 9 + [6.0]):
        low, high = bootstrap_interval(values)
        assert math.isfinite(low) and math.isfinite(high) and low <= high


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_equals_scipys_wilson_interval(counts: tuple[int, int]):
    correct, n = counts
    expected = binomtest(correct, n).proportion_ci(0.95, method="wilson")
    assert wilson(correct, n) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-9)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_holds_the_accuracy_inside_0_to_100_and_is_never_empty(counts: tuple[int, int]):
    correct, n = counts
    low, high = wilson(correct, n)
    assert 0 <= low <= 100 * correct / n + 1e-9
    assert 100 * correct / n - 1e-9 <= high <= 100
    assert high - low > 1


def test_holds_the_truth_about_19_times_in_20():
    """Exact coverage: the probability of every count whose interval has the truth in it."""
    for n, truth in itertools.product((20, 42, 90), (0.3, 0.6, 0.786, 0.95)):
        inside = [k for k in range(n + 1) if wilson(k, n)[0] <= 100 * truth <= wilson(k, n)[1]]
        coverage = sum(float(binom.pmf(k, n, truth)) for k in inside)
        assert 0.91 < coverage < 0.99
