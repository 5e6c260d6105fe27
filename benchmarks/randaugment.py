"""Batched RandAugment against other libraries: 2 operations of magnitude 9 of 30 on uint8 images.

torchvision has the same operations and strengths. albumentations is given its nearest operations
and strengths. kornia has its own set, draws once for a whole batch instead of once for each
image, and works on floats, so that the conversion is part of its time. Both are optional: `pip
install -c constraints.txt -e '.[bench]'`.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.measure import Timing, interleave
from peerdg._vision import transforms
from peerdg.augment.randaugment import RandAugment

Contenders = dict[str, Callable[[], object]]
TURN = 4


def measure(size: int, batch: int, count: int = 1, repeats: int = 15) -> dict[str, Timing]:
    """Seconds per image, for square images in `count` batches that are augmented together."""
    images = torch.randint(0, 256, (count * batch, 3, size, size), dtype=torch.uint8)
    contenders: Contenders = {**_ours(images, batch), **_torchvision(images)}
    for library, make in (("kornia", _kornia), ("albumentations", _albumentations)):
        if find_spec(library):
            contenders |= make(images)
        else:
            print(f"{library} is not installed and left out.")
    turns = {name: _several(call) for name, call in contenders.items()}
    found = interleave(turns, repeats=repeats)
    return {name: timing.times(1 / (TURN * len(images))) for name, timing in found.items()}


def _several(call: Callable[[], object]) -> Callable[[], object]:
    """A turn: several calls, because the first finds the caches full of another's work."""
    return lambda: [call() for _ in range(TURN)]


def _ours(images: Tensor, batch: int) -> Contenders:
    augment, batches = RandAugment(2, 9), images.split(batch)
    return {"peerdg, batched": lambda: augment.augment_batches(batches, [None] * len(batches))}


def _torchvision(images: Tensor) -> Contenders:
    pictures = [transforms.functional.to_pil_image(image) for image in images]
    augment = transforms.RandAugment(2, 9)
    return {
        "torchvision, PIL": lambda: [augment(picture) for picture in pictures],
        "torchvision, tensors": lambda: [augment(image) for image in images],
    }


def _kornia(images: Tensor) -> Contenders:
    from kornia.augmentation.auto import RandAugment as KorniaRandAugment

    augment = KorniaRandAugment(n=2, m=9)
    return {"kornia, one draw a batch": lambda: augment(images.float() / 255)}


def _albumentations(images: Tensor) -> Contenders:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # or it asks the network for a newer version
    import albumentations as A

    shear = (-5.14, 5.14)  # degrees, for a tangent of 0.09
    shift = 0.136  # of the side, 150 / 331 * 9 / 30
    factor = (0.73, 1.27)
    kept = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0)}
    operations = [
        A.Affine(shear={"x": shear, "y": (0, 0)}, interpolation=0, p=1),
        A.Affine(shear={"x": (0, 0), "y": shear}, interpolation=0, p=1),
        A.Affine(translate_percent={"x": (-shift, shift), "y": (0, 0)}, interpolation=0, p=1),
        A.Affine(translate_percent={"x": (0, 0), "y": (-shift, shift)}, interpolation=0, p=1),
        A.Affine(rotate=(-9, 9), interpolation=0, p=1),
        A.ColorJitter(**{**kept, "brightness": factor}, p=1),
        A.ColorJitter(**{**kept, "saturation": factor}, p=1),
        A.ColorJitter(**{**kept, "contrast": factor}, p=1),
        A.Sharpen(alpha=(0, 0.27), kernel_size=3, p=1),
        A.Posterize(num_bits=7, p=1),
        A.Solarize(threshold_range=(0.7, 0.7), p=1),
        A.AutoContrast(method="pil", p=1),
        A.Equalize(mode="pil", p=1),
        A.NoOp(p=1),
    ]
    augment = A.SomeOf(operations, n=2, replace=True, p=1)
    arrays = [image.permute(1, 2, 0).contiguous().numpy() for image in images]
    return {"albumentations": lambda: [augment(image=array)["image"] for array in arrays]}
