"""Define distortion operations and their ranges, with shared filters, warps and random fields.

A picture is a float32 array of shape [h, w, 3] with values 0..255.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

Picture = NDArray[np.floating[Any]]
Plane = NDArray[np.floating[Any]]  # one channel of a picture: [h, w]
Random = np.random.Generator


def to_pil(image: Picture) -> Image.Image:
    """Convert a picture to an 8-bit Pillow image."""
    return Image.fromarray(np.rint(np.clip(image, 0, 255)).astype(np.uint8))


def from_pil(image: Image.Image) -> Picture:
    """Convert a Pillow image to a picture."""
    return np.asarray(image.convert("RGB"), dtype=np.float32)


def luma(image: Picture) -> Plane:
    """Compute the perceived brightness (Rec. 601)."""
    return image @ np.array([0.299, 0.587, 0.114], dtype=np.float32)


def blend(image: Picture, other: Picture | float, share: Picture | float) -> Picture:
    """Mix `other` into the image with weight `share`."""
    return np.asarray(image * (1 - share) + other * share, dtype=np.float32)


def to_hsv(image: Picture) -> Picture:
    """Convert to hue, saturation and value, each 0..255."""
    return np.array(to_pil(image).convert("HSV"), dtype=np.float32)


def from_hsv(hsv: Picture) -> Picture:
    """Convert from hue, saturation and value. The hue wraps around."""
    hue = np.mod(hsv[..., :1], 256)
    rest = np.clip(hsv[..., 1:], 0, 255)
    eight_bit = np.concatenate([hue, rest], axis=2).astype(np.uint8)
    return from_pil(Image.fromarray(eight_bit, mode="HSV"))


def convolve(image: Picture, kernel: Plane) -> Picture:
    """Correlate every channel with `kernel`, with replicated borders."""
    rows, columns = kernel.shape
    around = (columns // 2, (columns - 1) // 2, rows // 2, (rows - 1) // 2)
    padded = F.pad(_planes(image), around, mode="replicate")
    weight = torch.from_numpy(np.ascontiguousarray(kernel, dtype=np.float32))[None, None]
    return _picture(F.conv2d(padded.transpose(0, 1), weight).transpose(0, 1))


def smooth(image: Picture, sigma: float) -> Picture:
    """Apply a Gaussian blur."""
    radius = max(1, round(3 * sigma))
    line = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    line = (line / line.sum()).astype(np.float32)
    return convolve(convolve(image, line[None]), line[:, None])


def smooth_plane(plane: Plane, sigma: float) -> Plane:
    """Apply a Gaussian blur to one channel."""
    return smooth(plane[..., None], sigma)[..., 0]


def coordinates(height: int, width: int) -> tuple[Plane, Plane]:
    """Return the row and column of each pixel, relative to the image center."""
    y = np.arange(height, dtype=np.float32) - (height - 1) / 2
    x = np.arange(width, dtype=np.float32) - (width - 1) / 2
    rows, columns = np.meshgrid(y, x, indexing="ij")
    return rows, columns


def sample(image: Picture, y: Plane, x: Plane, *, outside: str = "zeros") -> Picture:
    """Sample the image bilinearly at positions (y, x) relative to its center.

    Outside, the image is black (`"zeros"`) or mirrored (`"reflection"`).
    """
    height, width = image.shape[:2]
    grid = np.stack([2 * x / width, 2 * y / height], axis=-1).astype(np.float32)
    planes = F.grid_sample(
        _planes(image), torch.from_numpy(grid)[None], padding_mode=outside, align_corners=False
    )
    return _picture(planes)


def blocks(rng: Random, height: int, width: int, *, side: float) -> Plane:
    """Draw uniform random numbers 0..1, constant within squares of `side` pixels."""
    rows = (np.arange(height) / max(side, 1)).astype(int)
    columns = (np.arange(width) / max(side, 1)).astype(int)
    grid: Plane = rng.random((rows[-1] + 1, columns[-1] + 1), dtype=np.float32)
    return np.asarray(grid[rows[:, None], columns[None]])


def field(rng: Random, height: int, width: int, *, coarsest: float, octaves: int = 4) -> Plane:
    """Draw a smooth random field with values 0..1, like clouds.

    The largest structures are `coarsest` pixels wide. Each further octave has half the size and
    half the weight of the previous one.
    """
    total: Plane = np.zeros((height, width), dtype=np.float32)
    for octave in range(octaves):
        size = max(coarsest / 2**octave, 1.0)
        shape = (2 + int(height / size), 2 + int(width / size))
        grid = rng.random(shape, dtype=np.float32)
        total += enlarge(grid, height, width, smooth=True) / 2**octave
    total -= total.min()
    return total / max(float(total.max()), 1e-6)


def enlarge(grid: Plane, height: int, width: int, *, smooth: bool) -> Plane:
    """Interpolate grid values over the image: bicubic if `smooth`, otherwise bilinear."""
    plane = torch.from_numpy(grid.astype(np.float32))[None, None]
    mode = "bicubic" if smooth else "bilinear"
    return F.interpolate(plane, (height, width), mode=mode, align_corners=True)[0, 0].numpy()


def _planes(image: Picture) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]


def _picture(planes: Tensor) -> Picture:
    return planes[0].permute(1, 2, 0).contiguous().numpy()


REFERENCE_SIDE = 227  # lengths in the tables refer to images with this side
UNCHANGED = 5.0  # out of 255 levels. A smaller mean change counts as no effect

# Draws a strength, given a generator and the image side relative to `REFERENCE_SIDE`.
Draw = Callable[[Random, float], float]


def between(low: float, high: float) -> Draw:
    """Draw a number uniformly between `low` and `high`."""
    return lambda rng, unit: float(rng.uniform(low, high))


def randint(low: int, high: int) -> Draw:
    """Draw an integer from `low` to `high`, both included."""
    return lambda rng, unit: int(rng.integers(low, high + 1))


def pixels(low: float, high: float, *, at_least: float = 0.0) -> Draw:
    """Draw a length in pixels for the reference side, and scale it to the image."""
    return lambda rng, unit: max(at_least, float(rng.uniform(low, high)) * unit)


def either(*draws: Draw) -> Draw:
    """Draw from one of several ranges, which skip values without a visible effect."""
    return lambda rng, unit: draws[rng.integers(len(draws))](rng, unit)


def signed(draw: Draw) -> Draw:
    """Draw a value with a random sign."""
    return lambda rng, unit: draw(rng, unit) * (1 if rng.integers(2) else -1)


@dataclass(frozen=True)
class Operation:
    """One distortion of a family.

    `function` maps (picture, generator, strengths) to a picture of the same size. Values are
    clipped to 0..255.
    """

    name: str
    function: Callable[..., Picture]
    ranges: dict[str, Draw] = dataclasses.field(default_factory=dict)  # how to draw each strength
    smallest: int = 0  # minimum image side, below which nothing is recognizable

    def __call__(self, image: Picture, rng: Random) -> Picture:
        unit = min(image.shape[:2]) / REFERENCE_SIDE
        strengths = {name: draw(rng, unit) for name, draw in self.ranges.items()}
        result = self.function(image, rng, **strengths)
        return np.rint(np.clip(result, 0, 255)).astype(np.float32)


def distort(image: Picture, family: Sequence[Operation], rng: Random) -> Picture:
    """Apply one operation of the family, drawn uniformly.

    An operation may have no effect, such as a hue shift on a gray image. Then the others are tried
    in random order. If none has an effect, the result with the largest change is returned.
    """
    side = min(image.shape[:2])
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
