"""The operations of RandAugment and their strengths: all there is to choose, as two tables."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from peerdg.augment import operations as op


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
    # The factors are 0.1 + 1.8 m/30 and the thresholds 256 m/30, written as strengths. Scaling the
    # lengths of Translate and Cutout to the image is our assumption (`absolute_pixels=False`).
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
