"""A cartoon: flat, strong colours with dark lines between them."""

import numpy as np

from peerdg.evaluate.crafted.blur import mean_shift
from peerdg.evaluate.crafted.operation import Operation, between, pixels
from peerdg.evaluate.crafted.pixels import (
    Picture,
    Random,
    from_hsv,
    luma,
    smooth_plane,
    to_hsv,
)


def cartoon(
    image: Picture,
    rng: Random,
    *,
    radius: float,
    color: float,
    saturation: float,
    line: float,
    threshold: float,
) -> Picture:
    """Flatten the areas, strengthen their colours, draw lines where brightness falls.

    Args:
        image: The picture.
        rng: Not used: all that is random are the strengths.
        radius: Size in pixels of the details that vanish.
        color: Difference of colour below which areas merge.
        saturation: Factor of the saturation.
        line: Width in pixels of the lines.
        threshold: How much darker than its surroundings a pixel must be to become a line.
    """
    flat = mean_shift(image, rng, radius=radius, color=color)
    hsv = to_hsv(np.rint(flat / 32) * 32)
    painted = from_hsv(hsv * np.array([1, saturation, 1], dtype=np.float32))
    light = luma(flat)
    darker = smooth_plane(light, 2 * line) - smooth_plane(light, line)
    ink = np.clip(darker / threshold - 1, 0, 1)[..., None]
    return painted * (1 - ink)


FAMILY = (
    Operation(
        "cartoon",
        cartoon,
        {
            "radius": pixels(5, 8),
            "color": between(40, 70),
            "saturation": between(1.5, 2.5),
            "line": pixels(1.5, 2.5, at_least=0.5),
            "threshold": between(2, 4),
        },
    ),
)
