"""Batched RandAugment against torchvision's, image by image: 2 operations, magnitude 9."""

import torch

from benchmarks.measure import Timing, interleave
from peerdg._vision import transforms
from peerdg.augment.randaugment import RandAugment


def measure(size: int, batch: int, repeats: int = 15) -> dict[str, Timing]:
    """Seconds per batch of `batch` square images."""
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
    pictures = [transforms.functional.to_pil_image(image) for image in images]
    ours, theirs = RandAugment(2, 9), transforms.RandAugment(2, 9)
    return interleave(
        {
            "peerdg, batched": lambda: ours(images),
            "torchvision, PIL": lambda: [theirs(picture) for picture in pictures],
            "torchvision, tensors": lambda: [theirs(image) for image in images],
        },
        repeats=repeats,
    )
