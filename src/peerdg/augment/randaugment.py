"""RandAugment for whole batches: each image draws its own operations.

Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space",
NeurIPS 2020, https://arxiv.org/abs/1909.13719. `TABLES` lists the operations and ranges.

At 32 x 32 pixels, the number of calls dominates the run time. Operations of the same kind therefore
share their steps: one `gather` for all warps, one lookup for all curves. Tensors that depend only
on strength and image size are computed once. For large images, the number of pixels dominates, and
operations that do not need `gather` take a separate path.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from peerdg.augment import geometry as geo
from peerdg.augment import operations as op
from peerdg.augment.geometry import Warp, move_pixels, move_rows, row_starts, sources
from peerdg.augment.operations import Blend, Curve, FixedCurve, Weights, scratch
from peerdg.augment.protocol import Images, require_batch
from peerdg.errors import ConfigError
from peerdg.options import did_you_mean

LAST = 30  # largest magnitude
LARGE_IMAGE = 64 * 64  # images with at least this many pixels are large


class RandAugment:
    """Apply `num_ops` random operations to each image in a batch.

    Operations are drawn uniformly with replacement. The sign of a signed operation is flipped with
    probability 1/2. Images with the same operation are processed together, on their device.
    Operations from torchvision are bitwise identical to its v2 functions on single images, except
    for values that torchvision rounds inconsistently (see `operations.multiply_add`).

    Example:
        >>> augment = RandAugment(num_ops=2, magnitude=9)
        >>> images = augment(images, generator_for(seed, "augment", epoch, step))

    Args:
        num_ops: Operations per image. 0 returns images unchanged.
        magnitude: Common strength of the operations, from 0 to 30.
        operations: `"torchvision"` for the 14 operations of `torchvision.transforms.RandAugment`,
            or `"sdg"` for the 16 used by single-source domain generalization code (from UDA), with
            Invert, SolarizeAdd and Cutout but without Identity. In `"sdg"`, a larger magnitude is
            not always stronger: Solarize and Posterize are strongest at small magnitudes, and the
            enhancement factor is neutral at 15 of 30.
        absolute_pixels: Only for `"sdg"`, whose Translate (up to 100 pixels) and Cutout (up to 40)
            are meant for images of 224 pixels. By default, these lengths are multiplied by image
            side / 224, which is our assumption. True uses them as published, which covers or
            moves out of view most of a 32 x 32 image.

    Raises:
        ConfigError: If an argument is out of range or the set of operations is unknown.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        *,
        operations: str = "torchvision",
        absolute_pixels: bool = False,
    ) -> None:
        if num_ops < 0:
            raise ConfigError(f"num_ops must be at least 0, got {num_ops}.")
        if not 0 <= magnitude <= LAST:
            raise ConfigError(f"magnitude must be from 0 to {LAST}, got {magnitude}.")
        if operations not in TABLES:
            raise ConfigError(
                f"Unknown set of operations '{operations}'.", hint=did_you_mean(operations, TABLES)
            )
        self.num_ops = num_ops
        self.magnitude = magnitude
        self.operations = operations
        self.absolute_pixels = absolute_pixels

    def __call__(self, images: Images, generator: torch.Generator | None = None) -> Images:
        """Augment a batch, see `Augment`. The result keeps the memory layout of the input.

        The number of random draws depends only on the batch size.
        """
        return self.augment_batches([images], [generator])[0]

    def augment_batches(
        self, batches: Sequence[Images], generators: Iterable[torch.Generator | None]
    ) -> list[Images]:
        """Augment several batches at once, with the same result as one call per batch."""
        for images in batches:
            require_batch(images)
        sizes = [len(images) for images in batches]
        drawn = [self._draw(*pair) for pair in zip(sizes, generators, strict=True)]
        draws = [torch.cat(parts, dim=1) for parts in zip(*drawn, strict=True)]
        images = torch.cat(list(batches)) if len(batches) > 1 else batches[0]
        if self.num_ops == 0 or images.numel() == 0:
            return list(images.split(sizes))
        height, width = images.shape[-2:]
        scale = Scale(self.magnitude, height, width, self.absolute_pixels)
        # Skipping autograd's bookkeeping saves a sixth of the time of these many short calls.
        with torch.inference_mode():
            plan = make_plan(self.operations, scale, images.device)
            work = images.contiguous()
            # `position[i]` is the index of image i in `work`.
            position = everyone = torch.arange(len(images), device="cpu")
            for operation, flipped, center in zip(*draws, strict=True):
                # Sort the images by operation, so that each operation gets one slice.
                row, order = plan.rows(operation, flipped).sort(stable=True)
                now = position.index_select(0, order).to(images.device)
                ordered = torch.index_select(work, 0, now, out=scratch("ordered", work, work.dtype))
                work = plan.apply(ordered, row, center.index_select(0, order))
                position = torch.empty_like(order).scatter_(0, order, everyone)
        # Copy outside of inference mode to return ordinary tensors that own their memory.
        parts = position.to(images.device).split(sizes)
        layout = torch.contiguous_format
        if images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous():
            layout = torch.channels_last
        return [work.index_select(0, part).contiguous(memory_format=layout) for part in parts]

    def _draw(
        self, batch: int, generator: torch.Generator | None
    ) -> tuple[Int64[Tensor, "ops b"], Int64[Tensor, "ops b"], Float64[Tensor, "ops b 2"]]:
        """Draw operation, sign and cutout center for each round and image, on the CPU."""
        shape, count = (self.num_ops, batch), len(TABLES[self.operations])
        operation = torch.randint(count, shape, generator=generator, device="cpu")
        flipped = torch.randint(2, shape, generator=generator, device="cpu")
        center = torch.rand((*shape, 2), generator=generator, device="cpu", dtype=torch.float64)
        return operation, flipped, center


@dataclass(frozen=True)
class Scale:
    """A magnitude out of 30 and an image size, from which strengths are computed."""

    magnitude: int
    height: int
    width: int
    absolute_pixels: bool

    def linear(self, weakest: float, strongest: float) -> float:
        """Interpolate a strength as torchvision does, in float32."""
        return float(torch.linspace(weakest, strongest, LAST + 1, device="cpu")[self.magnitude])

    def part(self, strongest: float) -> float:
        """Return `strongest * magnitude / 30`."""
        return strongest * self.magnitude / LAST

    def pixels(self, strongest: float, side: int) -> float:
        """Scale a length meant for 224-pixel images to images of `side` pixels."""
        return self.part(strongest) * (1.0 if self.absolute_pixels else side / 224)


@dataclass(frozen=True)
class Operation:
    """One row of an operation table."""

    name: str
    function: Any  # maps (images, strength) to images: one of `KINDS` or a plain function
    strength: Callable[[Scale], float] = lambda scale: 0.0
    signed: bool = False
    placed: bool = False  # whether `function` also takes random centers


TABLES: dict[str, tuple[Operation, ...]] = {
    "torchvision": (
        Operation("ShearX", geo.shear_x, lambda s: s.linear(0.0, 0.3), signed=True),
        Operation("ShearY", geo.shear_y, lambda s: s.linear(0.0, 0.3), signed=True),
        Operation(
            "TranslateX", geo.translate_x, lambda s: s.linear(0, 150 / 331 * s.width), signed=True
        ),
        Operation(
            "TranslateY", geo.translate_y, lambda s: s.linear(0, 150 / 331 * s.height), signed=True
        ),
        Operation("Rotate", geo.rotate, lambda s: s.linear(0.0, 30.0), signed=True),
        Operation("Brightness", op.brightness, lambda s: s.linear(0.0, 0.9), signed=True),
        Operation("Posterize", op.posterize, lambda s: 8 - round(s.magnitude / (LAST / 4))),
        Operation("Solarize", op.solarize, lambda s: s.linear(1.0, 0.0)),
        Operation("Contrast", op.contrast, lambda s: s.linear(0.0, 0.9), signed=True),
        Operation("AutoContrast", op.autocontrast),
        Operation("Equalize", op.equalize),
        Operation("Identity", op.identity),
        Operation("Color", op.color, lambda s: s.linear(0.0, 0.9), signed=True),
        Operation("Sharpness", op.sharpness, lambda s: s.linear(0.0, 0.9), signed=True),
    ),
    # The published factors 0.1 + 1.8 m/30 and thresholds 256 m/30, converted to strengths. Scaling
    # Translate and Cutout to the image size is our assumption (`absolute_pixels=False`).
    "sdg": (
        Operation("ShearX", geo.shear_x, lambda s: s.part(0.3), signed=True),
        Operation("ShearY", geo.shear_y, lambda s: s.part(0.3), signed=True),
        Operation("TranslateX", geo.translate_x, lambda s: s.pixels(100, s.width), signed=True),
        Operation("TranslateY", geo.translate_y, lambda s: s.pixels(100, s.height), signed=True),
        Operation("Rotate", geo.rotate, lambda s: s.part(30), signed=True),
        Operation("Brightness", op.brightness, lambda s: s.part(1.8) - 0.9),
        Operation("Posterize", op.posterize, lambda s: max(1, 4 * s.magnitude // LAST)),
        Operation("Solarize", op.solarize, lambda s: s.part(256) / 255),
        Operation("SolarizeAdd", op.solarize_add, lambda s: s.part(110)),
        Operation("Invert", op.invert),
        Operation("Contrast", op.contrast, lambda s: s.part(1.8) - 0.9),
        Operation("AutoContrast", op.autocontrast),
        Operation("Equalize", op.equalize),
        Operation("Color", op.color, lambda s: s.part(1.8) - 0.9),
        Operation("Sharpness", op.sharpness, lambda s: s.part(1.8) - 0.9),
        Operation(
            "Cutout", geo.cutout, lambda s: s.pixels(40, min(s.height, s.width)), placed=True
        ),
    ),
}

KINDS = (Warp, FixedCurve, Curve, Blend)
"""Kinds of operations that are processed together, in plan order. Others come last."""

Slices = list[tuple[Operation, slice]]
"""Operations with their slices of the sorted batch."""


class BatchPlan(NamedTuple):
    """Precomputed tensors that depend only on strength and image size.

    Operations are sorted by kind: warps first, then fixed curves. Row 2k of a tensor belongs to the
    k-th operation, row 2k + 1 to its flipped sign. The rows of warps in `curve` are zero.
    """

    operations: tuple[Operation, ...]
    rank: Int64[Tensor, " operations"]  # maps a table index to an index in `operations`
    strength: Float64[Tensor, " rows"]
    weights: Weights  # for all rows, used by blends only
    source: Int64[Tensor, "warps pixels"]
    starts: Int64[Tensor, "warps h"]
    large: bool  # whether images have at least `LARGE_IMAGE` pixels
    shifts: int  # number of leading operations that `move_rows` handles
    curve: UInt8[Tensor, "warps_and_fixed_curves 1 256"]

    def rows(self, operation: Int64[Tensor, " b"], flipped: Int64[Tensor, " b"]) -> Tensor:
        """Return the plan row for each image, given its operation's table index and sign."""
        return self.rank.index_select(0, operation).mul_(2).add_(flipped)

    def apply(
        self, images: Images, rows: Int64[Tensor, " b"], centers: Float64[Tensor, "b 2"]
    ) -> Images:
        """Apply one operation to each image. The images must be sorted by row.

        Rows and centers are on the CPU. The next call may overwrite the result.
        """
        result = scratch("result", images, torch.uint8)
        row = rows.to(images.device)
        warps, fixed_curves, curves, blends, others = self._slices(rows)
        self._apply_warps(warps, images, row, result)
        self._apply_curves(fixed_curves, curves, images, row, result)
        if blends:
            self._apply_blends(blends, images, row, result)
        for operation, part in others:
            strength = self.strength.index_select(0, row[part])
            extra = [centers[part].to(images.device)] if operation.placed else []
            result[part] = operation.function(images[part], strength, *extra)
        return result

    def _slices(self, rows: Int64[Tensor, " b"]) -> list[Slices]:
        """Return the drawn operations with their slices of the batch, grouped by kind."""
        counts = torch.bincount(rows, minlength=2 * len(self.operations)).tolist()
        slices: list[Slices] = [[] for _ in (*KINDS, "others")]
        stop = 0
        for place, operation in enumerate(self.operations):
            start, stop = stop, stop + counts[2 * place] + counts[2 * place + 1]
            if start < stop:
                slices[_kind(operation)].append((operation, slice(start, stop)))
        return slices

    def _apply_warps(self, slices: Slices, images: Tensor, row: Tensor, out: Tensor) -> None:
        shifting = self.operations[: self.shifts]
        if shifted := [each for each in slices if each[0] in shifting]:
            span = _span(shifted)
            move_rows(images[span], self.starts, row[span], out[span])
        if moved := slices[len(shifted) :]:
            span = _span(moved)
            move_pixels(images[span], self.source, row[span], out[span])

    def _apply_curves(
        self, fixed: Slices, measured: Slices, images: Tensor, row: Tensor, out: Tensor
    ) -> None:
        if self.large:
            for operation, part in fixed:
                strength = self.strength.index_select(0, row[part])
                operation.function.apply(images[part], strength, out[part])
            fixed = []
        tables = []
        if fixed:
            tables.append(self.curve.index_select(0, row[_span(fixed)]).expand(-1, 3, -1))
        if measured:
            values = [operation.function.table(images[part]) for operation, part in measured]
            tables.append(op.to_uint8_table(torch.cat(values)))
        if tables:
            span = _span(fixed + measured)
            op.look_up(torch.cat(tables), images[span].flatten(2), out[span].flatten(2))

    def _apply_blends(self, slices: Slices, images: Tensor, row: Tensor, out: Tensor) -> None:
        span = _span(slices)
        images, row, out = images[span], row[span], out[span]
        image, other = (weight.index_select(0, row) for weight in self.weights)
        blends = [
            (operation.function, slice(part.start - span.start, part.stop - span.start))
            for operation, part in slices
        ]
        if not self.large:
            op.mix(blends, images, (image, other), out)
            return
        for blend, part in blends:
            blend.apply(images[part], (image[part], other[part]), out[part])


# A run uses one plan at a time, and a second one for validation.
@lru_cache(maxsize=4)
def make_plan(operations: str, scale: Scale, device: torch.device) -> BatchPlan:
    """Build the plan for a set of operations, an image size and a device."""
    size = scale.height, scale.width
    large = scale.height * scale.width >= LARGE_IMAGE

    def both(operation: Operation) -> Tensor:
        strength = operation.strength(scale)
        signs = (strength, -strength if operation.signed else strength)
        return torch.tensor(signs, dtype=torch.float64, device="cpu")

    def shifts_rows(operation: Operation) -> bool:
        """Return whether an operation only shifts rows, whatever its sign."""
        if not isinstance(operation.function, Warp):
            return False
        source = sources(operation.function.matrix(both(operation), *size), *size)
        return bool(row_starts(source, *size)[1].all())

    def order(operation: Operation) -> tuple[int, bool]:
        return _kind(operation), large and not shifts_rows(operation)

    table = TABLES[operations]
    places = sorted(range(len(table)), key=lambda place: order(table[place]))
    rows = tuple(table[place] for place in places)
    strengths = [(row.function, both(row)) for row in rows]
    matrices = [f.matrix(s, *size) for f, s in strengths if isinstance(f, Warp)]
    curves = [torch.zeros(2 * len(matrices), 1, 256, dtype=torch.uint8, device="cpu")]
    curves += [f.table(s) for f, s in strengths if isinstance(f, FixedCurve)]
    # Other kinds get weights too, which are not used.
    weights = [(f if isinstance(f, Blend) else op.color).weights(s) for f, s in strengths]
    image, other = (torch.cat(parts).to(device) for parts in zip(*weights, strict=True))
    source = sources(torch.cat(matrices), *size)
    return BatchPlan(
        operations=rows,
        rank=torch.tensor(places, device="cpu").argsort(),
        strength=torch.cat([values for _, values in strengths]).to(device),
        weights=(image, other),
        source=source.to(device),
        starts=row_starts(source, *size)[0].to(device),
        large=large,
        shifts=sum(order(row) == (KINDS.index(Warp), False) for row in rows) if large else 0,
        curve=torch.cat(curves).to(device),
    )


def _kind(operation: Operation) -> int:
    kind = type(operation.function)
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _span(slices: Slices) -> slice:
    return slice(slices[0][1].start, slices[-1][1].stop)
