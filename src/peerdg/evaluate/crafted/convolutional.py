"""Small kernels: sharpening, relief, differences between neighbours."""

import numpy as np

from peerdg.evaluate.crafted.operation import Operation, between
from peerdg.evaluate.crafted.pixels import Picture, Random, blend, convolve


def laplacian(image: Picture, rng: Random, *, gain: float) -> Picture:
    """What differs from its eight neighbours."""
    kernel = np.full((3, 3), -1, dtype=np.float32)
    kernel[1, 1] = 8
    return np.float32(gain) * convolve(image, kernel)


def sharpen(image: Picture, rng: Random, *, share: float, lightness: float) -> Picture:
    """Contrast against the eight neighbours."""
    kernel = np.full((3, 3), -1, dtype=np.float32)
    kernel[1, 1] = 8 + lightness
    return blend(image, convolve(image, kernel), share)


def emboss(image: Picture, rng: Random, *, share: float, strength: float) -> Picture:
    """Light from one corner."""
    s = strength
    kernel = np.array([[-1 - s, -s, 0], [-s, 1, s], [0, s, 1 + s]], dtype=np.float32)
    return blend(image, convolve(image, kernel), share)


def edge_detect(image: Picture, rng: Random, *, share: float, gain: float) -> Picture:
    """What differs from its four neighbours, either way."""
    kernel = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=np.float32)
    return blend(image, np.float32(gain) * np.abs(convolve(image, kernel)), share)


def directed_edges(
    image: Picture, rng: Random, *, share: float, gain: float, angle: float
) -> Picture:
    """Steps from dark to bright in one direction."""
    places = np.array([(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)], dtype=np.float32)
    direction = np.array([np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))])
    kernel = (places @ direction).reshape(3, 3).astype(np.float32)
    return blend(image, np.float32(gain) * convolve(image, kernel / 2), share)


FAMILY = (
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
