"""Move pixels: affine maps, perspective, displacement, polar waves, shuffled tiles."""

import numpy as np

from peerdg.crafted.operation import (
    Operation,
    Picture,
    Random,
    between,
    coordinates,
    either,
    enlarge,
    field,
    pixels,
    randint,
    sample,
    signed,
)


def scale(image: Picture, rng: Random, *, factor: float) -> Picture:
    """Scale about the center."""
    y, x = coordinates(*image.shape[:2])
    return sample(image, y / factor, x / factor)


def translate(image: Picture, rng: Random, *, down: float, right: float) -> Picture:
    """Shift by fractions of the height and width."""
    height, width = image.shape[:2]
    y, x = coordinates(height, width)
    return sample(image, y - down * height, x - right * width)


def rotate(image: Picture, rng: Random, *, degrees: float) -> Picture:
    """Rotate about the center."""
    y, x = coordinates(*image.shape[:2])
    sine, cosine = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    return sample(image, cosine * y - sine * x, sine * y + cosine * x)


def shear(image: Picture, rng: Random, *, degrees: float) -> Picture:
    """Shear along a random axis."""
    y, x = coordinates(*image.shape[:2])
    slope = np.float32(np.tan(np.deg2rad(degrees)))
    if rng.integers(2):
        return sample(image, y, x + slope * y)
    return sample(image, y + slope * x, x)


def piecewise(image: Picture, rng: Random, *, jitter: float, cells: int) -> Picture:
    """Move the nodes of a grid by up to `jitter` cells, and interpolate in between."""
    height, width = image.shape[:2]
    y, x = coordinates(height, width)
    moves = rng.uniform(-jitter, jitter, (2, cells + 1, cells + 1)) / cells
    down, right = (enlarge(move, height, width, smooth=False) for move in moves)
    return sample(image, y + down * height, x + right * width)


def perspective(image: Picture, rng: Random, *, tilt: float) -> Picture:
    """Tilt the image in a random direction. `tilt` is the relative change in depth."""
    height, width = image.shape[:2]
    y, x = coordinates(height, width)
    direction = rng.uniform(0, 2 * np.pi)
    along = np.sin(direction) * y / height + np.cos(direction) * x / width  # within -0.71..0.71
    depth = 1 + tilt * along
    return sample(image, y / depth, x / depth)


def elastic(image: Picture, rng: Random, *, reach: float, lumps: float) -> Picture:
    """Displace pixels by a smooth random field of up to `reach` pixels."""
    height, width = image.shape[:2]
    y, x = coordinates(height, width)
    down, right = (
        2 * reach * field(rng, height, width, coarsest=lumps, octaves=1) - reach for _ in range(2)
    )
    return sample(image, y + down, x + right, outside="reflection")


def polar(image: Picture, rng: Random, *, twist: float, wave: float, waves: int) -> Picture:
    """Twist the angle near the center, and add waves to the radius."""
    height, width = image.shape[:2]
    y, x = coordinates(height, width)
    radius, angle = np.hypot(y, x), np.arctan2(y, x)
    far = min(height, width) / 2
    angle = angle + np.deg2rad(twist) * np.clip(1 - radius / far, 0, None)
    radius = radius * (1 + wave * np.sin(waves * angle + rng.uniform(0, 2 * np.pi)))
    return sample(image, radius * np.sin(angle), radius * np.cos(angle), outside="reflection")


def jigsaw(image: Picture, rng: Random, *, tiles: int) -> Picture:
    """Swap random tiles with one of their neighbors."""
    height, width = (n // tiles for n in image.shape[:2])
    result = image.copy()
    order = np.arange(tiles * tiles).reshape(tiles, tiles)
    for _ in range(tiles * tiles // 2):
        y, x = rng.integers(tiles, size=2)
        other = (y, (x + 1) % tiles) if rng.integers(2) else ((y + 1) % tiles, x)
        order[y, x], order[other] = order[other], order[y, x]
    for place, tile in enumerate(order.ravel()):
        (to_y, to_x), (y, x) = divmod(place, tiles), divmod(int(tile), tiles)
        result[to_y * height : (to_y + 1) * height, to_x * width : (to_x + 1) * width] = image[
            y * height : (y + 1) * height, x * width : (x + 1) * width
        ]
    return result


_SIDEWAYS = signed(between(0.12, 0.22))

GEOMETRIC = (
    Operation("scale", scale, {"factor": either(between(0.5, 0.75), between(1.25, 1.75))}),
    Operation("translate", translate, {"down": _SIDEWAYS, "right": _SIDEWAYS}),
    Operation("rotate", rotate, {"degrees": signed(between(15, 45))}),
    Operation("shear", shear, {"degrees": signed(between(15, 25))}),
    Operation("piecewise", piecewise, {"jitter": between(0.25, 0.45), "cells": randint(4, 5)}),
    Operation("perspective", perspective, {"tilt": between(0.5, 0.8)}),
    Operation("elastic", elastic, {"reach": pixels(10, 14), "lumps": pixels(35, 50)}),
    Operation(
        "polar",
        polar,
        {"twist": signed(between(30, 60)), "wave": between(0.04, 0.1), "waves": randint(2, 5)},
    ),
    Operation("jigsaw", jigsaw, {"tiles": randint(10, 10)}, smallest=64),
)
