"""Arithmetic on pixel values: noise, dropout, squares, inversion, JPEG."""

import io

import numpy as np
from PIL import Image

from peerdg.evaluate.crafted.operation import Draw, Operation, between, pixels, signed, whole
from peerdg.evaluate.crafted.pixels import Picture, Random, blocks, from_pil, size_of, to_pil


def add(image: Picture, rng: Random, *, amount: float) -> Picture:
    """Brighter or darker everywhere."""
    return image + np.float32(amount)


def add_per_pixel(image: Picture, rng: Random, *, amount: float) -> Picture:
    """Every pixel brighter or darker by up to `amount`."""
    return image + rng.uniform(-amount, amount, (*size_of(image), 1)).astype(np.float32)


def gaussian_noise(image: Picture, rng: Random, *, scale: float) -> Picture:
    """Normal noise, each channel its own."""
    return image + np.float32(scale) * rng.standard_normal(image.shape, dtype=np.float32)


def laplace_noise(image: Picture, rng: Random, *, scale: float) -> Picture:
    """Noise with more outliers than the normal one."""
    return image + rng.laplace(0.0, scale, image.shape).astype(np.float32)


def poisson_noise(image: Picture, rng: Random, *, rate: float) -> Picture:
    """Counts with a random sign."""
    counts = rng.poisson(rate, image.shape) * rng.choice((-1, 1), image.shape)
    return np.asarray(image + counts)


def multiply(image: Picture, rng: Random, *, factor: float) -> Picture:
    """Overexposure."""
    return image * np.float32(factor)


def cutout(image: Picture, rng: Random, *, squares: int, side: float) -> Picture:
    """Grey squares at random places; `side` is a share of the image's."""
    result = image.copy()
    height, width = size_of(image)
    half = max(1, round(side * min(height, width) / 2))
    for y, x in rng.integers((height, width), size=(squares, 2)):
        result[max(0, y - half) : y + half, max(0, x - half) : x + half] = 128
    return result


def dropout(image: Picture, rng: Random, *, share: float, side: float) -> Picture:
    """Black squares of `side` pixels over a share of the image; elsewhere called pepper."""
    gone = blocks(rng, *size_of(image), side) < share
    return np.where(gone[..., None], np.float32(0), image)


def impulses(image: Picture, rng: Random, *, share: float) -> Picture:
    """Channels that are 0 or 255, over a share of all values."""
    hit = rng.random(image.shape, dtype=np.float32) < share
    return np.where(hit, np.float32(255) * rng.integers(2, size=image.shape), image)


def salt_and_pepper(image: Picture, rng: Random, *, share: float, side: float) -> Picture:
    """White and black squares of `side` pixels over a share of the image."""
    draw = blocks(rng, *size_of(image), side)[..., None]
    return np.where(draw < share / 2, np.float32(0), np.where(draw < share, np.float32(255), image))


def salt(image: Picture, rng: Random, *, share: float, side: float) -> Picture:
    """White squares."""
    hit = blocks(rng, *size_of(image), side) < share
    return np.where(hit[..., None], np.float32(255), image)


def invert(image: Picture, rng: Random) -> Picture:
    """The negative."""
    return 255 - image


def solarize(image: Picture, rng: Random, *, threshold: float) -> Picture:
    """The negative of what is brighter than the threshold."""
    return np.where(image >= threshold, 255 - image, image)


def jpeg(image: Picture, rng: Random, *, quality: int) -> Picture:
    """Heavy compression."""
    file = io.BytesIO()
    to_pil(image).save(file, format="JPEG", quality=quality)
    return from_pil(Image.open(file, formats=("JPEG",)))


_FINE: dict[str, Draw] = {"share": between(0.25, 0.4), "side": pixels(1, 1, at_least=1)}
_COARSE: dict[str, Draw] = {"share": between(0.15, 0.3), "side": pixels(10, 20, at_least=2)}

FAMILY = (
    Operation("add", add, {"amount": signed(between(50, 150))}),
    Operation("add per pixel", add_per_pixel, {"amount": between(100, 200)}),
    Operation("gaussian noise", gaussian_noise, {"scale": between(50, 120)}),
    Operation("laplace noise", laplace_noise, {"scale": between(50, 100)}),
    Operation("poisson noise", poisson_noise, {"rate": between(40, 60)}),
    Operation("multiply", multiply, {"factor": between(2, 3)}),
    Operation("cutout", cutout, {"squares": whole(5, 8), "side": between(0.15, 0.2)}),
    Operation("dropout", dropout, _FINE),
    Operation("coarse dropout", dropout, _COARSE),
    Operation("impulses", impulses, {"share": between(0.3, 0.5)}),
    Operation("salt and pepper", salt_and_pepper, _FINE),
    Operation("coarse salt and pepper", salt_and_pepper, _COARSE),
    Operation("salt", salt, _FINE),
    Operation("coarse salt", salt, _COARSE),
    Operation("invert", invert),
    Operation("solarize", solarize, {"threshold": between(32, 128)}),
    Operation("jpeg", jpeg, {"quality": whole(1, 10)}),
)
