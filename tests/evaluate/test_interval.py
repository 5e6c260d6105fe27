import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from peerdg.evaluate.interval import wilson


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


@pytest.mark.parametrize("n", [20, 42, 90])
@pytest.mark.parametrize("truth", [0.3, 0.6, 0.786, 0.95])
def test_holds_the_truth_about_19_times_in_20(n: int, truth: float):
    """Exact coverage: the probability of every count whose interval has the truth in it."""
    inside = [k for k in range(n + 1) if wilson(k, n)[0] <= 100 * truth <= wilson(k, n)[1]]
    coverage = sum(float(binom.pmf(k, n, truth)) for k in inside)
    assert 0.91 < coverage < 0.99
