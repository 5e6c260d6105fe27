"""Weather: snow on the ground, clouds, fog, falling snow, rain."""

import numpy as np

from peerdg.crafted.filters import motion, odd
from peerdg.crafted.operation import Operation, between, either, pixels
from peerdg.crafted.pixels import Picture, Random, blend, field, luma, size_of, smooth


def snow_cover(image: Picture, rng: Random, *, threshold: float, gain: float) -> Picture:
    """What is bright turns white, as if snow lay on it; in places only."""
    height, width = size_of(image)
    patches = 60 * field(rng, height, width, coarsest=width / 2) - 30
    light = luma(image)
    white = np.clip((light + patches - threshold) / 40, 0, 1)[..., None]
    return blend(image, np.minimum(255, light * gain + 60)[..., None], white)


def clouds(image: Picture, rng: Random, *, density: float, lumps: float) -> Picture:
    """White lumps with clear gaps."""
    height, width = size_of(image)
    cover = np.clip(2.5 * field(rng, height, width, coarsest=lumps) - 0.75, 0, 1)
    return blend(image, 240, density * cover[..., None])


def fog(image: Picture, rng: Random, *, density: float, lumps: float) -> Picture:
    """Grey nearly everywhere."""
    height, width = size_of(image)
    cover = 0.75 + 0.25 * field(rng, height, width, coarsest=lumps, octaves=2)
    return blend(image, 205, density * cover[..., None])


def snowflakes(
    image: Picture, rng: Random, *, cover: float, size: float, length: float, angle: float
) -> Picture:
    """White flakes, drawn out a little as they fall."""
    return _fall(image, rng, 255.0, cover=cover, size=size, length=length, angle=angle)


def rain(
    image: Picture, rng: Random, *, cover: float, size: float, length: float, angle: float
) -> Picture:
    """Long grey streaks over a dimmed image."""
    wet = 0.75 * image
    return _fall(wet, rng, 210.0, cover=cover, size=size, length=length, angle=angle)


def _fall(
    image: Picture,
    rng: Random,
    color: float,
    *,
    cover: float,
    size: float,
    length: float,
    angle: float,
) -> Picture:
    """Drops or flakes over a share `cover` of the image, drawn out along `angle`."""
    height, width = size_of(image)
    sigma = max(size / 2, 0.35)
    footprint = (1 + 2 * sigma) * (odd(length) + 2 * sigma)
    count = max(3, round(cover * height * width / footprint))
    seeds = np.zeros((height, width, 1), dtype=np.float32)
    seeds[rng.integers(height, size=count), rng.integers(width, size=count)] = rng.uniform(
        0.6, 1, (count, 1)
    )
    streaks = motion(smooth(seeds, sigma), rng, length=length, angle=angle)
    peak = max(float(np.quantile(streaks[streaks > 0], 0.9)), 1e-6)
    return blend(image, color, np.clip(streaks / peak, 0, 1))


_FALLING = either(between(60, 80), between(100, 120))

WEATHER = (
    Operation("snow cover", snow_cover, {"threshold": between(90, 130), "gain": between(1.5, 2.5)}),
    Operation("clouds", clouds, {"density": between(0.6, 0.85), "lumps": pixels(60, 120)}),
    Operation("fog", fog, {"density": between(0.6, 0.8), "lumps": pixels(80, 160)}),
    Operation(
        "snowflakes",
        snowflakes,
        {
            "cover": between(0.15, 0.25),
            "size": pixels(3, 6),
            "length": pixels(4, 10),
            "angle": _FALLING,
        },
    ),
    Operation(
        "rain",
        rain,
        {
            "cover": between(0.15, 0.25),
            "size": pixels(1, 2),
            "length": pixels(20, 35),
            "angle": _FALLING,
        },
    ),
)
