"""RandAugment on a whole batch: every image draws its own operations.

Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space",
NeurIPS 2020, https://arxiv.org/abs/1909.13719. The two tables below say all there is to choose.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from peerdg.augment import operations as op
from peerdg.augment.curves import Curve, FixedCurve, look_up
from peerdg.augment.geometry import Warp, move_pixels, sources
from peerdg.config import did_you_mean
from peerdg.errors import ConfigError, DataError


@dataclass(frozen=True)
class Scale:
    """How strong an operation is: a magnitude out of `bins`, for images of one size."""

    magnitude: int
    bins: int
    height: int
    width: int
    absolute_pixels: bool

    def linear(self, weakest: float, strongest: float) -> float:
        """The grid of strengths of torchvision, in float32 as there."""
        return float(torch.linspace(weakest, strongest, self.bins, device="cpu")[self.magnitude])

    def part(self, strongest: float) -> float:
        """`strongest * magnitude / (bins - 1)`."""
        return strongest * self.magnitude / (self.bins - 1)

    def pixels(self, strongest: float, side: int) -> float:
        """A length meant for an image of 224 pixels, for an image of `side` pixels."""
        return self.part(strongest) * (1.0 if self.absolute_pixels else side / 224)


@dataclass(frozen=True)
class Operation:
    """One row of a table: what an operation is called, does, and how strong it is."""

    name: str
    function: Callable[..., Tensor]
    strength: Callable[[Scale], float] = lambda scale: 0.0
    signed: bool = False
    placed: bool = False  # takes a random place in the image, too


# All warps come first, then all fixed curves, as `_Plan` numbers them; neighbours of one kind are
# processed together.
TABLES: dict[str, tuple[Operation, ...]] = {
    "torchvision": (
        Operation("ShearX", op.shear_x, lambda s: s.linear(0.0, 0.3), signed=True),
        Operation("ShearY", op.shear_y, lambda s: s.linear(0.0, 0.3), signed=True),
        Operation(
            "TranslateX", op.translate_x, lambda s: s.linear(0, 150 / 331 * s.width), signed=True
        ),
        Operation(
            "TranslateY", op.translate_y, lambda s: s.linear(0, 150 / 331 * s.height), signed=True
        ),
        Operation("Rotate", op.rotate, lambda s: s.linear(0.0, 30.0), signed=True),
        Operation("Brightness", op.brightness, lambda s: s.linear(0.0, 0.9), signed=True),
        Operation("Posterize", op.posterize, lambda s: 8 - round(s.magnitude / ((s.bins - 1) / 4))),
        Operation("Solarize", op.solarize, lambda s: s.linear(1.0, 0.0)),
        Operation("Contrast", op.contrast, lambda s: s.linear(0.0, 0.9), signed=True),
        Operation("AutoContrast", op.autocontrast),
        Operation("Equalize", op.equalize),
        Operation("Identity", op.identity),
        Operation("Color", op.color, lambda s: s.linear(0.0, 0.9), signed=True),
        Operation("Sharpness", op.sharpness, lambda s: s.linear(0.0, 0.9), signed=True),
    ),
    # The factors are 0.1 + 1.8 m/30 and the thresholds 256 m/30, written as strengths.
    "sdg": (
        Operation("ShearX", op.shear_x, lambda s: s.part(0.3), signed=True),
        Operation("ShearY", op.shear_y, lambda s: s.part(0.3), signed=True),
        Operation("TranslateX", op.translate_x, lambda s: s.pixels(100, s.width), signed=True),
        Operation("TranslateY", op.translate_y, lambda s: s.pixels(100, s.height), signed=True),
        Operation("Rotate", op.rotate, lambda s: s.part(30), signed=True),
        Operation("Brightness", op.brightness, lambda s: s.part(1.8) - 0.9),
        Operation("Posterize", op.posterize, lambda s: max(1, 4 * s.magnitude // (s.bins - 1))),
        Operation("Solarize", op.solarize, lambda s: s.part(256) / 255),
        Operation("SolarizeAdd", op.solarize_add, lambda s: s.part(110)),
        Operation("Invert", op.invert),
        Operation("Contrast", op.contrast, lambda s: s.part(1.8) - 0.9),
        Operation("AutoContrast", op.autocontrast),
        Operation("Equalize", op.equalize),
        Operation("Color", op.color, lambda s: s.part(1.8) - 0.9),
        Operation("Sharpness", op.sharpness, lambda s: s.part(1.8) - 0.9),
        Operation("Cutout", op.cutout, lambda s: s.pixels(40, min(s.height, s.width)), placed=True),
    ),
}


class RandAugment:
    """Apply `num_ops` random operations to each image of a batch.

    For every image, `num_ops` times, one operation is drawn uniformly with replacement, and its
    sign is flipped with probability 1/2 if it has one. Images that drew the same operation are
    processed together, on the device they are on. Each operation equals torchvision's v2 function
    on the single image bit for bit, where torchvision has it (`curves.fused_add` tells of the
    values that torchvision itself rounds in two ways).

    Example:
        >>> augment = RandAugment(num_ops=2, magnitude=9)
        >>> images = augment(images, generator_for(seed, "augment", epoch, step))

    Args:
        num_ops: Operations per image; 0 changes nothing.
        magnitude: Their common strength, from 0 to `bins - 1`.
        operations: `"torchvision"`, the 14 operations of `torchvision.transforms.RandAugment`; or
            `"sdg"`, the 16 of the code bases on single-source domain generalization (from UDA),
            with Invert, SolarizeAdd and Cutout and without Identity. Note that the strength of
            the latter does not always grow with the magnitude: Solarize and Posterize are
            strongest at small magnitudes, and the enhancement factor is neutral at 15 of 30.
        bins: Number of magnitudes.
        absolute_pixels: Only for `"sdg"`, whose Translate (up to 100 pixels) and Cutout (up to 40)
            are meant for images of 224 pixels. By default these lengths are scaled by the side
            of the image over 224. True takes them literally, as published; most of a 32 x 32
            image is then gone.

    Raises:
        ConfigError: If an argument is out of its range or the set of operations is unknown.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        *,
        operations: str = "torchvision",
        bins: int = 31,
        absolute_pixels: bool = False,
    ) -> None:
        if num_ops < 0:
            raise ConfigError(
                f"num_ops is {num_ops}; it must be at least 0.",
                hint="Give the number of operations per image; 0 switches them off.",
            )
        if bins < 2:
            raise ConfigError(f"bins is {bins}; it must be at least 2.", hint="The usual is 31.")
        if not 0 <= magnitude < bins:
            raise ConfigError(
                f"magnitude is {magnitude}; it must be from 0 to {bins - 1}.",
                hint=f"The magnitudes of {bins} bins are numbered from 0.",
            )
        if operations not in TABLES:
            raise ConfigError(
                f"Unknown set of operations '{operations}'.", hint=did_you_mean(operations, TABLES)
            )
        self.num_ops = num_ops
        self.magnitude = magnitude
        self.operations = operations
        self.bins = bins
        self.absolute_pixels = absolute_pixels

    def __repr__(self) -> str:
        return (
            f"RandAugment(num_ops={self.num_ops}, magnitude={self.magnitude}, "
            f"operations={self.operations!r}, bins={self.bins}, "
            f"absolute_pixels={self.absolute_pixels})"
        )

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], generator: torch.Generator | None = None
    ) -> UInt8[Tensor, "b 3 h w"]:
        """Augment a batch; the argument stays as it is.

        Args:
            images: A uint8 batch on any device, contiguous or channels last; the result has the
                same layout and, for the same generator, the same values.
            generator: A generator on the CPU, wherever the images are; None is torch's global
                one. The number of draws depends on the size of the batch only.

        Raises:
            DataError: If `images` is not a uint8 batch of 3 channels.
        """
        _check(images)
        batch, _, height, width = images.shape
        if self.num_ops == 0 or images.numel() == 0:
            return images
        table = TABLES[self.operations]
        scale = Scale(self.magnitude, self.bins, height, width, self.absolute_pixels)
        draws = _draw(len(table), self.num_ops, batch, generator)
        # Hundreds of short calls: without autograd's bookkeeping they take a sixth less time.
        with torch.inference_mode():
            plan = _plan(self.operations, scale, images.device)
            work = images.contiguous()
            position = torch.arange(batch, device="cpu")  # of each image in `work`
            for drawn in draws:
                # Sort the images by operation: what is processed together is then one slice.
                order = drawn.operation.argsort(stable=True)
                work = work.index_select(0, position[order].to(images.device))
                work = _apply(table, plan, work, drawn.of(order))
                position = order.argsort()
        # Out here, so that the result is an ordinary tensor again.
        work = work.index_select(0, position.to(images.device))
        return work.contiguous(memory_format=_layout(images))


class _Drawn(NamedTuple):
    """What each image drew in one round, on the CPU."""

    operation: Int64[Tensor, " b"]
    flipped: Int64[Tensor, " b"]
    centre: Float64[Tensor, "b 2"]

    def of(self, images: Int64[Tensor, " b"]) -> "_Drawn":
        return _Drawn(*(draw[images] for draw in self))


class _Plan(NamedTuple):
    """What depends on the size of the images only; row 2k is operation k, row 2k + 1 flipped."""

    strength: Float64[Tensor, " rows"]
    source: Int64[Tensor, "warps pixels"]
    curve: UInt8[Tensor, "fixed_curves 1 256"]
    first_curve: int


def _draw(
    count: int, rounds: int, batch: int, generator: torch.Generator | None
) -> Iterator[_Drawn]:
    operation = torch.randint(count, (rounds, batch), generator=generator, device="cpu")
    flipped = torch.randint(2, (rounds, batch), generator=generator, device="cpu")
    centre = torch.rand((rounds, batch, 2), generator=generator, device="cpu", dtype=torch.float64)
    return map(_Drawn, operation, flipped, centre)


# A run has one size of images and one magnitude at a time; a second one is for validation.
@lru_cache(maxsize=4)
def _plan(operations: str, scale: Scale, device: torch.device) -> _Plan:
    table = TABLES[operations]
    strength = torch.tensor(
        [
            sign * row.strength(scale)
            for row in table
            for sign in ((1.0, -1.0) if row.signed else (1.0, 1.0))
        ],
        dtype=torch.float64,
        device="cpu",
    )
    strengths = list(zip(table, strength.view(-1, 2), strict=True))
    size = scale.height, scale.width
    matrices = [r.function.matrix(s, *size) for r, s in strengths if isinstance(r.function, Warp)]
    curves = [r.function.table(s) for r, s in strengths if isinstance(r.function, FixedCurve)]
    return _Plan(
        strength.to(device),
        sources(torch.cat(matrices).to(device), *size),
        torch.cat(curves).to(device),
        first_curve=2 * len(matrices),
    )


def _apply(table: tuple[Operation, ...], plan: _Plan, images: Tensor, drawn: _Drawn) -> Tensor:
    """One round, for images sorted by operation."""
    number = (2 * drawn.operation + drawn.flipped).to(images.device)
    strength = plan.strength.index_select(0, number)
    results: list[Tensor] = []
    for kind, group in groupby(_slices(table, drawn.operation), key=_kind):
        parts = list(group)
        whole = slice(parts[0][1].start, parts[-1][1].stop)
        if kind is Warp:
            results.append(move_pixels(images[whole], plan.source.index_select(0, number[whole])))
        elif kind is FixedCurve:
            curves = plan.curve.index_select(0, number[whole] - plan.first_curve)
            pixels = images[whole].flatten(2).long()
            results.append(look_up(curves, pixels).view(images[whole].shape))
        elif kind is Curve:
            pixels = images[whole].flatten(2).long()
            tables = [
                row.function.table(images[part], pixels[_within(part, whole)], strength[part])
                for row, part in parts
                if isinstance(row.function, Curve)
            ]
            tables = [table.expand(-1, 3, -1) for table in tables]
            results.append(look_up(torch.cat(tables), pixels).view(images[whole].shape))
        else:
            for row, part in parts:
                extra = [drawn.centre[part].to(images.device)] if row.placed else []
                results.append(row.function(images[part], strength[part], *extra))
    return torch.cat(results)


def _slices(
    table: tuple[Operation, ...], operation: Int64[Tensor, " b"]
) -> Iterator[tuple[Operation, slice]]:
    """Where the images of each operation lie, for those that were drawn at all."""
    start = 0
    counts = torch.bincount(operation, minlength=len(table)).tolist()
    for row, count in zip(table, counts, strict=True):
        if count:
            yield row, slice(start, start + count)
        start += count


def _kind(item: tuple[Operation, slice]) -> type:
    return type(item[0].function)


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)


def _layout(images: Tensor) -> torch.memory_format:
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    if channels_last and not images.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format


def _check(images: Any) -> None:
    if not isinstance(images, Tensor):
        raise DataError(f"RandAugment takes a tensor, not {type(images).__name__}.")
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise DataError(
            f"RandAugment takes a uint8 batch of shape [B, 3, H, W], "
            f"not {images.dtype} of shape {list(images.shape)}.",
            hint="Augment before the conversion to float; repeat a grey channel three times.",
        )
