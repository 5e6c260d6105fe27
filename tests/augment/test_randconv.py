"""RandConv against a plain loop, with the kernel read from the response to one bright pixel."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from peerdg.augment.randconv import RandConv

SIDE = 11
NOISE = torch.randint(0, 256, (2, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0))
IMAGES = NOISE.to(torch.uint8)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kernel_of(augment: RandConv, seed: int) -> Tensor:
    """Return the kernel (3, 3, κ, κ) of this seed, the response to one bright pixel on gray."""
    bright = torch.full((3, 3, SIDE, SIDE), 0.5)
    for channel in range(3):
        bright[channel, channel, SIDE // 2, SIDE // 2] += 1
    answer = augment(bright, seeded(seed)) - 0.5  # (input channel, output channel, h, w)
    half = int(answer.abs().amax((0, 1, 2)).nonzero().max()) - SIDE // 2
    middle = slice(SIDE // 2 - half, SIDE // 2 + half + 1)
    return answer[:, :, middle, middle].transpose(0, 1).flip(2, 3)


def convolved(image: Tensor, kernel: Tensor) -> Tensor:
    """Convolve distances from gray pixel by pixel, with gray padding."""
    half = kernel.shape[-1] // 2
    x = image.double() / 255 - 0.5
    out = torch.full_like(x, 0.5)
    for o in range(3):
        for row in range(SIDE):
            for column in range(SIDE):
                for i in range(3):
                    for dy in range(-half, half + 1):
                        for dx in range(-half, half + 1):
                            y, z = row + dy, column + dx
                            if 0 <= y < SIDE and 0 <= z < SIDE:
                                share = kernel[o, i, dy + half, dx + half]
                                out[o, row, column] += share * x[i, y, z]
    return out.float()


@pytest.mark.parametrize("kappa", [1, 3])
def test_all_images_of_a_batch_are_convolved_with_one_kernel(kappa: int):
    augment = RandConv(kernels=(kappa,), identity=0)
    kernel = kernel_of(augment, 5)
    assert kernel.shape == (3, 3, kappa, kappa)
    views = augment(IMAGES, seeded(5))
    for image, view in zip(IMAGES, views, strict=True):
        torch.testing.assert_close(view, convolved(image, kernel), atol=1e-5, rtol=0)


def test_weights_have_the_variance_of_one_over_the_inputs_of_a_pixel():
    for kappa in (1, 3, 5, 7):
        augment = RandConv(kernels=(kappa,), identity=0)
        weights = torch.cat([kernel_of(augment, seed).flatten() for seed in range(60)])
        scaled = weights * (3 * kappa**2) ** 0.5
        error = len(scaled) ** -0.5
        assert abs(scaled.mean()) < 4 * error
        assert abs(scaled.square().mean() - 1) < 4 * 2**0.5 * error


def test_kernel_sizes_are_drawn_uniformly():
    augment = RandConv(identity=0)
    sizes = Counter(kernel_of(augment, seed).shape[-1] for seed in range(400))
    assert sizes.keys() == {1, 3, 5, 7}
    assert all(60 <= count <= 140 for count in sizes.values())  # 100, and 4.6 deviations


def test_with_probability_one_half_a_batch_stays_as_it_is():
    views = [RandConv()(IMAGES, seeded(seed)) for seed in range(400)]
    same = [torch.equal(view, IMAGES) for view in views]
    assert 160 <= sum(same) <= 240
    assert all(view.dtype == (torch.uint8 if k else torch.float32) for view, k in zip(views, same))  # noqa: B905
    assert RandConv(identity=1)(IMAGES, seeded(0)) is IMAGES


def test_mixing_lies_between_the_image_and_its_convolution():
    shares = []
    for seed in range(200):
        mixed = RandConv("mix")(IMAGES, seeded(seed))
        whole = RandConv("img", identity=0)(IMAGES, seeded(seed))  # draws the same
        x = IMAGES / 255
        share = ((mixed - x) * (whole - x)).sum() / (whole - x).square().sum()
        torch.testing.assert_close(mixed, share * whole + (1 - share) * x, atol=1e-5, rtol=0)
        shares.append(share)
    drawn = torch.stack(shares)
    assert (drawn >= 0).all() and (drawn <= 1).all()
    assert abs(drawn.mean() - 1 / 2) < 0.08 and abs(drawn.var() - 1 / 12) < 0.02  # U(0, 1)


def test_autocast_does_not_round_a_view():
    augment = RandConv(identity=0, kernels=(3,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = augment(IMAGES, seeded(2))
    assert torch.equal(inside, augment(IMAGES, seeded(2)))
