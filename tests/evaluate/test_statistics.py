import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binom, binomtest

from peerdg.evaluate.statistics import Difference, paired_difference, wilson


def test_seeds_of_both_are_paired_whatever_their_order():
    a = {0: 60.0, 7: 10.0, 2: 70.0, 1: 62.0}  # folders are read in any order
    b = {2: 64.0, 0: 58.0, 1: 61.0, 8: 90.0}
    assert paired_difference(a, b) == Difference({0: 2.0, 1: 1.0, 2: 6.0}, 3.0)
    assert paired_difference({0: 3.0}, {1: 1.0}) is None


def test_the_interval_is_that_of_a_paired_t_test_from_five_seeds_on():
    for n, shift in itertools.product((2, 4, 5, 9, 30), (0.0, 0.6, 0.9, 2.0)):
        random = np.random.default_rng(n)
        b = dict(enumerate(random.normal(50, 10, n)))  # what seeds share cancels
        a = {seed: value + random.normal(shift, 1.0) for seed, value in b.items()}
        difference = paired_difference(a, b)
        assert difference.mean == pytest.approx(np.mean(list(difference.by_seed.values())))
        if n < 5:
            assert difference.margin is None and not difference.is_clear
            continue
        test = stats.ttest_rel(list(a.values()), list(b.values()))
        ends = (difference.mean - difference.margin, difference.mean + difference.margin)
        assert ends == pytest.approx(tuple(test.confidence_interval(0.95)))
        assert difference.is_clear == (test.pvalue < 0.05)


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
    """Compute the exact coverage from the counts whose interval contains the truth."""
    for n, truth in itertools.product((20, 42, 90), (0.3, 0.6, 0.786, 0.95)):
        inside = [k for k in range(n + 1) if wilson(k, n)[0] <= 100 * truth <= wilson(k, n)[1]]
        coverage = sum(float(binom.pmf(k, n, truth)) for k in inside)
        assert 0.91 < coverage < 0.99
