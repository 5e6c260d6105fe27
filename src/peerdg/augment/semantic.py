"""Differentiable operations on float images in [0, 1], with learnable parameters per image.

The twelve semantics transformations of AdvST, with ranges from its released code: Zheng et al.,
"AdvST: revisiting data augmentations for single domain generalization", AAAI 2024,
https://arxiv.org/abs/2312.12720. Warps interpolate bilinearly and fill with black.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from peerdg.augment.geometry import rotate, sampling_grid
from peerdg.augment.operations import equalize, posterize

Images = Float[Tensor, "b 3 h w"]
Numbers = Float[Tensor, "b n"]
T = TypeVar("T")

HOLES = 8
HOLE_SHARE = 0.2  # hole side / image side (released code: 16 of 84 pixels)
LUMA = (0.2989, 0.587, 0.114)
_MIN_AREA = 1e-3  # smallest area of a sheared pixel


@dataclass(frozen=True)
class Transformation:
    """A differentiable operation and the range of its parameters.

    Parameters are drawn from this range. `apply` takes images, parameters `[b, parameters]` and
    random numbers `[b, drawn]` in [0, 1), and returns images, which may leave [0, 1].
    """

    name: str
    apply: Callable[[Images, Numbers, Numbers], Images]
    low: float = 0.0
    high: float = 1.0
    parameters: int = 0  # learnable numbers per image
    drawn: int = 0  # random numbers per image, not learned
    only_first: bool = False  # whether it may only be the first in a chain
    clamped: bool = True  # whether parameters are clamped to the range before use

    def __call__(self, images: Images, parameters: Numbers, drawn: Numbers) -> Images:
        if self.clamped:
            parameters = parameters.clamp(self.low, self.high)
        return self.apply(images, parameters, drawn).clamp(0, 1)


@dataclass(frozen=True)
class Chain:
    """A sequence of transformations with separate parameters for each image."""

    transformations: Sequence[Transformation]
    parameters: Sequence[Numbers]  # one [b, parameters] tensor per transformation
    drawn: Sequence[Numbers]  # one [b, drawn] tensor per transformation

    @classmethod
    def draw(
        cls,
        transformations: Sequence[Transformation],
        images: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | None = None,
    ) -> "Chain":
        """Draw parameters (uniformly from their ranges) and random numbers, on the CPU."""
        parameters, drawn = [], []
        for each in transformations:
            unit = torch.rand(images, each.parameters, generator=generator, device="cpu")
            parameters.append((each.low + (each.high - each.low) * unit).to(device))
            unit = torch.rand(images, each.drawn, generator=generator, device="cpu")
            drawn.append(unit.to(device))
        return cls(transformations, parameters, drawn)

    @property
    def learnable(self) -> list[Tensor]:
        """The parameter tensors that are not empty."""
        return [parameters for parameters in self.parameters if parameters.numel()]

    def __call__(self, images: Images) -> Images:
        """Transform images. Row i of the parameters is for image i."""
        steps = zip(self.transformations, self.parameters, self.drawn, strict=True)
        for transformation, parameters, drawn in steps:
            images = transformation(images, parameters, drawn)
        return images


class Chains:
    """All ordered chains of at most `longest` distinct transformations."""

    def __init__(self, transformations: Sequence[Transformation], longest: int = 3) -> None:
        self.by_length = [
            [
                chain
                for chain in permutations(transformations, length)
                if not any(each.only_first for each in chain[1:])
            ]
            for length in range(1, longest + 1)
        ]

    def draw(
        self,
        images: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | None = None,
    ) -> Chain:
        """Draw a length, a chain of that length, and its parameters, all uniformly."""
        chosen = _choice(_choice(self.by_length, generator), generator)
        return Chain.draw(chosen, images, generator=generator, device=device)


def semantic_transformations(
    *, hole_pixels: int | None = None, mean_contrast: bool = False
) -> tuple[Transformation, ...]:
    """Return AdvST's twelve transformations.

    Args:
        hole_pixels: Side of cutout's holes. Defaults to a fifth of the image side. The released
            code always uses 16, which leaves little of a 32-pixel digit.
        mean_contrast: Whether contrast scales the distance from the mean gray, as in PIL. By
            default, it multiplies the pixels, as in the library that the released code uses.
    """
    return (
        Transformation("hsv", _shift_hsv, -1.0, 1.0, parameters=3, only_first=True, clamped=False),
        Transformation("rotate", _rotate, 0.01, 1.0, parameters=1),
        Transformation("translate", _translate, -1.0, 1.0, parameters=2),
        Transformation("invert", _invert, 0.5, 1.0, parameters=1),
        Transformation("shear", _shear, -0.3, 0.3, parameters=2, clamped=False),
        Transformation(
            "contrast", _contrast if mean_contrast else _multiply, 0.1, 1.9, parameters=1
        ),
        Transformation("sharpness", _sharpen, 0.0, 1.0, parameters=1),
        Transformation("solarize-add", _solarize_add, -0.5, 0.5, parameters=1),
        Transformation("scale", _scale, 0.5, 2.0, parameters=1),
        Transformation("equalize", _equalize),
        Transformation("posterize", _posterize, drawn=1),
        Transformation(
            "cutout", partial(_cut_out, hole_pixels=hole_pixels), parameters=3, drawn=2 * HOLES
        ),
    )


def _choice(options: Sequence[T], generator: torch.Generator | None) -> T:
    return options[int(torch.randint(len(options), (), generator=generator, device="cpu"))]


def _shift_hsv(images: Images, shift: Numbers, drawn: Numbers) -> Images:
    """Shift hue (in radians), saturation and value.

    As in the released code, the saturation is not clipped, only the resulting image. A negative
    saturation gives the opposite hue, even for gray pixels.
    """
    hue, saturation, value = _to_hsv(images)
    d_hue, d_saturation, d_value = shift[:, :, None, None].unbind(dim=1)  # (b, 1, 1) each
    return _to_rgb(hue + d_hue * (3 / math.pi), saturation + d_saturation, value + d_value)


def _to_hsv(images: Images) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue in sixths of a turn (0 for gray), saturation and value, (b, h, w) each."""
    red, green, blue = images.unbind(dim=1)
    value, lightest = images.max(dim=1)
    chroma = value - images.amin(dim=1)
    safe = torch.where(chroma > 0, chroma, 1)
    hues = ((green - blue) / safe % 6, (blue - red) / safe + 2, (red - green) / safe + 4)
    hue = torch.stack(hues, dim=1).gather(1, lightest.unsqueeze(1)).squeeze(1)
    hue = torch.where(chroma > 0, hue, 0)
    return hue, chroma / torch.where(value > 0, value, 1), value


def _to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Images:
    """Compute V - V S max(0, min(k, 4 - k, 1)), k = (n + hue) mod 6, n = 5, 3, 1 for R, G, B."""
    channels = []
    for n in (5, 3, 1):
        k = (n + hue) % 6
        channels.append(value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1)


def _rotate(images: Images, turn: Numbers, drawn: Numbers) -> Images:
    """Rotate counterclockwise about the center by `turn` times 360 degrees."""
    height, width = images.shape[-2:]
    return _warp(images, rotate.matrix(360 * turn.squeeze(1), height, width))


def _translate(images: Images, shift: Numbers, drawn: Numbers) -> Images:
    """Move right and down by `shift` tenths of the image side."""
    height, width = images.shape[-2:]
    pixels = 0.1 * shift * shift.new_tensor([width, height])
    one = torch.eye(2, dtype=shift.dtype, device=shift.device).expand(len(shift), 2, 2)
    return _warp(images, torch.cat((one, -pixels.unsqueeze(2)), dim=2))


def _shear(images: Images, tangents: Numbers, drawn: Numbers) -> Images:
    """Move each pixel right by t_x times its row and down by t_y times its column."""
    height, width = images.shape[-2:]
    t_x, t_y = tangents.unbind(dim=1)
    one = torch.ones_like(t_x)
    back = torch.stack((one, -t_x, -t_y, one), dim=1).view(-1, 2, 2)
    area = 1 - t_x * t_y  # 0 would flatten the image to a line
    area = torch.where(area.abs() < _MIN_AREA, area.new_full((), _MIN_AREA), area)
    back = back / area.view(-1, 1, 1)
    # The first pixel stays in place. These are its coordinates relative to the center.
    fixed = tangents.new_tensor([[(1 - width) / 2], [(1 - height) / 2]])
    return _warp(images, torch.cat((back, fixed - back @ fixed), dim=2))


def _scale(images: Images, factor: Numbers, drawn: Numbers) -> Images:
    """Scale about the center by `factor`."""
    back = torch.diag_embed((1 / factor).expand(-1, 2))
    return _warp(images, F.pad(back, (0, 1)))


def _warp(images: Images, matrices: Float[Tensor, "b 2 3"]) -> Images:
    grid = sampling_grid(matrices, *images.shape[-2:])
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def _invert(images: Images, white: Numbers, drawn: Numbers) -> Images:
    """Subtract each value from `white`."""
    return white[:, :, None, None] - images


def _multiply(images: Images, factor: Numbers, drawn: Numbers) -> Images:
    """Multiply each value by `factor`."""
    return factor[:, :, None, None] * images


def _contrast(images: Images, factor: Numbers, drawn: Numbers) -> Images:
    """Scale the distance from the mean gray of the image by `factor`."""
    luma = (images * images.new_tensor(LUMA).view(3, 1, 1)).sum(dim=1, keepdim=True)
    mean = luma.mean(dim=(2, 3), keepdim=True)
    return mean + factor[:, :, None, None] * (images - mean)


def _sharpen(images: Images, factor: Numbers, drawn: Numbers) -> Images:
    """Interpolate from the smoothed image (0) to the original (1). As in PIL, skip the border."""
    if min(images.shape[-2:]) <= 2:
        return images
    inside = images[:, :, 1:-1, 1:-1]
    smooth = (9 * F.avg_pool2d(images, 3, stride=1) + 4 * inside) / 13
    return images + (1 - factor[:, :, None, None]) * F.pad(smooth - inside, (1, 1, 1, 1))


def _solarize_add(images: Images, added: Numbers, drawn: Numbers) -> Images:
    """Add `added` to each value, then invert values of at least 0.5."""
    images = (images + added[:, :, None, None]).clamp(0, 1)
    return torch.where(images < 0.5, images, 1 - images)


def _equalize(images: Images, parameters: Numbers, drawn: Numbers) -> Images:
    """Equalize the histogram of each channel as PIL does, with a straight-through gradient."""
    return _straight_through(images, equalize(_bytes(images), drawn))


def _posterize(images: Images, parameters: Numbers, drawn: Numbers) -> Images:
    """Keep the 1 to 8 most significant bits, with a straight-through gradient."""
    # The released code draws from 0 to 8. With 0 bits every image would be black.
    bits = 1 + (8 * drawn.squeeze(1).double()).floor()
    return _straight_through(images, posterize(_bytes(images), bits))


def _bytes(images: Images) -> UInt8[Tensor, "b 3 h w"]:
    return images.detach().mul(255).round().to(torch.uint8)


def _straight_through(images: Images, changed: UInt8[Tensor, "b 3 h w"]) -> Images:
    return images + (changed.to(images.dtype) / 255 - images).detach()


def _cut_out(images: Images, fill: Numbers, drawn: Numbers, *, hole_pixels: int | None) -> Images:
    """Fill eight square holes with one color."""
    height, width = images.shape[-2:]
    shorter = min(height, width)
    side = min(hole_pixels or max(1, int(HOLE_SHARE * shorter)), shorter)
    y, x = drawn.view(-1, 2, HOLES, 1).unbind(dim=1)  # (b, HOLES, 1) each
    rows, columns = _covered(y, height, side), _covered(x, width, side)
    holes = (rows.unsqueeze(3) & columns.unsqueeze(2)).any(dim=1, keepdim=True)  # (b, 1, h, w)
    return torch.where(holes, fill[:, :, None, None], images)


def _covered(place: Tensor, size: int, side: int) -> Tensor:
    """Return a mask of the pixels that each hole covers along one axis. `place` is in [0, 1)."""
    start = (place * (size - side + 1)).floor()
    pixel = torch.arange(size, device=place.device)
    return (pixel >= start) & (pixel < start + side)
