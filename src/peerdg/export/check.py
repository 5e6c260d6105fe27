"""No export without proof: the exported model must answer as the original does."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from peerdg.errors import OutputError
from peerdg.models.classifier import Classifier

TOLERANCE = 1e-4
_BATCHES = (1, 5)  # the number of images must be free

Run = Callable[[Tensor], Tensor]
"""From uint8 images `[n, 3, size, size]` to logits `[n, classes]`."""


@torch.no_grad()
def require_same_answers(model: Classifier, exported: Run, *, size: int) -> float:
    """The largest difference between the logits of `model` and of the exported one.

    It is relative to the largest logit where that exceeds 1, since rounding is.

    Args:
        model: The original, in eval mode.
        exported: Runs what was exported, the way a user will.
        size: Side of the images.

    Raises:
        OutputError: If it is more than `TOLERANCE`, or the shapes differ.
    """
    worst = 0.0
    for images in sample_images(size):
        expected = model(images.to(model.head.weight.device)).float().cpu()
        found = exported(images).float().cpu()
        if found.shape != expected.shape:
            raise OutputError(
                f"The exported model gives {tuple(found.shape)} for {len(images)} images, not "
                f"{tuple(expected.shape)}; nothing was written.",
                hint="Please report this with the backbone's name.",
            )
        scale = max(1.0, float(expected.abs().max()))
        difference = float((found - expected).abs().max()) / scale
        if not difference <= TOLERANCE:  # also if it is not a number
            raise OutputError(
                f"The exported model differs from the original by {difference:.2g}, more than "
                f"{TOLERANCE:g}; nothing was written.",
                hint="Choose another --format, and please report this with the backbone's name.",
            )
        worst = max(worst, difference)
    return worst


def sample_images(size: int) -> Iterator[Tensor]:
    """Batches of different lengths: noise, coarse patterns, black and white."""
    random = torch.Generator().manual_seed(0)
    for batch in _BATCHES:
        coarse = torch.randint(0, 256, (batch, 3, 4, 4), generator=random).float()
        smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
        noise = torch.randint(0, 256, (batch, 3, size, size), generator=random).float()
        images = torch.where(torch.arange(batch).view(-1, 1, 1, 1) % 2 == 0, smooth, noise)
        if batch > 3:
            images[2], images[3] = 0.0, 255.0
        yield images.round().clamp(0, 255).to(torch.uint8)
