"""Colours: hue, saturation, brightness, temperature, fewer of them."""

import numpy as np

from peerdg.evaluate.crafted.operation import Operation, between, either, signed, whole
from peerdg.evaluate.crafted.pixels import (
    Picture,
    Random,
    blend,
    from_hsv,
    from_pil,
    luma,
    to_hsv,
    to_pil,
)


def hue(image: Picture, rng: Random, *, degrees: float) -> Picture:
    """Turn the colour wheel."""
    return from_hsv(to_hsv(image) + np.array([degrees / 360 * 256, 0, 0], dtype=np.float32))


def saturation(image: Picture, rng: Random, *, factor: float) -> Picture:
    """Paler or stronger colours."""
    return from_hsv(to_hsv(image) * np.array([1, factor, 1], dtype=np.float32))


def add_brightness(image: Picture, rng: Random, *, amount: float) -> Picture:
    """Add to the value; hue and saturation stay."""
    return from_hsv(to_hsv(image) + np.array([0, 0, amount], dtype=np.float32))


def multiply_brightness(image: Picture, rng: Random, *, factor: float) -> Picture:
    """Multiply the value; hue and saturation stay."""
    return from_hsv(to_hsv(image) * np.array([1, 1, factor], dtype=np.float32))


def grey(image: Picture, rng: Random, *, share: float) -> Picture:
    """Most of the colour taken away."""
    return blend(image, luma(image)[..., None], share)


def temperature(image: Picture, rng: Random, *, kelvin: float) -> Picture:
    """The light of a black body of this temperature, as in candle light or blue shadow."""
    return image * white_of(kelvin)


def white_of(kelvin: float) -> Picture:
    """What white looks like in this light, 0..1: a fit to the black-body colours."""
    t = kelvin / 100
    if t <= 66:
        rgb = (255.0, 99.47 * np.log(t) - 161.12, 138.52 * np.log(max(t - 10, 1)) - 305.04)
    else:
        rgb = (329.70 * (t - 60) ** -0.1332, 288.12 * (t - 60) ** -0.0755, 255.0)
    return np.clip(np.array(rgb, dtype=np.float32) / 255, 0, 1)


def few_colors(image: Picture, rng: Random, *, colors: int) -> Picture:
    """A palette made for the image."""
    return from_pil(to_pil(image).quantize(colors=colors))


def few_bits(image: Picture, rng: Random, *, bits: int) -> Picture:
    """Each channel in `2 ** bits` even steps, from 0 to 255."""
    steps = 2**bits - 1
    return np.asarray(np.rint(image / 255 * steps) / steps * 255)


FAMILY = (
    Operation("hue", hue, {"degrees": between(70, 250)}),
    Operation("saturation", saturation, {"factor": either(between(0, 0.3), between(2.5, 4))}),
    Operation("add brightness", add_brightness, {"amount": signed(between(50, 150))}),
    Operation(
        "multiply brightness",
        multiply_brightness,
        {"factor": either(between(0.15, 0.3), between(1.8, 2))},
    ),
    Operation("grey", grey, {"share": between(0.8, 1)}),
    Operation(
        "temperature", temperature, {"kelvin": either(between(1500, 2500), between(12e3, 20e3))}
    ),
    Operation("four colours", few_colors, {"colors": whole(4, 4)}),
    Operation("few bits", few_bits, {"bits": whole(1, 2)}),
)
