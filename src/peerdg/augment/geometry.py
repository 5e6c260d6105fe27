"""Operations that move pixels or cover them: shear, translate, rotate, cutout.

A warp reads every output pixel from one source pixel (nearest neighbour, black outside). Which
one depends on the matrix and the size of the image only, so images that share a matrix share one
index, and moving the pixels is a single `gather` for the whole batch.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from peerdg.augment.operations import Strength, portions
from peerdg.augment.protocol import Images

CUTOUT_COLOR = (125, 123, 114)  # the mean color of ImageNet, as in the published cutout
_MAX_FLOAT32_INTEGER = 2**24


class Warp:
    """An operation that moves the pixels of each image by an affine map of its own.

    Equal, bit for bit, to torchvision's `affine` or `rotate` on each image alone.

    Args:
        matrix: From (strength, height, width) to the map from output to source coordinates,
            [b, 2, 3], with the center at (0, 0).
    """

    def __init__(self, matrix: Callable[[Strength, int, int], Float64[Tensor, "b 2 3"]]) -> None:
        self.matrix = matrix

    def __call__(self, images: Images, strength: Strength) -> Images:
        height, width = images.shape[-2:]
        own = sources(self.matrix(strength, height, width), height, width)
        numbers = torch.arange(len(images), device=images.device)
        images = images.contiguous()
        return move_pixels(images, own, numbers, torch.empty_like(images))


def sources(
    matrices: Float64[Tensor, "k 2 3"], height: int, width: int
) -> Int64[Tensor, "k pixels"]:
    """Where each output pixel comes from: 1 + the number of its source pixel, 0 for outside.

    The rounding at pixel borders is torchvision's because the steps are: the matrix in double
    precision, then float32, the same product with the same grid, and `grid_sample` to round. It
    samples an image of pixel numbers here, so the result serves any number of images, as long as
    float32 has as many consecutive integers as there are pixels (4096 x 4096).
    """
    if height * width >= _MAX_FLOAT32_INTEGER:
        raise ValueError(f"Images of {height} x {width} pixels are too large to be warped.")
    grid = sampling_grid(matrices.float(), height, width)
    count, device = len(matrices), matrices.device
    numbers = torch.arange(1.0, height * width + 1.0, device=device).view(1, 1, height, width)
    numbers = numbers.expand(count, -1, -1, -1)
    source = grid_sample(numbers, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return source.view(count, height * width).long()


def sampling_grid(
    matrices: Float[Tensor, "k 2 3"], height: int, width: int
) -> Float[Tensor, "k h w 2"]:
    """Where each output pixel comes from, as `grid_sample` without `align_corners` takes it.

    Differentiable in the matrices, which map output to source coordinates, centre (0, 0).
    """
    rows, columns = (_centred(size, matrices) for size in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    points = torch.stack((x, y, torch.ones_like(x)), dim=-1).view(1, height * width, 3)

    half_size = matrices.new_tensor([0.5 * width, 0.5 * height])
    to_unit_square = matrices.transpose(1, 2) / half_size  # (k, 3, 2)
    grid = points.expand(len(matrices), -1, -1).bmm(to_unit_square)
    return grid.view(-1, height, width, 2)


def _centred(size: int, like: Tensor) -> Float[Tensor, " size"]:
    """Coordinates of pixels along one axis, 0 in the middle."""
    last = (size - 1.0) * 0.5
    return torch.linspace(-last, last, steps=size, dtype=like.dtype, device=like.device)


def move_pixels(
    images: Images,
    sources: Int64[Tensor, "k pixels"],
    numbers: Int64[Tensor, " b"],
    out: Images,
) -> Images:
    """Fill each image from its own pixels: image i uses row `numbers[i]` of `sources`."""
    for pixels, number, moved in portions(images.flatten(2), numbers, out.flatten(2)):
        # Pixel number 0 is the black one that stands for everything outside the image.
        numbered = pad(pixels, (1, 0))
        index = sources.index_select(0, number).unsqueeze(1)
        torch.gather(numbered, 2, index.expand(pixels.shape), out=moved)
    return out


def row_starts(
    source: Int64[Tensor, "k pixels"], height: int, width: int
) -> tuple[Int64[Tensor, "k h"], Bool[Tensor, " k"]]:
    """Where each output row begins, for maps that only shift rows: translations, one shear.

    Rows are laid out as by `move_rows`, and copied several times as fast as single pixels. Also
    returned is for which of the maps the beginnings are a complete description.
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
    images: Images,
    starts: Int64[Tensor, "k h"],
    numbers: Int64[Tensor, " b"],
    out: Images,
) -> Images:
    """Fill each image from its own rows: image i uses row `numbers[i]` of `starts`."""
    height, width = images.shape[-2:]
    for own, number, moved in portions(images, numbers, out):
        # Between any two rows lies a black one, which is outside for both of them.
        planes, size = own.flatten(0, 1), height * 2 * width
        spaced = planes.new_zeros(width + planes.shape[0] * size)
        spaced[width:].view(-1, height, 2 * width)[..., :width] = planes
        first = torch.arange(0, planes.shape[0] * size, size, device=own.device).view(-1, 3, 1)
        index = (starts.index_select(0, number).unsqueeze(1) + first).flatten()
        windows = spaced.unfold(0, width, 1)  # one that begins at every pixel
        torch.index_select(windows, 0, index, out=moved.view(-1, width))
    return out


def _matrix(rows: list[list[Tensor]]) -> Float64[Tensor, "b 2 3"]:
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def _tangent(strength: Float64[Tensor, " b"]) -> Float64[Tensor, " b"]:
    # Not `strength` itself: torchvision takes the shear as an angle in degrees, and the way there
    # and back costs a last bit now and then.
    return torch.tan(torch.deg2rad(torch.rad2deg(torch.atan(strength))))


@Warp
def shear_x(strength: Tensor, height: int, width: int) -> Tensor:
    """Shift each row by `strength` times its distance from the top."""
    tangent = _tangent(strength)
    one, zero = torch.ones_like(tangent), torch.zeros_like(tangent)
    return _matrix([[one, tangent, tangent * (0.5 * height)], [zero, one, zero]])


@Warp
def shear_y(strength: Tensor, height: int, width: int) -> Tensor:
    """Shift each column by `strength` times its distance from the left."""
    angle = torch.deg2rad(torch.rad2deg(torch.atan(strength)))
    tangent = torch.sin(angle) / torch.cos(angle)
    one, zero = torch.ones_like(tangent), torch.zeros_like(tangent)
    # The detour through the centre is torchvision's; it rounds.
    shift = (-0.5 * height - tangent * (-0.5 * width)) - (-0.5 * height)
    return _matrix([[one, zero, zero], [tangent, one, shift]])


@Warp
def translate_x(strength: Tensor, height: int, width: int) -> Tensor:
    """Move the image to the right by the whole pixels of `strength`."""
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _matrix([[one, zero, -strength.trunc()], [zero, one, zero]])


@Warp
def translate_y(strength: Tensor, height: int, width: int) -> Tensor:
    """Move the image down by the whole pixels of `strength`."""
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _matrix([[one, zero, zero], [zero, one, -strength.trunc()]])


@Warp
def rotate(strength: Tensor, height: int, width: int) -> Tensor:
    """Turn the image about its centre by `strength` degrees, counter-clockwise."""
    angle = torch.deg2rad(-torch.remainder(strength, 360.0))
    sine, cosine, zero = torch.sin(angle), torch.cos(angle), torch.zeros_like(angle)
    return _matrix([[cosine, sine, zero], [-sine, cosine, zero]])


def cutout(images: Images, strength: Strength, centres: Float64[Tensor, "b 2"]) -> Images:
    """Cover a square of side `strength` pixels with gray-brown.

    `centres` are (x, y) in fractions of width and height. As in the published code, a square that
    would begin left of or above the image is moved inside; at the right and at the bottom it is cut
    off. (That code draws one pixel more, because the rectangles of PIL contain their right and
    lower edge.)
    """
    height, width = images.shape[-2:]
    rows = _covered(strength, centres[:, 1], height).unsqueeze(2)
    columns = _covered(strength, centres[:, 0], width).unsqueeze(1)
    color = torch.tensor(CUTOUT_COLOR, dtype=torch.uint8, device=images.device).view(3, 1, 1)
    return torch.where((rows & columns).unsqueeze(1), color, images)


def _covered(strength: Tensor, centre: Tensor, size: int) -> Tensor:
    """Along one axis, which pixels lie under the square: (b, size)."""
    start = (centre * size - strength / 2).clamp(min=0).floor().unsqueeze(1)
    pixel = torch.arange(size, device=strength.device)
    return (pixel >= start) & (pixel < start + strength.unsqueeze(1))
