"""Geometric operations of RandAugment: shear, translate, rotate, cutout.

A warp copies each output pixel from the nearest source pixel and fills the outside with black. The
source index depends only on the matrix and the image size. Images with the same matrix share one
index, and a single `gather` warps the whole batch.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from peerdg.augment.operations import Strength, portions
from peerdg.augment.protocol import Images

CUTOUT_COLOR = (125, 123, 114)  # ImageNet's mean color, as in the published code
_MAX_FLOAT32_INTEGER = 2**24


class Warp:
    """Warp each image with its own affine map.

    On single images, the result is bitwise identical to torchvision's `affine` or `rotate`.

    Args:
        matrix: Function from (strength, height, width) to matrices [b, 2, 3] that map output to
            source coordinates, with the center at (0, 0).
    """

    def __init__(self, matrix: Callable[[Strength, int, int], Float64[Tensor, "b 2 3"]]) -> None:
        self.matrix = matrix

    def __call__(self, images: Images, strength: Strength) -> Images:
        height, width = images.shape[-2:]
        index = sources(self.matrix(strength, height, width), height, width)
        numbers = torch.arange(len(images), device=images.device)
        images = images.contiguous()
        return move_pixels(images, index, numbers, torch.empty_like(images))


def sources(
    matrices: Float64[Tensor, "k 2 3"], height: int, width: int
) -> Int64[Tensor, "k pixels"]:
    """Return the source of each output pixel: 1 + the source pixel's index, or 0 if outside.

    Repeats torchvision's steps so that positions between two pixels round the same way: a matrix in
    double precision, converted to float32, times the same grid, passed to `grid_sample`. The
    sampled image holds pixel indices, so any number of images can share the result. As the indices
    are float32, images must have fewer than 2**24 pixels (4096 x 4096).
    """
    if height * width >= _MAX_FLOAT32_INTEGER:
        raise ValueError(f"Images of {height} x {width} pixels are too large to warp.")
    grid = sampling_grid(matrices.float(), height, width)
    count, device = len(matrices), matrices.device
    numbers = torch.arange(1.0, height * width + 1.0, device=device).view(1, 1, height, width)
    numbers = numbers.expand(count, -1, -1, -1)
    source = grid_sample(numbers, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return source.view(count, height * width).long()


def sampling_grid(
    matrices: Float[Tensor, "k 2 3"], height: int, width: int
) -> Float[Tensor, "k h w 2"]:
    """Return a grid for `grid_sample` with `align_corners=False`.

    The grid is differentiable in `matrices`, which map output to source with center (0, 0).
    """
    rows, columns = (_centered(size, matrices) for size in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    points = torch.stack((x, y, torch.ones_like(x)), dim=-1).view(1, height * width, 3)

    half_size = matrices.new_tensor([0.5 * width, 0.5 * height])
    to_unit_square = matrices.transpose(1, 2) / half_size  # (k, 3, 2)
    grid = points.expand(len(matrices), -1, -1).bmm(to_unit_square)
    return grid.view(-1, height, width, 2)


def _centered(size: int, like: Tensor) -> Float[Tensor, " size"]:
    """Return the pixel coordinates along one axis, with 0 at the center."""
    last = (size - 1.0) * 0.5
    return torch.linspace(-last, last, steps=size, dtype=like.dtype, device=like.device)


def move_pixels(
    images: Images, sources: Int64[Tensor, "k pixels"], numbers: Int64[Tensor, " b"], out: Images
) -> Images:
    """Rearrange the pixels of image i according to row `numbers[i]` of `sources`."""
    for pixels, number, moved in portions(images.flatten(2), numbers, out.flatten(2)):
        # Prepend a black pixel, which index 0 refers to.
        numbered = pad(pixels, (1, 0))
        index = sources.index_select(0, number).unsqueeze(1)
        torch.gather(numbered, 2, index.expand(pixels.shape), out=moved)
    return out


def row_starts(
    source: Int64[Tensor, "k pixels"], height: int, width: int
) -> tuple[Int64[Tensor, "k h"], Bool[Tensor, " k"]]:
    """Return where each output row starts, and which maps only shift rows.

    Row starts fully describe translations and horizontal shears. `move_rows`, which defines the
    memory layout, copies whole rows several times faster than single pixels.
    """
    source = source.view(-1, height, width)
    outside = source == 0
    column = torch.arange(width, device=source.device)
    row = ((source - 1) // width).masked_fill_(outside, 0).amax(dim=2, keepdim=True)
    shift = ((source - 1) % width - column).masked_fill_(outside, -width)
    shift = shift.amax(dim=2, keepdim=True)
    taken = column + shift
    inside = (taken >= 0) & (taken < width)
    faithful = source == torch.where(inside, row * width + taken + 1, 0)
    return (width + row * (2 * width) + shift).squeeze(2), faithful.flatten(1).all(dim=1)


def move_rows(
    images: Images, starts: Int64[Tensor, "k h"], numbers: Int64[Tensor, " b"], out: Images
) -> Images:
    """Shift the rows of image i according to row `numbers[i]` of `starts`."""
    height, width = images.shape[-2:]
    for part, number, moved in portions(images, numbers, out):
        # Separate the rows by black gaps, which stand for the pixels outside the image.
        planes, size = part.flatten(0, 1), height * 2 * width
        spaced = planes.new_zeros(width + planes.shape[0] * size)
        spaced[width:].view(-1, height, 2 * width)[..., :width] = planes
        first = torch.arange(0, planes.shape[0] * size, size, device=part.device).view(-1, 3, 1)
        index = (starts.index_select(0, number).unsqueeze(1) + first).flatten()
        windows = spaced.unfold(0, width, 1)  # one window per start pixel
        torch.index_select(windows, 0, index, out=moved.view(-1, width))
    return out


def _matrix(rows: list[list[Tensor]]) -> Float64[Tensor, "b 2 3"]:
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


@Warp
def shear_x(strength: Tensor, height: int, width: int) -> Tensor:
    """Shift each row by `strength` times its distance from the top."""
    # torchvision takes the angle in degrees. Repeat that, because it can change the last bit.
    tangent = torch.tan(torch.deg2rad(torch.rad2deg(torch.atan(strength))))
    one, zero = torch.ones_like(tangent), torch.zeros_like(tangent)
    return _matrix([[one, tangent, tangent * (0.5 * height)], [zero, one, zero]])


@Warp
def shear_y(strength: Tensor, height: int, width: int) -> Tensor:
    """Shift each column by `strength` times its distance from the left."""
    angle = torch.deg2rad(torch.rad2deg(torch.atan(strength)))
    tangent = torch.sin(angle) / torch.cos(angle)
    one, zero = torch.ones_like(tangent), torch.zeros_like(tangent)
    # Shift to the center and back as torchvision does, because it affects rounding.
    shift = (-0.5 * height - tangent * (-0.5 * width)) - (-0.5 * height)
    return _matrix([[one, zero, zero], [tangent, one, shift]])


@Warp
def translate_x(strength: Tensor, height: int, width: int) -> Tensor:
    """Move the image right by `int(strength)` pixels."""
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _matrix([[one, zero, -strength.trunc()], [zero, one, zero]])


@Warp
def translate_y(strength: Tensor, height: int, width: int) -> Tensor:
    """Move the image down by `int(strength)` pixels."""
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _matrix([[one, zero, zero], [zero, one, -strength.trunc()]])


@Warp
def rotate(strength: Tensor, height: int, width: int) -> Tensor:
    """Rotate the image about its center by `strength` degrees, counterclockwise."""
    angle = torch.deg2rad(-torch.remainder(strength, 360.0))
    sine, cosine, zero = torch.sin(angle), torch.cos(angle), torch.zeros_like(angle)
    return _matrix([[cosine, sine, zero], [-sine, cosine, zero]])


def cutout(images: Images, strength: Strength, centers: Float64[Tensor, "b 2"]) -> Images:
    """Cover a square of `strength` x `strength` pixels with gray-brown.

    `centers` are (x, y) in fractions of width and height. As in the published code, squares that
    start left of or above the image are moved inside. At the right and bottom they are cut off.
    The published square is one pixel larger, because PIL rectangles include their right and lower
    edges.
    """
    height, width = images.shape[-2:]
    rows = _covered(strength, centers[:, 1], height).unsqueeze(2)
    columns = _covered(strength, centers[:, 0], width).unsqueeze(1)
    color = torch.tensor(CUTOUT_COLOR, dtype=torch.uint8, device=images.device).view(3, 1, 1)
    return torch.where((rows & columns).unsqueeze(1), color, images)


def _covered(strength: Tensor, center: Tensor, size: int) -> Tensor:
    """Return a mask (b, size) of the pixels that the square covers along one axis."""
    start = (center * size - strength / 2).clamp(min=0).floor().unsqueeze(1)
    pixel = torch.arange(size, device=strength.device)
    return (pixel >= start) & (pixel < start + strength.unsqueeze(1))
