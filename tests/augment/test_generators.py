"""Untrained generators depend on seed and period, and follow their equations."""

import pytest
import torch

from peerdg.augment.generators import Generator, NoiseGenerator, StyleGenerator
from peerdg.errors import DataError
from peerdg.models.generators import draw_noise

IMAGES = torch.randint(
    0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
X = IMAGES / 255


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(kind: str, seed: int = 0) -> Generator:
    if kind == "pden":
        return NoiseGenerator(width=4, seed=seed)
    return StyleGenerator(16, kernels=(3, 5), draws=kind, seed=seed)


kinds = pytest.mark.parametrize("kind", ["period", "batch", "pden"])


@kinds
def test_a_network_is_a_function_of_seed_and_period(kind: str):
    first, second = made(kind), made(kind)
    again = first(IMAGES, seeded(1))
    views = []
    for period in range(3):
        first.redraw(period)
        views.append(first(IMAGES, seeded(1)))
    assert not any(torch.allclose(views[i], views[j]) for i in range(3) for j in range(i))
    assert torch.equal(views[0], again)  # period 0 before any redraw
    second.redraw(2)
    assert torch.equal(second(IMAGES, seeded(1)), views[2])
    assert not torch.allclose(made(kind, seed=1)(IMAGES, seeded(1)), views[0])


def test_a_styled_image_is_the_mixture_of_l2d():
    augment = StyleGenerator(16, kernels=(3, 5), mix=0.6)
    styled = augment.network.styled((X - 0.5) / 0.5)
    expected = 0.6 * styled.sigmoid() + 0.4 * X
    torch.testing.assert_close(augment(IMAGES), expected, atol=1e-6, rtol=0)


def test_convolutions_stay_for_a_period_or_are_drawn_for_each_batch():
    by_period, fresh = made("period"), made("batch")
    assert torch.equal(by_period(IMAGES, seeded(1)), by_period(IMAGES, seeded(2)))
    assert not torch.allclose(fresh(IMAGES, seeded(1)), fresh(IMAGES, seeded(2)))
    styled = fresh.network((X - 0.5) / 0.5, seeded(1))
    torch.testing.assert_close(fresh(IMAGES, seeded(1)), 0.6 * styled.sigmoid() + 0.4 * X)


def test_pdens_generator_draws_noise_for_each_image():
    augment = NoiseGenerator(width=4, mix=0.7)
    expected = 0.7 * augment.network(X, draw_noise(X, seeded(3))) + 0.3 * X
    torch.testing.assert_close(augment(IMAGES, seeded(3)), expected)
    same = augment(IMAGES[:1].expand(2, -1, -1, -1), seeded(3))
    assert not torch.allclose(same[0], same[1])


@kinds
def test_views_stay_between_black_and_white_and_nothing_learns(kind: str):
    augment = made(kind)
    view = augment(IMAGES, seeded(0))
    assert view.dtype == torch.float32 and not view.requires_grad
    assert view.min() >= 0 and view.max() <= 1
    assert not any(p.requires_grad for p in augment.network.parameters())


def test_images_of_another_size_are_refused():
    with pytest.raises(DataError, match="16 x 16"):
        made("period")(IMAGES[:, :, :8, :8])
