"""Change pixel values: families `arithmetic`, `color` and `contrast`."""

import io
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peerdg.crafted.operation import (
    Draw,
    Operation,
    Picture,
    Random,
    between,
    blend,
    blocks,
    either,
    from_hsv,
    from_pil,
    luma,
    pixels,
    randint,
    signed,
    to_hsv,
    to_pil,
)


def add(image: Picture, rng: Random, *, amount: float) -> Picture:
    """Make all pixels brighter or darker by `amount`."""
    return image + np.float32(amount)


def add_per_pixel(image: Picture, rng: Random, *, amount: float) -> Picture:
    """Make each pixel brighter or darker by up to `amount`."""
    return image + rng.uniform(-amount, amount, (*image.shape[:2], 1)).astype(np.float32)


def gaussian_noise(image: Picture, rng: Random, *, scale: float) -> Picture:
    """Add Gaussian noise, independent for each channel."""
    return image + np.float32(scale) * rng.standard_normal(image.shape, dtype=np.float32)


def laplace_noise(image: Picture, rng: Random, *, scale: float) -> Picture:
    """Add Laplace noise, which has more outliers than Gaussian noise."""
    return image + rng.laplace(0.0, scale, image.shape).astype(np.float32)


def poisson_noise(image: Picture, rng: Random, *, rate: float) -> Picture:
    """Add Poisson counts with random signs."""
    counts = rng.poisson(rate, image.shape) * rng.choice((-1, 1), image.shape)
    return np.asarray(image + counts)


def multiply(image: Picture, rng: Random, *, factor: float) -> Picture:
    """Overexpose the image."""
    return image * np.float32(factor)


def cutout(image: Picture, rng: Random, *, squares: int, side: float) -> Picture:
    """Draw gray squares at random positions. `side` is a fraction of the image side."""
    result = image.copy()
    height, width = image.shape[:2]
    half = max(1, round(side * min(height, width) / 2))
    for y, x in rng.integers((height, width), size=(squares, 2)):
        result[max(0, y - half) : y + half, max(0, x - half) : x + half] = 128
    return result


def cover(image: Picture, rng: Random, *, black: float, share: float, side: float) -> Picture:
    """Cover part of the image with squares, a fraction `black` of them black, the rest white."""
    draw = blocks(rng, *image.shape[:2], side=side)[..., None]
    white = np.where(draw < share, np.float32(255), image)
    return np.where(draw < share * black, np.float32(0), white)


def impulses(image: Picture, rng: Random, *, share: float) -> Picture:
    """Set a random fraction of all channel values to 0 or 255."""
    hit = rng.random(image.shape, dtype=np.float32) < share
    return np.where(hit, np.float32(255) * rng.integers(2, size=image.shape), image)


def invert(image: Picture, rng: Random) -> Picture:
    """Invert all values."""
    return 255 - image


def solarize(image: Picture, rng: Random, *, threshold: float) -> Picture:
    """Invert values at or above the threshold."""
    return np.where(image >= threshold, 255 - image, image)


def jpeg(image: Picture, rng: Random, *, quality: int) -> Picture:
    """Compress the image as JPEG."""
    file = io.BytesIO()
    to_pil(image).save(file, format="JPEG", quality=quality)
    return from_pil(Image.open(file, formats=("JPEG",)))


_PEPPER, _BOTH, _SALT = (partial(cover, black=part) for part in (1, 0.5, 0))
_FINE: dict[str, Draw] = {"share": between(0.25, 0.4), "side": pixels(1, 1, at_least=1)}
_COARSE: dict[str, Draw] = {"share": between(0.15, 0.3), "side": pixels(10, 20, at_least=2)}

ARITHMETIC = (
    Operation("add", add, {"amount": signed(between(50, 150))}),
    Operation("add per pixel", add_per_pixel, {"amount": between(100, 200)}),
    Operation("gaussian noise", gaussian_noise, {"scale": between(50, 120)}),
    Operation("laplace noise", laplace_noise, {"scale": between(50, 100)}),
    Operation("poisson noise", poisson_noise, {"rate": between(40, 60)}),
    Operation("multiply", multiply, {"factor": between(2, 3)}),
    Operation("cutout", cutout, {"squares": randint(5, 8), "side": between(0.15, 0.2)}),
    Operation("dropout", _PEPPER, _FINE),
    Operation("coarse dropout", _PEPPER, _COARSE),
    Operation("impulses", impulses, {"share": between(0.3, 0.5)}),
    Operation("salt and pepper", _BOTH, _FINE),
    Operation("coarse salt and pepper", _BOTH, _COARSE),
    Operation("salt", _SALT, _FINE),
    Operation("coarse salt", _SALT, _COARSE),
    Operation("invert", invert),
    Operation("solarize", solarize, {"threshold": between(32, 128)}),
    Operation("jpeg", jpeg, {"quality": randint(1, 10)}),
)


def change_hsv(
    image: Picture,
    rng: Random,
    *,
    degrees: float = 0,
    saturation: float = 1,
    value: float = 1,
    added: float = 0,
) -> Picture:
    """Rotate the hue, multiply saturation and value, and add to the value."""
    factors = np.array([1, saturation, value], dtype=np.float32)
    shifts = np.array([degrees / 360 * 256, 0, added], dtype=np.float32)
    return from_hsv(to_hsv(image) * factors + shifts)


def gray(image: Picture, rng: Random, *, share: float) -> Picture:
    """Remove most of the color."""
    return blend(image, luma(image)[..., None], share)


def temperature(image: Picture, rng: Random, *, kelvin: float) -> Picture:
    """Change the color temperature of the light, from candlelight to blue shade."""
    return image * white_of(kelvin)


def white_of(kelvin: float) -> Picture:
    """Return the color of white in this light, 0..1, using a fit to black-body colors."""
    t = kelvin / 100
    if t <= 66:
        rgb = (255.0, 99.47 * np.log(t) - 161.12, 138.52 * np.log(max(t - 10, 1)) - 305.04)
    else:
        rgb = (329.70 * (t - 60) ** -0.1332, 288.12 * (t - 60) ** -0.0755, 255.0)
    return np.clip(np.array(rgb, dtype=np.float32) / 255, 0, 1)


def few_colors(image: Picture, rng: Random, *, colors: int) -> Picture:
    """Reduce the image to an adaptive palette."""
    return from_pil(to_pil(image).quantize(colors=colors))


def few_bits(image: Picture, rng: Random, *, bits: int) -> Picture:
    """Quantize each channel to `2 ** bits` evenly spaced levels from 0 to 255."""
    steps = 2**bits - 1
    return np.asarray(np.rint(image / 255 * steps) / steps * 255)


COLOR = (
    Operation("hue", change_hsv, {"degrees": between(70, 250)}),
    Operation("saturation", change_hsv, {"saturation": either(between(0, 0.3), between(2.5, 4))}),
    Operation("add brightness", change_hsv, {"added": signed(between(50, 150))}),
    Operation(
        "multiply brightness", change_hsv, {"value": either(between(0.15, 0.3), between(1.8, 2))}
    ),
    Operation("gray", gray, {"share": between(0.8, 1)}),
    Operation(
        "temperature", temperature, {"kelvin": either(between(1500, 2500), between(12e3, 20e3))}
    ),
    Operation("four colors", few_colors, {"colors": randint(4, 4)}),
    Operation("few bits", few_bits, {"bits": randint(1, 2)}),
)


def gamma(image: Picture, rng: Random, *, exponent: float) -> Picture:
    """Compute `v ** exponent` for values v in 0..1."""
    return 255 * (image / 255) ** np.float32(exponent)


def sigmoid(image: Picture, rng: Random, *, gain: float, middle: float) -> Picture:
    """Apply a sigmoid, steep around `middle` and flat at both ends."""
    return 255 / (1 + np.exp(np.float32(gain) * (np.float32(middle) - image / 255)))


def logarithm(image: Picture, rng: Random, *, gain: float) -> Picture:
    """Compute `gain * log2(1 + v)` for values v in 0..1."""
    return 255 * np.float32(gain) * np.log2(1 + image / 255)


def linear(image: Picture, rng: Random, *, factor: float) -> Picture:
    """Scale the distance from middle gray by `factor`."""
    return 127 + (image - 127) * np.float32(factor)


def adaptive(image: Picture, rng: Random, *, clip: float, tiles: int) -> Picture:
    """Apply contrast-limited adaptive histogram equalization (CLAHE) to the brightness."""
    hsv = to_hsv(image)
    value = hsv[..., 2].astype(np.int64)
    height, width = value.shape
    curves = _tile_curves(value, clip, tiles)
    y, x = _tile_position(height, tiles), _tile_position(width, tiles)
    result = np.zeros((height, width), dtype=np.float32)
    # Each pixel interpolates the curves of the four tiles whose centers surround it.
    for rows, row_share in ((y[0], 1 - y[2]), (y[1], y[2])):
        for columns, column_share in ((x[0], 1 - x[2]), (x[1], x[2])):
            curve = curves[rows[:, None], columns[None], value]
            result += curve * row_share[:, None] * column_share[None]
    hsv[..., 2] = result
    return from_hsv(hsv)


def _tile_curves(value: NDArray[np.int64], clip: float, tiles: int) -> NDArray[np.float32]:
    """Return the equalization curve of each tile, [tiles, tiles, 256]."""
    height, width = value.shape
    rows, columns = np.arange(height) * tiles // height, np.arange(width) * tiles // width
    tile = rows[:, None] * tiles + columns[None]
    counts = np.bincount((tile * 256 + value).ravel(), minlength=tiles * tiles * 256)
    counts = counts.reshape(tiles * tiles, 256).astype(np.float32)
    size = counts.sum(axis=1, keepdims=True)
    limited = np.minimum(counts, clip * size / 256)
    limited += (size - limited.sum(axis=1, keepdims=True)) / 256  # redistribute the excess
    curves = 255 * np.cumsum(limited, axis=1) / size
    return np.asarray(curves, dtype=np.float32).reshape(tiles, tiles, 256)


def _tile_position(
    length: int, tiles: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the tiles centered before and after each pixel, and the weight of the second."""
    place = (np.arange(length) + 0.5) * tiles / length - 0.5
    before = np.floor(place)
    share = (place - before).astype(np.float32)
    first = np.clip(before, 0, tiles - 1).astype(np.int64)
    return first, np.clip(before + 1, 0, tiles - 1).astype(np.int64), share


CONTRAST = (
    Operation("gamma", gamma, {"exponent": either(between(0.1, 0.3), between(1.8, 2))}),
    Operation("sigmoid", sigmoid, {"gain": between(10, 25), "middle": between(0.4, 0.6)}),
    Operation("logarithm", logarithm, {"gain": either(between(0.3, 0.5), between(1.4, 1.8))}),
    Operation("linear", linear, {"factor": either(between(0.1, 0.3), between(1.8, 2))}),
    Operation("adaptive", adaptive, {"clip": between(4, 10), "tiles": randint(4, 8)}),
)
