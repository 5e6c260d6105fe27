"""Drawn lines: Canny's edges in two colours, blended over the image."""

import numpy as np
from numpy.typing import NDArray

from peerdg.evaluate.crafted.operation import Operation, between, pixels
from peerdg.evaluate.crafted.pixels import (
    Picture,
    Plane,
    Random,
    blend,
    convolve,
    luma,
    smooth_plane,
)

Mask = NDArray[np.bool_]

_SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=np.float32) / 4
_CONTRAST = 100  # levels between lines and ground, so that lines are seen


def canny_lines(
    image: Picture, rng: Random, *, sigma: float, share: float, weak: float, strong: float
) -> Picture:
    """Edges in a random colour over another one."""
    edges = canny(smooth_plane(luma(image), sigma), weak=weak, strong=strong)
    line, ground = _two_colors(rng)
    return blend(image, np.where(edges[..., None], line, ground), share)


def canny(plane: Plane, *, weak: float, strong: float) -> Mask:
    """Edges that are strong, or weak and connected to a strong one (Canny 1986).

    Args:
        plane: A smoothed image.
        weak: Gradient in levels per pixel that an edge must have.
        strong: Gradient that each edge must have somewhere.
    """
    x = convolve(plane[..., None], _SOBEL)[..., 0] / 2
    y = convolve(plane[..., None], _SOBEL.T)[..., 0] / 2
    size = np.hypot(x, y)
    thin = size * _is_ridge(size, x, y)
    return connected(thin >= weak, thin >= strong)


def connected(mask: Mask, seeds: Mask) -> Mask:
    """The parts of `mask` that touch a seed, over any distance and also diagonally."""
    grown = np.pad(mask & seeds, 1)
    inside = np.pad(mask, 1)
    while True:
        wider = grown.copy()
        wider[1:] |= grown[:-1]
        wider[:-1] |= grown[1:]
        tall = wider.copy()
        wider[:, 1:] |= tall[:, :-1]
        wider[:, :-1] |= tall[:, 1:]
        wider &= inside
        if np.array_equal(wider, grown):
            return grown[1:-1, 1:-1]
        grown = wider


def _is_ridge(size: Plane, x: Plane, y: Plane) -> Mask:
    """Whether a pixel's gradient is the largest among its neighbours along the gradient."""
    around = np.pad(size, 1)
    height, width = size.shape
    sector = np.rint(np.arctan2(y, x) / (np.pi / 4)).astype(int) % 4
    ridge = np.zeros(size.shape, dtype=bool)
    for number, (down, right) in enumerate(((0, 1), (1, 1), (1, 0), (1, -1))):
        ahead = around[1 + down : 1 + down + height, 1 + right : 1 + right + width]
        behind = around[1 - down : 1 - down + height, 1 - right : 1 - right + width]
        ridge |= (sector == number) & (size >= ahead) & (size > behind)
    return ridge


def _two_colors(rng: Random) -> tuple[Picture, Picture]:
    """Two random colours that differ in brightness."""
    while True:
        line, ground = rng.uniform(0, 255, (2, 3)).astype(np.float32)
        if abs(float(luma(line) - luma(ground))) >= _CONTRAST:
            return line, ground


FAMILY = (
    Operation(
        "canny",
        canny_lines,
        {
            "sigma": pixels(2, 2, at_least=0.5),
            "share": between(0.8, 1),
            "weak": between(4, 6),
            "strong": between(10, 15),
        },
    ),
)
