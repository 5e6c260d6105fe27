"""Blurs: over a square, along a line, and those that keep edges."""

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from peerdg.evaluate.crafted.operation import Operation, between, pixels
from peerdg.evaluate.crafted.pixels import (
    Picture,
    Random,
    convolve,
    from_pil,
    size_of,
    smooth,
    to_pil,
)


def gaussian(image: Picture, rng: Random, *, sigma: float) -> Picture:
    """Out of focus."""
    return smooth(image, sigma)


def average(image: Picture, rng: Random, *, side: float) -> Picture:
    """Mean over squares."""
    line = np.full(odd(side), 1 / odd(side), dtype=np.float32)
    return convolve(convolve(image, line[None]), line[:, None])


def median(image: Picture, rng: Random, *, side: float) -> Picture:
    """Median over squares; large ones see every second pixel, as Pillow takes side² steps."""
    exact = to_pil(image)
    if side <= 7:
        return from_pil(exact.filter(ImageFilter.MedianFilter(odd(side))))
    small = exact.reduce(2).filter(ImageFilter.MedianFilter(odd(side / 2)))
    return from_pil(small.resize(exact.size, Image.Resampling.BICUBIC))


def motion(image: Picture, rng: Random, *, length: float, angle: float) -> Picture:
    """Mean along a line."""
    side = odd(length)
    kernel = np.zeros((side, side), dtype=np.float32)
    steps = np.linspace(-(side // 2), side // 2, 4 * side)
    y = np.rint(steps * np.sin(np.deg2rad(angle))).astype(int) + side // 2
    x = np.rint(steps * np.cos(np.deg2rad(angle))).astype(int) + side // 2
    kernel[y, x] = 1
    return convolve(image, kernel / kernel.sum())


def bilateral(image: Picture, rng: Random, *, radius: float, color: float) -> Picture:
    """Mean over neighbours, those of similar colour above all."""
    return similar_mean(image, radius, lambda distance: torch.exp(distance / (-2 * color**2)))


def mean_shift(image: Picture, rng: Random, *, radius: float, color: float) -> Picture:
    """Colours move to the mean of the similar ones around them, until areas are flat."""
    for _ in range(4):
        image = similar_mean(image, radius, lambda distance: (distance < color**2).float())
    return image


def similar_mean(image: Picture, radius: float, weight: Callable[[Tensor], Tensor]) -> Picture:
    """Mean over a disc, weighted by the squared distance of the colours.

    Large discs are sampled on a grid of every second or third pixel: nobody sees the difference.
    """
    reach = max(1, round(radius))
    step = max(1, round(reach / 3))
    centre = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))  # (3, h, w)
    padded = torch.nn.functional.pad(centre[None], (reach,) * 4, mode="replicate")[0]
    height, width = size_of(image)
    total, weights = centre.clone(), torch.ones(height, width)
    offsets = [o for o in range(-reach, reach + 1) if o % step == 0]
    for y in offsets:
        for x in offsets:
            if (y, x) == (0, 0) or y * y + x * x > reach * reach + 1:
                continue
            shifted = padded[:, reach + y : reach + y + height, reach + x : reach + x + width]
            share = weight((shifted - centre).square_().sum(0))
            total.addcmul_(shifted, share)
            weights.add_(share)
    return (total / weights).permute(1, 2, 0).contiguous().numpy()


def odd(length: float) -> int:
    """The nearest odd number, at least 3: a smaller kernel does nothing."""
    return max(3, 2 * round((length - 1) / 2) + 1)


FAMILY = (
    Operation("gaussian", gaussian, {"sigma": pixels(5, 7, at_least=1)}),
    Operation("average", average, {"side": pixels(9, 15)}),
    Operation("median", median, {"side": pixels(9, 15)}),
    Operation("motion", motion, {"length": pixels(15, 21, at_least=5), "angle": between(0, 180)}),
    Operation("bilateral", bilateral, {"radius": pixels(5, 8), "color": between(60, 120)}),
    Operation("mean shift", mean_shift, {"radius": pixels(6, 10), "color": between(50, 80)}),
)
