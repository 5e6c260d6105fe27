"""One round of RandAugment on a whole batch, in few, large steps.

At 32 x 32 pixels the time goes into the number of calls, not into pixels. So the operations of a
kind share their steps: one `gather` for all warps, one look-up for all curves. Whatever depends
on the strength and the size of the images only is made once. For large images the pixels count,
and what can be done without `gather` takes a path of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from peerdg.augment import geometry as geo
from peerdg.augment import operations as op
from peerdg.augment.geometry import Warp, move_pixels, move_rows, row_starts, sources
from peerdg.augment.operations import (
    Blend,
    Curve,
    FixedCurve,
    Weights,
    look_up,
    mix,
    scratch,
    to_uint8_table,
)


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


TABLES: dict[str, tuple[Operation, ...]] = {
    "torchvision": (
        Operation("ShearX", geo.shear_x, lambda s: s.linear(0.0, 0.3), signed=True),
        Operation("ShearY", geo.shear_y, lambda s: s.linear(0.0, 0.3), signed=True),
        Operation(
            "TranslateX",
            geo.translate_x,
            lambda s: s.linear(0, 150 / 331 * s.width),
            signed=True,
        ),
        Operation(
            "TranslateY",
            geo.translate_y,
            lambda s: s.linear(0, 150 / 331 * s.height),
            signed=True,
        ),
        Operation("Rotate", geo.rotate, lambda s: s.linear(0.0, 30.0), signed=True),
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
    # The factors are 0.1 + 1.8 m/30 and the thresholds 256 m/30, written as strengths. Scaling the
    # lengths of Translate and Cutout to the image is our assumption (`absolute_pixels=False`).
    "sdg": (
        Operation("ShearX", geo.shear_x, lambda s: s.part(0.3), signed=True),
        Operation("ShearY", geo.shear_y, lambda s: s.part(0.3), signed=True),
        Operation("TranslateX", geo.translate_x, lambda s: s.pixels(100, s.width), signed=True),
        Operation("TranslateY", geo.translate_y, lambda s: s.pixels(100, s.height), signed=True),
        Operation("Rotate", geo.rotate, lambda s: s.part(30), signed=True),
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
        Operation(
            "Cutout", geo.cutout, lambda s: s.pixels(40, min(s.height, s.width)), placed=True
        ),
    ),
}


KINDS = (Warp, FixedCurve, Curve, Blend)
"""The kinds of operations that are processed together, in the order of a plan; others follow."""

LARGE_IMAGE = 64 * 64
"""Pixels from which on an image is large."""

Function = TypeVar("Function", FixedCurve, Curve, Blend)


class OperationSlice(NamedTuple):
    """The images, as a slice of the sorted batch, that drew one operation."""

    operation: Operation
    images: slice


class BatchPlan(NamedTuple):
    """What depends on the strength and the size of the images only.

    Operations are sorted by kind here. Row 2k of a tensor is the k-th operation, row 2k + 1 the
    same with the sign flipped. Warps come first, then fixed curves; for a warp, `curve` is empty.
    """

    operations: tuple[Operation, ...]
    kinds: tuple[int, ...]
    rank: Int64[Tensor, " operations"]  # from the place in the table to the place here
    strength: Float64[Tensor, " rows"]
    weights: Weights  # of all rows, for those that blend
    source: Int64[Tensor, "warps pixels"]
    starts: Int64[Tensor, "warps h"]
    large: bool  # what counts is pixels, not calls
    shifts: int  # so many operations only shift rows, and are done so; they are the first
    curve: UInt8[Tensor, "warps_and_fixed_curves 1 256"]

    def numbers(
        self, operation: Int64[Tensor, " b"], flipped: Int64[Tensor, " b"]
    ) -> Int64[Tensor, " b"]:
        """The row of each image's operation, given by its place in the table."""
        return self.rank.index_select(0, operation).mul_(2).add_(flipped)

    def apply(
        self,
        images: UInt8[Tensor, "b 3 h w"],
        numbers: Int64[Tensor, " b"],
        centres: Float64[Tensor, "b 2"],
    ) -> UInt8[Tensor, "b 3 h w"]:
        """One round, for images sorted by number; numbers and centres are on the CPU.

        The result may be overwritten by the next call.
        """
        result = scratch("result", images, torch.uint8)
        row = numbers.to(images.device)
        warps, fixed_curves, curves, blends, others = self._parts(numbers)
        self._apply_warps(warps, images, row, result)
        self._apply_curves(fixed_curves, curves, images, row, result)
        self._apply_blends(blends, images, row, result)
        for operation, part in others:
            strength = self.strength.index_select(0, row[part])
            extra = [centres[part].to(images.device)] if operation.placed else []
            result[part] = operation.function(images[part], strength, *extra)
        return result

    def _parts(self, numbers: Int64[Tensor, " b"]) -> list[list[OperationSlice]]:
        """For each kind, where the images of its operations lie, if they were drawn at all."""
        counts = torch.bincount(numbers, minlength=2 * len(self.operations)).tolist()
        parts: list[list[OperationSlice]] = [[] for _ in (*KINDS, "others")]
        stop = 0
        for place, operation in enumerate(self.operations):
            start, stop = stop, stop + counts[2 * place] + counts[2 * place + 1]
            if start < stop:
                parts[self.kinds[place]].append(OperationSlice(operation, slice(start, stop)))
        return parts

    def _apply_warps(
        self, parts: list[OperationSlice], images: Tensor, row: Tensor, out: Tensor
    ) -> None:
        shifting = self.operations[: self.shifts]
        if shifted := [part for part in parts if part.operation in shifting]:
            span = _span(shifted)
            move_rows(images[span], self.starts, row[span], out[span])
        if moved := parts[len(shifted) :]:
            span = _span(moved)
            move_pixels(images[span], self.source, row[span], out[span])

    def _apply_curves(
        self,
        fixed: list[OperationSlice],
        measured: list[OperationSlice],
        images: Tensor,
        row: Tensor,
        out: Tensor,
    ) -> None:
        if self.large:
            for curve, part in _functions(fixed, FixedCurve):
                strength = self.strength.index_select(0, row[part])
                curve.apply_directly(images[part], strength, out[part])
            fixed = []
        tables = []
        if fixed:
            tables.append(self.curve.index_select(0, row[_span(fixed)]).expand(-1, 3, -1))
        if measured:
            values = [curve.table(images[part]) for curve, part in _functions(measured, Curve)]
            tables.append(to_uint8_table(torch.cat(values)))
        if tables:
            span = _span(fixed + measured)
            look_up(torch.cat(tables), images[span].flatten(2), out[span].flatten(2))

    def _apply_blends(
        self, parts: list[OperationSlice], images: Tensor, row: Tensor, out: Tensor
    ) -> None:
        if not parts:
            return
        span = _span(parts)
        images, row, out = images[span], row[span], out[span]
        weights = Weights(*(weight.index_select(0, row) for weight in self.weights))
        blends = [
            (blend, slice(part.start - span.start, part.stop - span.start))
            for blend, part in _functions(parts, Blend)
        ]
        if not self.large:
            mix(blends, images, weights, out)
            return
        for blend, part in blends:
            blend.apply(images[part], weights.part(part), out[part])


# A run has one size of images and one magnitude at a time; a second one is for validation.
@lru_cache(maxsize=4)
def make_plan(operations: str, scale: Scale, device: torch.device) -> BatchPlan:
    """The plan for one set of operations, for images of one size on one device."""
    size = scale.height, scale.width
    large = scale.height * scale.width >= LARGE_IMAGE

    def both(operation: Operation) -> Tensor:
        strength = operation.strength(scale)
        signs = (strength, -strength if operation.signed else strength)
        return torch.tensor(signs, dtype=torch.float64, device="cpu")

    def order(operation: Operation) -> tuple[int, bool]:
        return _kind(operation), large and not _shifts(operation, both(operation), *size)

    table = TABLES[operations]
    places = sorted(range(len(table)), key=lambda place: order(table[place]))
    rows = tuple(table[place] for place in places)
    strengths = [(row.function, both(row)) for row in rows]
    strength = torch.cat([values for _, values in strengths])
    matrices = [f.matrix(s, *size) for f, s in strengths if isinstance(f, Warp)]
    curves = [torch.zeros(2 * len(matrices), 1, 256, dtype=torch.uint8, device="cpu")]
    curves += [f.table(s) for f, s in strengths if isinstance(f, FixedCurve)]
    weights = [f.weights(s) if isinstance(f, Blend) else Weights.of(s) for f, s in strengths]
    source = sources(torch.cat(matrices), *size)
    return BatchPlan(
        operations=rows,
        kinds=tuple(map(_kind, rows)),
        rank=torch.tensor(places, device="cpu").argsort(),
        strength=strength.to(device),
        weights=Weights(*(torch.cat(parts).to(device) for parts in zip(*weights, strict=True))),
        source=source.to(device),
        starts=row_starts(source, *size)[0].to(device),
        large=large,
        shifts=sum(order(row) == (KINDS.index(Warp), False) for row in rows) if large else 0,
        curve=torch.cat(curves).to(device),
    )


def _shifts(operation: Operation, strength: Tensor, height: int, width: int) -> bool:
    """Whether an operation, with either sign, moves whole rows only."""
    if not isinstance(operation.function, Warp):
        return False
    source = sources(operation.function.matrix(strength, height, width), height, width)
    return bool(row_starts(source, height, width)[1].all())


def _kind(operation: Operation) -> int:
    kind = type(operation.function)
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _functions(parts: list[OperationSlice], kind: type[Function]) -> list[tuple[Function, slice]]:
    """The functions of one kind, and the images of each."""
    return [
        (operation.function, images)
        for operation, images in parts
        if isinstance(operation.function, kind)
    ]


def _span(parts: list[OperationSlice]) -> slice:
    return slice(parts[0].images.start, parts[-1].images.stop)
