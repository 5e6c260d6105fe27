"""AugMix: mixture and chains against torchvision, image by image."""

from typing import Any

import pytest
import torch
from torch import Tensor

from peerdg._vision import transforms
from peerdg.augment.augmix import LINKS, AugMix, Drawn

TORCHVISION = transforms.RandAugment()
SIDE = 24
IMAGES = torch.randint(
    0, 256, (8, 3, SIDE, SIDE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def applied(name: str, image: Tensor, level: float, sign: int) -> Tensor:
    """One operation at a level of 10, as the released code scales it, by torchvision."""
    strength = {
        "AutoContrast": 0,
        "Equalize": 0,
        "Posterize": 4 - int(level * 4 / 10),
        "Rotate": sign * int(level * 30 / 10),
        "Solarize": (256 - int(level * 256 / 10)) / 255,
        "ShearX": sign * level * 0.3 / 10,
        "ShearY": sign * level * 0.3 / 10,
        "TranslateX": sign * int(level * (SIDE / 3) / 10),
        "TranslateY": sign * int(level * (SIDE / 3) / 10),
    }[name]
    return TORCHVISION._apply_image_or_video_transform(
        image, name, strength, interpolation=TORCHVISION.interpolation, fill=TORCHVISION._fill
    )


def mixed(images: Tensor, drawn: Drawn) -> Tensor:
    """(1 - m)·x + m·Σ w_i·chain_i(x), one image after the other."""
    views = []
    for n, image in enumerate(images):
        total = torch.zeros(image.shape, dtype=torch.float64)
        for i, depth in enumerate(drawn.depth[n]):
            chain = image
            for place in range(int(depth)):
                name = LINKS[drawn.link[n, i, place]].name
                level, sign = drawn.level[n, i, place].item(), drawn.sign[n, i, place].item()
                chain = applied(name, chain, level, sign)
            total += drawn.w[n, i] * chain / 255
        views.append((1 - drawn.m[n]) * image / 255 + drawn.m[n] * total)
    return torch.stack(views).float()


@pytest.mark.parametrize("options", [{}, {"severity": 10, "chains": 2}, {"depth": 1, "chains": 1}])
def test_views_equal_chains_of_torchvisions_operations(options: dict[str, Any]):
    augment = AugMix(**options)
    for seed in range(4):
        drawn = augment.draw(len(IMAGES), seeded(seed))
        view = augment(IMAGES, seeded(seed))
        torch.testing.assert_close(view, mixed(IMAGES, drawn), atol=1e-5, rtol=0)


def test_the_operations_are_the_nine_of_the_released_code():
    assert sorted(link.name for link in LINKS) == [
        "AutoContrast", "Equalize", "Posterize", "Rotate", "ShearX", "ShearY", "Solarize",
        "TranslateX", "TranslateY",
    ]  # fmt: skip


def test_with_m_zero_the_image_is_unchanged():
    drawn = AugMix().draw(len(IMAGES), seeded(0))
    clean = AugMix().apply(IMAGES, drawn._replace(m=torch.zeros_like(drawn.m)))
    assert torch.equal(clean, IMAGES.float() / 255)


def test_views_stay_between_black_and_white():
    for images in (IMAGES, torch.full_like(IMAGES, 255), torch.zeros_like(IMAGES)):
        view = AugMix(severity=10)(images, seeded(3))
        assert view.dtype == torch.float32
        assert view.min() >= 0 and view.max() <= 1


def test_shares_are_dirichlet_and_uniform():
    drawn = AugMix().draw(20_000, seeded(0))
    torch.testing.assert_close(drawn.w.sum(1), torch.ones(20_000, dtype=torch.float64))
    assert (drawn.w >= 0).all()
    for i in range(3):
        assert abs(drawn.w[:, i].mean() - 1 / 3) < 0.01
        assert abs(drawn.w[:, i].var() - 1 / 18) < 0.003  # of Dirichlet(1, 1, 1)
    covariance = torch.cov(drawn.w.T)[0, 1]
    assert abs(covariance + 1 / 36) < 0.003
    assert abs(drawn.m.mean() - 1 / 2) < 0.01 and abs(drawn.m.var() - 1 / 12) < 0.003


def test_levels_go_up_to_the_severity_and_depths_from_one_to_three():
    drawn = AugMix(severity=3).draw(5000, seeded(0))
    assert 0.1 <= drawn.level.min() < 0.12 and 2.98 < drawn.level.max() <= 3
    assert abs(drawn.level.mean() - 1.55) < 0.02
    assert drawn.depth.unique().tolist() == [1, 2, 3]
    assert drawn.link.shape == (5000, 3, 3)
    fixed = AugMix(depth=5).draw(10, seeded(0))
    assert fixed.depth.unique().tolist() == [5] and fixed.link.shape == (10, 3, 5)
    assert abs(drawn.sign.double().mean()) < 0.02


def test_translations_follow_the_size_of_the_image():
    share = torch.tensor([1.0], dtype=torch.float64)
    moves = {link.name: link.strength(share, 30, 60).item() for link in LINKS if link.signed}
    assert (moves["TranslateX"], moves["TranslateY"]) == (20, 10)
