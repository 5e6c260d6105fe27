"""Pro-RandConv's block step by step: plain loops, torch's convolution, closed forms."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.randconv import (
    CACHED_VALUES,
    ProRandConv,
    Taps,
    bump,
    deformable_convolution,
    sampled_pixels,
    smooth_fields,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 3, height: int = 12, width: int = 9) -> Tensor:
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=seeded(0))


def by_pixels(x: Tensor) -> Tensor:
    return x.permute(2, 3, 1, 0).flatten(0, 1).contiguous()


def by_images(x: Tensor, height: int, width: int) -> Tensor:
    return x.view(height, width, 3, -1).permute(3, 2, 0, 1)


def between(image: Tensor, y: float, x: float) -> Tensor:
    """Bilinear, zero outside: (channels,)."""
    top, left = math.floor(y), math.floor(x)
    value = torch.zeros(len(image), dtype=torch.float64)
    for row, share_y in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, share_x in ((left, 1 - (x - left)), (left + 1, x - left)):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                value += share_y * share_x * image[:, row, column]
    return value


def test_the_deformable_convolution_equals_a_plain_loop():
    height, width = 6, 5
    x = torch.randn(2, 3, height, width, generator=seeded(1))
    weight = torch.randn(3, 3, 3, 3, generator=seeded(2))
    offsets = 2 * torch.randn(9, 2, height, width, generator=seeded(3))  # many lead outside
    expected = torch.zeros(2, 3, height, width, dtype=torch.float64)
    for n in range(2):
        for row in range(height):
            for column in range(width):
                for k in range(9):
                    y = row + k // 3 - 1 + offsets[k, 0, row, column].item()
                    z = column + k % 3 - 1 + offsets[k, 1, row, column].item()
                    tap = weight[:, :, k // 3, k % 3].double()
                    expected[n, :, row, column] += tap @ between(x[n].double(), y, z)
    out = deformable_convolution(by_pixels(x), weight, sampled_pixels(offsets))
    torch.testing.assert_close(
        by_images(out, height, width), expected.float(), atol=1e-4, rtol=1e-4
    )


def test_without_offsets_it_is_a_convolution_in_however_many_parts():
    batch = 400  # CACHED_VALUES // (27 * 400) pixels at a time
    assert 1 < CACHED_VALUES // (27 * batch) < 8 * 7
    x = torch.randn(batch, 3, 8, 7, generator=seeded(1))
    weight = torch.randn(3, 3, 3, 3, generator=seeded(2))
    out = deformable_convolution(by_pixels(x), weight, sampled_pixels(torch.zeros(9, 2, 8, 7)))
    expected = F.conv2d(x, weight, padding=1)
    torch.testing.assert_close(by_images(out, 8, 7), expected, atol=1e-4, rtol=1e-4)


def test_shares_of_a_tap_add_up_to_one_inside_the_image():
    taps = sampled_pixels(0.3 * torch.randn(9, 2, 12, 12, generator=seeded(0)))
    assert isinstance(taps, Taps)
    inner = taps.share.view(12, 12, 9, 4)[3:-3, 3:-3].sum(-1)
    torch.testing.assert_close(inner, torch.ones_like(inner))


def test_a_block_standardizes_scales_shifts_and_squashes():
    _, block = ProRandConv().draw(12, 9, seeded(4))
    x = torch.randn(3, 3, 12, 9, generator=seeded(5))
    convolved = by_images(deformable_convolution(by_pixels(x), block.weight, block.taps), 12, 9)
    normalized = F.instance_norm(convolved, eps=1e-5)
    expected = torch.tanh(block.gamma.view(3, 1, 1) * normalized + block.beta.view(3, 1, 1))
    torch.testing.assert_close(by_images(block(by_pixels(x)), 12, 9), expected, atol=1e-5, rtol=0)


def test_one_block_is_repeated_with_shared_parameters():
    augment = ProRandConv(repetitions=4)
    counts = set()
    for seed in range(12):
        repetitions, block = augment.draw(12, 9, seeded(seed))
        x = by_pixels(images() / 127.5 - 1)
        for _ in range(repetitions):
            x = block(x)
        expected = by_images(x, 12, 9) / 2 + 0.5
        torch.testing.assert_close(augment(images(), seeded(seed)), expected, atol=1e-6, rtol=0)
        counts.add(repetitions)
    assert counts == {1, 2, 3, 4}


def test_repetitions_are_uniform_from_one_to_ten():
    counts = torch.tensor([ProRandConv().draw(1, 1, seeded(s))[0] for s in range(600)]).bincount()
    assert counts[0] == 0 and len(counts) == 11
    assert (counts[1:] > 30).all() and (counts[1:] < 90).all()  # 60 each, 4 deviations


def test_an_image_looks_the_same_whatever_else_is_in_the_batch():
    augment = ProRandConv(offsets=0.2)
    together = augment(images(), seeded(7))
    for number in range(3):
        alone = augment(images()[number : number + 1], seeded(7))
        torch.testing.assert_close(together[number : number + 1], alone, atol=1e-5, rtol=0)
    assert not torch.allclose(together, augment(images(), seeded(8)), atol=0.01)


def test_weights_are_normal_times_a_bump():
    torch.testing.assert_close(bump(torch.tensor(1.0))[0, 0], torch.tensor(math.exp(-1)))
    torch.testing.assert_close(bump(torch.tensor(0.5))[1], torch.exp(torch.tensor([-2.0, 0, -2])))
    weights = torch.stack([ProRandConv().draw(1, 1, seeded(s))[1].weight for s in range(200)])
    middle, corner = weights[..., 1, 1], weights[..., 0, 0]
    assert abs(middle.square().mean() * 27 - 1) < 0.15  # N(0, 1/27), where the bump is 1
    sigma = torch.linspace(1e-4, 1, 10_001, dtype=torch.float64)
    expected = (-2 / sigma.square()).exp().mean() / 27  # the mean of bump² over σ ~ U(ε, 1)
    assert abs(corner.square().mean() / expected - 1) < 0.3


def test_scales_and_shifts_have_their_standard_deviation():
    blocks = [ProRandConv(affine=0.25).draw(1, 1, seeded(seed))[1] for seed in range(300)]
    for values in (torch.stack([b.gamma for b in blocks]), torch.stack([b.beta for b in blocks])):
        assert abs(values.mean()) < 0.035
        assert abs(values.std() - 0.25) < 0.025


@pytest.mark.parametrize("size", [(16, 16), (7, 12), (1, 5)])
def test_fields_have_mean_zero_and_deviation_one(size: tuple[int, int]):
    fields = smooth_fields(torch.randn(50, *size, generator=seeded(0)))
    mean, deviation = fields.mean((1, 2)), fields.square().mean((1, 2)).sqrt()
    torch.testing.assert_close(mean, torch.zeros(50), atol=1e-5, rtol=0)
    torch.testing.assert_close(deviation, torch.ones(50), atol=1e-4, rtol=0)


def test_fields_are_smooth_and_their_spectrum_falls_with_the_tenth_power():
    fields = smooth_fields(torch.randn(4000, 16, 16, generator=seeded(0), dtype=torch.float64))
    steps = (fields[:, :, 1:] - fields[:, :, :-1]).square().mean().sqrt()
    assert steps < 0.4  # of white noise: √2
    power = torch.fft.fft2(fields).abs().square().mean(0)
    assert abs((power[0, 4] / power[0, 2]).log2() + 10) < 0.2
    assert abs((power[6, 0] / power[3, 0]).log2() + 10) < 0.2


def test_offsets_have_at_most_their_deviation():
    """With a flat kernel of one tap, the shift of a ramp is the offset."""
    widest = 0.0
    for seed in range(40):
        _, block = ProRandConv(offsets=0.2).draw(16, 16, seeded(seed))
        column = torch.arange(16.0).repeat(16)
        middle = block.taps.pixel.view(256, 9, 4)[:, 4].long()
        share = block.taps.share.view(256, 9, 4)[:, 4]
        shift = ((share * column[middle]).sum(1) - column).view(16, 16)[2:-2, 2:-2]
        widest = max(widest, float(shift.square().mean().sqrt()))
    assert 0.1 < widest < 0.35
