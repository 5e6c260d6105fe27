"""What every method offers, to our loop or to yours."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from peerdg.models.classifier import Classifier


@dataclass(frozen=True)
class Batch:
    """Some training images and what may be known about them.

    Args:
        images: Clean images as stored.
        labels: Their classes.
        index: Their rows in the training set, if the clean images are the same at every visit;
            allows a method to remember what it computed for them.
        seed: From which everything random about this batch derives; None leaves it to torch's
            global generator.
    """

    images: UInt8[Tensor, "batch 3 h w"]
    labels: Int64[Tensor, " batch"]
    index: Int64[Tensor, " batch"] | None = None
    seed: int | None = None

    def generator(self) -> torch.Generator | None:
        """A fresh generator for this batch, or None for the global one."""
        return None if self.seed is None else torch.Generator().manual_seed(self.seed)


class Method(Protocol):
    """A trainable method; every implementation is an `nn.Module`.

    Its parameters that require a gradient are the ones to optimise.

    `start_epoch` and `end_epoch` return what they did, as plain values for the record, and must
    be functions of the state and the epoch number: a resumed run calls `start_epoch` again for the
    epoch it continues.
    """

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """`"loss"`, to be minimised, and its named terms, detached."""
        ...

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Prepare for epoch `epoch`, counted from 0."""
        ...

    def end_epoch(self, epoch: int) -> dict[str, Any]:
        """Conclude it. `{"reset_optimizer": True}` asks to forget the optimizer's state."""
        ...

    @property
    def deployed(self) -> Classifier:
        """What a user ships."""
        ...

    @property
    def observed(self) -> dict[str, Classifier]:
        """What is worth evaluating during training, by name."""
        ...
