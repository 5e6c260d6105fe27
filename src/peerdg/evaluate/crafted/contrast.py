"""Contrast: curves over all pixel values, and one that adapts to each part of the image."""

import numpy as np
from numpy.typing import NDArray

from peerdg.evaluate.crafted.operation import Operation, between, either, whole
from peerdg.evaluate.crafted.pixels import Picture, Random, from_hsv, to_hsv


def gamma(image: Picture, rng: Random, *, exponent: float) -> Picture:
    """`v ** exponent`, v in 0..1."""
    return 255 * (image / 255) ** np.float32(exponent)


def sigmoid(image: Picture, rng: Random, *, gain: float, middle: float) -> Picture:
    """Steep around the middle, flat at both ends."""
    return 255 / (1 + np.exp(np.float32(gain) * (np.float32(middle) - image / 255)))


def logarithm(image: Picture, rng: Random, *, gain: float) -> Picture:
    """`gain * log2(1 + v)`, v in 0..1."""
    return 255 * np.float32(gain) * np.log2(1 + image / 255)


def linear(image: Picture, rng: Random, *, factor: float) -> Picture:
    """Nearer to or farther from middle grey."""
    return 127 + (image - 127) * np.float32(factor)


def adaptive(image: Picture, rng: Random, *, clip: float, tiles: int) -> Picture:
    """Contrast-limited adaptive histogram equalisation of the brightness (CLAHE)."""
    hsv = to_hsv(image)
    value = hsv[..., 2].astype(np.int64)
    height, width = value.shape
    curves = _tile_curves(value, clip, tiles)
    y, x = _tile_position(height, tiles), _tile_position(width, tiles)
    result = np.zeros((height, width), dtype=np.float32)
    # Each pixel mixes the curves of the four tiles whose centres are around it.
    for rows, row_share in ((y[0], 1 - y[2]), (y[1], y[2])):
        for columns, column_share in ((x[0], 1 - x[2]), (x[1], x[2])):
            curve = curves[rows[:, None], columns[None], value]
            result += curve * row_share[:, None] * column_share[None]
    hsv[..., 2] = result
    return from_hsv(hsv)


def _tile_curves(value: NDArray[np.int64], clip: float, tiles: int) -> NDArray[np.float32]:
    """The equalising curve of each tile, [tiles, tiles, 256]."""
    height, width = value.shape
    rows, columns = np.arange(height) * tiles // height, np.arange(width) * tiles // width
    tile = rows[:, None] * tiles + columns[None]
    counts = np.bincount((tile * 256 + value).ravel(), minlength=tiles * tiles * 256)
    counts = counts.reshape(tiles * tiles, 256).astype(np.float32)
    size = counts.sum(axis=1, keepdims=True)
    limited = np.minimum(counts, clip * size / 256)
    limited += (size - limited.sum(axis=1, keepdims=True)) / 256  # spread what was cut off
    curves = 255 * np.cumsum(limited, axis=1) / size
    return np.asarray(curves, dtype=np.float32).reshape(tiles, tiles, 256)


def _tile_position(
    length: int, tiles: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Of each pixel along one axis: the tile centres before and after it, share of the latter."""
    place = (np.arange(length) + 0.5) * tiles / length - 0.5
    before = np.floor(place)
    share = (place - before).astype(np.float32)
    first = np.clip(before, 0, tiles - 1).astype(np.int64)
    return first, np.clip(before + 1, 0, tiles - 1).astype(np.int64), share


FAMILY = (
    Operation("gamma", gamma, {"exponent": either(between(0.1, 0.3), between(1.8, 2))}),
    Operation("sigmoid", sigmoid, {"gain": between(10, 25), "middle": between(0.4, 0.6)}),
    Operation("logarithm", logarithm, {"gain": either(between(0.3, 0.5), between(1.4, 1.8))}),
    Operation("linear", linear, {"factor": either(between(0.1, 0.3), between(1.8, 2))}),
    Operation("adaptive", adaptive, {"clip": between(4, 10), "tiles": whole(4, 8)}),
)
