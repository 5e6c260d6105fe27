"""How one round of RandAugment is carried out: few, large steps for a whole batch.

At 32 x 32 pixels the time goes into the number of calls, not into pixels. So the operations of a
kind share their steps: one `gather` for all warps, one look-up for all curves. Whatever depends
on the strength and the size of the images only is made once.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from peerdg.augment.blends import Blend
from peerdg.augment.curves import Curve, FixedCurve, look_up, whole
from peerdg.augment.geometry import Warp, move_pixels, sources
from peerdg.augment.pixels import Weights
from peerdg.augment.table import TABLES, Operation, Scale

KINDS = (Warp, FixedCurve, Curve, Blend)
"""The kinds of operations that are processed together, in the order of a plan; others follow."""

Function = TypeVar("Function", FixedCurve, Curve, Blend)


class Part(NamedTuple):
    """The images, as a slice of the sorted batch, that drew one operation."""

    operation: Operation
    images: slice


class Plan(NamedTuple):
    """What depends on the strength and the size of the images only.

    Operations are sorted by kind here. Row 2k of a tensor is the k-th operation, row 2k + 1 the
    same with the sign flipped. Warps come first, then fixed curves; for a warp, `curve` is empty.
    """

    operations: tuple[Operation, ...]
    rank: Int64[Tensor, " operations"]  # from the place in the table to the place here
    strength: Float64[Tensor, " rows"]
    weights: Weights  # of all rows, for those that mix
    source: Int64[Tensor, "warps pixels"]
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
        """One round, for images sorted by number; numbers and centres are on the CPU."""
        result = torch.empty_like(images)
        row = numbers.to(images.device)
        weights = Weights(
            self.weights.image.index_select(0, row), self.weights.other.index_select(0, row)
        )
        for kind, group in groupby(self._parts(numbers), key=_shared_kind):
            parts = list(group)
            span = slice(parts[0].images.start, parts[-1].images.stop)
            if kind == KINDS.index(Warp):
                move_pixels(images[span], self.source, row[span], result[span])
            elif kind == KINDS.index(Curve):
                self._apply_curves(parts, images, row[span], weights, result[span])
            elif kind == KINDS.index(Blend):
                for function, part in _functions(parts, Blend):
                    function.apply(images[part], weights.part(part), result[part])
            else:
                for operation, part in parts:
                    strength = self.strength.index_select(0, row[part])
                    extra = [centres[part].to(images.device)] if operation.placed else []
                    result[part] = operation.function(images[part], strength, *extra)
        return result

    def _parts(self, numbers: Int64[Tensor, " b"]) -> Iterator[Part]:
        """Where the images of each operation lie, for those that were drawn at all."""
        counts = torch.bincount(numbers, minlength=2 * len(self.operations)).tolist()
        start = 0
        for operation, plain, flipped in zip(
            self.operations, counts[::2], counts[1::2], strict=True
        ):
            stop = start + plain + flipped
            if stop > start:
                yield Part(operation, slice(start, stop))
            start = stop

    def _apply_curves(
        self, parts: list[Part], images: Tensor, row: Tensor, weights: Weights, out: Tensor
    ) -> None:
        tables = []
        # Fixed curves come first.
        if fixed := [part for _, part in _functions(parts, FixedCurve)]:
            count = fixed[-1].stop - fixed[0].start
            tables.append(self.curve.index_select(0, row[:count]).expand(-1, 3, -1))
        if measured := [
            function.table(images[part], weights.part(part)).expand(-1, 3, -1)
            for function, part in _functions(parts, Curve)
        ]:
            tables.append(whole(torch.cat(measured)))
        pixels = images[parts[0].images.start : parts[-1].images.stop].flatten(2)
        look_up(torch.cat(tables), pixels, out.flatten(2))


# A run has one size of images and one magnitude at a time; a second one is for validation.
@lru_cache(maxsize=4)
def make_plan(operations: str, scale: Scale, device: torch.device) -> Plan:
    """The plan for one set of operations, for images of one size on one device."""
    table = TABLES[operations]
    places = sorted(range(len(table)), key=lambda place: _kind(table[place]))
    rows = tuple(table[place] for place in places)
    strength = torch.tensor(
        [
            sign * row.strength(scale)
            for row in rows
            for sign in ((1.0, -1.0) if row.signed else (1.0, 1.0))
        ],
        dtype=torch.float64,
        device="cpu",
    )
    both = list(zip([row.function for row in rows], strength.view(-1, 2), strict=True))
    size = scale.height, scale.width
    matrices = [f.matrix(s, *size) for f, s in both if isinstance(f, Warp)]
    curves = [torch.zeros(2 * len(matrices), 1, 256, dtype=torch.uint8, device="cpu")]
    curves += [f.table(s) for f, s in both if isinstance(f, FixedCurve)]
    return Plan(
        operations=rows,
        rank=torch.tensor(places, device="cpu").argsort(),
        strength=strength.to(device),
        weights=Weights(*(weight.to(device) for weight in Weights.of(strength))),
        source=sources(torch.cat(matrices).to(device), *size),
        curve=torch.cat(curves).to(device),
    )


def _kind(operation: Operation) -> int:
    kind = type(operation.function)
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _shared_kind(part: Part) -> int:
    """Both kinds of curves are looked up together."""
    kind = _kind(part.operation)
    return KINDS.index(Curve) if kind == KINDS.index(FixedCurve) else kind


def _functions(parts: list[Part], kind: type[Function]) -> list[tuple[Function, slice]]:
    """The functions of one kind, and the images of each."""
    return [
        (operation.function, images)
        for operation, images in parts
        if isinstance(operation.function, kind)
    ]
