"""An operation with its ranges, and how an image draws one operation of its family."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from peerdg.crafted.pixels import Picture, Random, size_of

REFERENCE_SIDE = 227  # lengths in the tables are pixels of an image of this side
UNCHANGED = 5.0  # levels of 255: below this mean difference an image counts as not distorted

Draw = Callable[[Random, float], float]
"""From (generator, pixels of this image per pixel of the reference) to a strength."""


def between(low: float, high: float) -> Draw:
    """Uniform."""
    return lambda rng, unit: float(rng.uniform(low, high))


def whole(low: int, high: int) -> Draw:
    """A whole number, both ends included."""
    return lambda rng, unit: int(rng.integers(low, high + 1))


def pixels(low: float, high: float, *, at_least: float = 0.0) -> Draw:
    """A length in pixels of the reference side, scaled to the image."""
    return lambda rng, unit: max(at_least, float(rng.uniform(low, high)) * unit)


def either(*draws: Draw) -> Draw:
    """One of several ranges: how a strength stays away from the middle that changes nothing."""
    return lambda rng, unit: draws[rng.integers(len(draws))](rng, unit)


def signed(draw: Draw) -> Draw:
    """Positive or negative."""
    return lambda rng, unit: draw(rng, unit) * (1 if rng.integers(2) else -1)


@dataclass(frozen=True)
class Operation:
    """One row of a family's table.

    Args:
        name: What tables call it.
        function: From (picture, generator, strengths) to a picture of the same size; values
            outside 0..255 are cut.
        ranges: From where each strength is drawn.
        smallest: Images with a smaller side do not draw it; it would leave nothing to see.
    """

    name: str
    function: Callable[..., Picture]
    ranges: dict[str, Draw] = field(default_factory=dict)
    smallest: int = 0

    def __call__(self, image: Picture, rng: Random) -> Picture:
        """Distort one image with strengths drawn from `rng`."""
        unit = min(size_of(image)) / REFERENCE_SIDE
        strengths = {name: draw(rng, unit) for name, draw in self.ranges.items()}
        result = self.function(image, rng, **strengths)
        return np.rint(np.clip(result, 0, 255)).astype(np.float32)


def distort(image: Picture, family: Sequence[Operation], rng: Random) -> Picture:
    """Apply one operation of the family, drawn uniformly.

    One that leaves this image as it is (the hue of a grey image, the gamma of black on white) is
    no distortion, so the next one is tried, in random order; if all fail, the strongest counts.
    """
    side = min(size_of(image))
    usable = [operation for operation in family if side >= operation.smallest]
    best, most = image, -1.0
    for number in rng.permutation(len(usable)).tolist():
        result: Picture = usable[number](image, rng)
        change = float(np.abs(result - image).mean())
        if change >= UNCHANGED:
            return result
        if change > most:
            best, most = result, change
    return best
