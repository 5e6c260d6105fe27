"""Apply blur, convolutional filters and weather effects."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from peerdg.crafted.operation import (
    Operation,
    Picture,
    Random,
    between,
    blend,
    convolve,
    either,
    field,
    from_pil,
    luma,
    pixels,
    smooth,
    to_pil,
)


def gaussian(image: Picture, rng: Random, *, sigma: float) -> Picture:
    """Apply a Gaussian blur."""
    return smooth(image, sigma)


def average(image: Picture, rng: Random, *, side: float) -> Picture:
    """Apply a box blur."""
    line = np.full(odd(side), 1 / odd(side), dtype=np.float32)
    return convolve(convolve(image, line[None]), line[:, None])


def median(image: Picture, rng: Random, *, side: float) -> Picture:
    """Apply a median filter, at half resolution if large, because Pillow takes side² steps."""
    exact = to_pil(image)
    if side <= 7:
        return from_pil(exact.filter(ImageFilter.MedianFilter(odd(side))))
    small = exact.reduce(2).filter(ImageFilter.MedianFilter(odd(side / 2)))
    return from_pil(small.resize(exact.size, Image.Resampling.BICUBIC))


def motion(image: Picture, rng: Random, *, length: float, angle: float) -> Picture:
    """Apply motion blur along a line."""
    side = odd(length)
    kernel = np.zeros((side, side), dtype=np.float32)
    steps = np.linspace(-(side // 2), side // 2, 4 * side)
    y = np.rint(steps * np.sin(np.deg2rad(angle))).astype(int) + side // 2
    x = np.rint(steps * np.cos(np.deg2rad(angle))).astype(int) + side // 2
    kernel[y, x] = 1
    return convolve(image, kernel / kernel.sum())


def bilateral(image: Picture, rng: Random, *, radius: float, color: float) -> Picture:
    """Average over neighbors, weighted by color similarity."""
    return similar_mean(image, radius, lambda distance: torch.exp(distance / (-2 * color**2)))


def mean_shift(image: Picture, rng: Random, *, radius: float, color: float) -> Picture:
    """Replace each pixel by the mean of similar colors around it, four times."""
    for _ in range(4):
        image = similar_mean(image, radius, lambda distance: (distance < color**2).float())
    return image


def similar_mean(image: Picture, radius: float, weight: Callable[[Tensor], Tensor]) -> Picture:
    """Average over a disc. `weight` maps squared color distances to weights.

    Large discs are sampled at every second or third pixel, which makes no visible difference.
    """
    reach = max(1, round(radius))
    step = max(1, round(reach / 3))
    center = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))  # (3, h, w)
    padded = torch.nn.functional.pad(center[None], (reach,) * 4, mode="replicate")[0]
    height, width = image.shape[:2]
    total, weights = center.clone(), torch.ones(height, width)
    offsets = [o for o in range(-reach, reach + 1) if o % step == 0]
    for y in offsets:
        for x in offsets:
            if (y, x) == (0, 0) or y * y + x * x > reach * reach + 1:
                continue
            shifted = padded[:, reach + y : reach + y + height, reach + x : reach + x + width]
            share = weight((shifted - center).square_().sum(0))
            total.addcmul_(shifted, share)
            weights.add_(share)
    return (total / weights).permute(1, 2, 0).contiguous().numpy()


def odd(length: float) -> int:
    """Round to an odd number, at least 3, because a smaller kernel has no effect."""
    return max(3, 2 * round((length - 1) / 2) + 1)


BLUR = (
    Operation("gaussian", gaussian, {"sigma": pixels(5, 7, at_least=1)}),
    Operation("average", average, {"side": pixels(9, 15)}),
    Operation("median", median, {"side": pixels(9, 15)}),
    Operation("motion", motion, {"length": pixels(15, 21, at_least=5), "angle": between(0, 180)}),
    Operation("bilateral", bilateral, {"radius": pixels(5, 8), "color": between(60, 120)}),
    Operation("mean shift", mean_shift, {"radius": pixels(6, 10), "color": between(50, 80)}),
)


def laplacian(image: Picture, rng: Random, *, gain: float) -> Picture:
    """Compute the difference between each pixel and its eight neighbors."""
    kernel = np.full((3, 3), -1, dtype=np.float32)
    kernel[1, 1] = 8
    return np.float32(gain) * convolve(image, kernel)


def sharpen(image: Picture, rng: Random, *, share: float, lightness: float) -> Picture:
    """Increase the contrast between each pixel and its eight neighbors."""
    kernel = np.full((3, 3), -1, dtype=np.float32)
    kernel[1, 1] = 8 + lightness
    return blend(image, convolve(image, kernel), share)


def emboss(image: Picture, rng: Random, *, share: float, strength: float) -> Picture:
    """Emboss the image, lit from one corner."""
    s = strength
    kernel = np.array([[-1 - s, -s, 0], [-s, 1, s], [0, s, 1 + s]], dtype=np.float32)
    return blend(image, convolve(image, kernel), share)


def edge_detect(image: Picture, rng: Random, *, share: float, gain: float) -> Picture:
    """Compute the absolute difference between each pixel and its four neighbors."""
    kernel = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=np.float32)
    return blend(image, np.float32(gain) * np.abs(convolve(image, kernel)), share)


def directed_edges(
    image: Picture, rng: Random, *, share: float, gain: float, angle: float
) -> Picture:
    """Detect steps from dark to bright in one direction."""
    offsets = np.array([(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)], dtype=np.float32)
    direction = np.array([np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))])
    kernel = (offsets @ direction).reshape(3, 3).astype(np.float32)
    return blend(image, np.float32(gain) * convolve(image, kernel / 2), share)


CONVOLUTIONAL = (
    Operation("laplacian", laplacian, {"gain": between(1.5, 2.5)}),
    Operation("sharpen", sharpen, {"share": between(0.8, 1), "lightness": between(0.75, 1.5)}),
    Operation("emboss", emboss, {"share": between(0.8, 1), "strength": between(0.5, 1.5)}),
    Operation("edge detect", edge_detect, {"share": between(0.8, 1), "gain": between(2, 3)}),
    Operation(
        "directed edges",
        directed_edges,
        {"share": between(0.8, 1), "gain": between(2, 3), "angle": between(0, 360)},
    ),
)


def snow_cover(image: Picture, rng: Random, *, threshold: float, gain: float) -> Picture:
    """Turn bright areas white in patches, like snow."""
    height, width = image.shape[:2]
    patches = 60 * field(rng, height, width, coarsest=width / 2) - 30
    light = luma(image)
    white = np.clip((light + patches - threshold) / 40, 0, 1)[..., None]
    return blend(image, np.minimum(255, light * gain + 60)[..., None], white)


def clouds(image: Picture, rng: Random, *, density: float, lumps: float) -> Picture:
    """Add white clouds with clear gaps."""
    height, width = image.shape[:2]
    cover = np.clip(2.5 * field(rng, height, width, coarsest=lumps) - 0.75, 0, 1)
    return blend(image, 240, density * cover[..., None])


def fog(image: Picture, rng: Random, *, density: float, lumps: float) -> Picture:
    """Add gray fog nearly everywhere."""
    height, width = image.shape[:2]
    cover = 0.75 + 0.25 * field(rng, height, width, coarsest=lumps, octaves=2)
    return blend(image, 205, density * cover[..., None])


def fall(
    image: Picture,
    rng: Random,
    *,
    color: float,
    light: float,
    cover: float,
    size: float,
    length: float,
    angle: float,
) -> Picture:
    """Dim the image and cover a fraction of it with drops or flakes stretched along `angle`."""
    height, width = image.shape[:2]
    sigma = max(size / 2, 0.35)
    footprint = (1 + 2 * sigma) * (odd(length) + 2 * sigma)
    count = max(3, round(cover * height * width / footprint))
    seeds = np.zeros((height, width, 1), dtype=np.float32)
    seeds[rng.integers(height, size=count), rng.integers(width, size=count)] = rng.uniform(
        0.6, 1, (count, 1)
    )
    streaks = motion(smooth(seeds, sigma), rng, length=length, angle=angle)
    peak = max(float(np.quantile(streaks[streaks > 0], 0.9)), 1e-6)
    return blend(light * image, color, np.clip(streaks / peak, 0, 1))


_COVER, _ANGLE = between(0.15, 0.25), either(between(60, 80), between(100, 120))

WEATHER = (
    Operation("snow cover", snow_cover, {"threshold": between(90, 130), "gain": between(1.5, 2.5)}),
    Operation("clouds", clouds, {"density": between(0.6, 0.85), "lumps": pixels(60, 120)}),
    Operation("fog", fog, {"density": between(0.6, 0.8), "lumps": pixels(80, 160)}),
    Operation(
        "snowflakes",
        partial(fall, color=255.0, light=1.0),
        {"cover": _COVER, "size": pixels(3, 6), "length": pixels(4, 10), "angle": _ANGLE},
    ),
    Operation(
        "rain",
        partial(fall, color=210.0, light=0.75),  # long gray streaks
        {"cover": _COVER, "size": pixels(1, 2), "length": pixels(20, 35), "angle": _ANGLE},
    ),
)
