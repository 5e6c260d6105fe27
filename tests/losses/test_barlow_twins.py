import pytest
import torch

from peerdg.losses.barlow_twins import EPS, barlow_twins


def plain_loop(z_a, z_b, lam):
    """The definition, written out over every pair of dimensions."""
    n, d = z_a.shape
    total = 0.0
    for i in range(d):
        for j in range(d):
            a, b = z_a[:, i], z_b[:, j]
            a = (a - a.mean()) / (a.var(unbiased=False) + EPS).sqrt()
            b = (b - b.mean()) / (b.var(unbiased=False) + EPS).sqrt()
            m = float((a * b).sum() / n)
            total += (1 - m) ** 2 if i == j else lam * m**2
    return total


@pytest.mark.parametrize(
    ("n", "d", "lam"), [(2, 1, 0.005), (5, 3, 0.005), (16, 8, 0.5), (7, 4, 0.0)]
)
def test_equals_the_definition_written_as_a_loop(n, d, lam):
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, n, d, dtype=torch.float64)
    expected = plain_loop(z_a, z_b, lam)
    assert float(barlow_twins(z_a, z_b, lam=lam)) == pytest.approx(expected, rel=1e-10)


def test_with_unit_rows_the_matrix_is_not_standardized():
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, 16, 4, dtype=torch.float64)
    m = sum(torch.outer(a / a.norm(), b / b.norm()) for a, b in zip(z_a, z_b, strict=True)) / 16
    expected = sum(
        (1 - m[i, j]) ** 2 if i == j else 0.3 * m[i, j] ** 2 for i in range(4) for j in range(4)
    )
    value = barlow_twins(z_a, z_b, lam=0.3, normalize="rows")
    assert float(value) == pytest.approx(float(expected), rel=1e-12)


def test_has_the_closed_form_of_two_perfectly_correlated_and_two_opposed_columns():
    column = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    r = 1 / (1 + EPS)  # correlation of a unit-variance column with itself, given epsilon
    same = torch.stack((column, column), 1)
    assert float(barlow_twins(same, same, lam=0.1)) == pytest.approx(2 * (1 - r) ** 2 + 0.2 * r**2)
    opposed = barlow_twins(same, -same, lam=0.1)
    assert float(opposed) == pytest.approx(2 * (1 + r) ** 2 + 0.2 * r**2)


def test_the_first_term_vanishes_for_equal_features():
    z = torch.randn(32, 6, dtype=torch.float64) * 10
    assert float(barlow_twins(z, z, lam=0.0)) < 1e-9


def test_is_unchanged_by_positive_affine_maps_of_the_features():
    torch.manual_seed(0)
    z_a, z_b = torch.randn(2, 32, 6, dtype=torch.float64) * 100
    scaled = barlow_twins(z_a * 7 + 3, z_b * 0.5 - 2)
    assert float(scaled) == pytest.approx(float(barlow_twins(z_a, z_b)), rel=1e-4)


def test_is_summed_over_dimensions_not_averaged():
    torch.manual_seed(0)
    z = torch.randn(64, 4, dtype=torch.float64)
    wide = torch.cat((z, z), 1)
    assert float(barlow_twins(wide, -wide, lam=0.0)) == pytest.approx(
        2 * float(barlow_twins(z, -z, lam=0.0))
    )


def test_gradients_pass_gradcheck():
    torch.manual_seed(0)
    z_a, z_b = (torch.randn(6, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(barlow_twins, (z_a, z_b))


def test_a_constant_column_counts_one_and_has_no_gradient():
    z_a = torch.randn(8, 2, dtype=torch.float64)
    z_a[:, 0] = 3.0
    z_a.requires_grad_()
    z_b = z_a.detach().clone()
    loss = barlow_twins(z_a, z_b, lam=0.0)
    assert loss.item() == pytest.approx(1.0, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, z_a)
    assert torch.isfinite(gradient).all()
    assert gradient[:, 0].abs().max() == 0


def test_all_equal_features_are_finite():
    z = torch.ones(8, 3, requires_grad=True)
    loss = barlow_twins(z, z)
    loss.backward()
    assert loss.item() == pytest.approx(3.0)
    assert torch.isfinite(z.grad).all()


def test_refuses_a_batch_of_one():
    with pytest.raises(ValueError, match="at least 2 samples"):
        barlow_twins(torch.ones(1, 3), torch.ones(1, 3))
