import pytest
import torch

from peerdg.losses.mmd import class_mmd, mmd


def expected_kernel(difference, variance, h, dim):
    """E exp(-|d|²/h) for d ~ N(difference, variance I): (h/(h+2v))^(D/2) exp(-|m|²/(h+2v))."""
    spread = h + 2 * variance
    return (h / spread) ** (dim / 2) * torch.exp(torch.tensor(-(difference**2) * dim / spread))


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (0.7, 0.5)])
def test_has_the_closed_form_of_gaussians(shift, scale):
    torch.manual_seed(0)
    n, dim, h = 700, 3, 4.0
    values = []
    for _ in range(6):
        x, y = torch.randn(2, n, dim, dtype=torch.float64)
        values.append(float(mmd(x, shift + scale * y, bandwidth=h)))
    closed = 0.0
    for bandwidth in (h / 4, h / 2, h, 2 * h, 4 * h):
        closed += expected_kernel(0, 2.0, bandwidth, dim)
        closed += expected_kernel(0, 2 * scale**2, bandwidth, dim)
        closed -= 2 * expected_kernel(shift, 1 + scale**2, bandwidth, dim)
    assert sum(values) / len(values) == pytest.approx(float(closed), abs=0.03)


def test_is_zero_for_the_same_sample_and_unchanged_by_scale():
    torch.manual_seed(0)
    x, y = torch.randn(2, 6, 4, dtype=torch.float64)
    assert float(mmd(x, x)) == pytest.approx(0, abs=1e-12)
    assert float(mmd(3 * x, 3 * y)) == pytest.approx(float(mmd(x, y)))


def test_the_bandwidth_is_the_mean_squared_distance_of_two_rows():
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 2, dtype=torch.float64)
    rows = torch.cat((x, y))
    pairs = [(rows[i] - rows[j]).square().sum() for i in range(6) for j in range(6) if i != j]
    h = float(sum(pairs) / len(pairs))
    assert float(mmd(x, y)) == pytest.approx(float(mmd(x, y, bandwidth=h)))


def test_by_class_is_the_mean_over_classes_that_have_two_rows():
    torch.manual_seed(0)
    x, y = torch.randn(2, 7, 2, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 0, 2, 3])  # 2 and 3 have one row each
    zero, one = labels == 0, labels == 1
    expected = (mmd(x[zero], y[zero]) + mmd(x[one], y[one])) / 2
    assert float(class_mmd(x, y, labels, labels)) == pytest.approx(float(expected))


def test_by_class_without_any_pair_is_zero_not_nan():
    x, labels = torch.randn(2, 3), torch.tensor([0, 1])
    assert float(class_mmd(x, x + 1, labels, labels)) == 0
