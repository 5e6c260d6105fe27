"""What an augmentation offers to the methods that train on its images."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import UInt8
from torch import Tensor


class Augment(Protocol):
    """G: makes x̄ = G(x) of a batch; PEER and all objectives with augmented views take any.

    Images come as uint8. Views go as uint8, or as floating point where 1.0 is white and values may
    leave [0, 1]. What is random about a batch comes from the generator of that batch; what lasts
    for several epochs is drawn by `redraw` from the seed that the augmentation was made with. So
    nothing has to be saved to resume.

    Inherit from it for the defaults; a class of your own with these three methods will do, too.
    """

    def redraw(self, period: int) -> dict[str, Any]:
        """Draw what stays the same for a period of epochs; return it for the records.

        It must be a function of the period: a resumed run calls it again. By default there is
        nothing to draw.
        """
        return {}

    def __call__(
        self, images: UInt8[Tensor, "b 3 h w"], generator: torch.Generator | None = None
    ) -> Tensor:
        """A view of each image; the argument stays as it is.

        Args:
            images: A uint8 batch on any device.
            generator: A generator on the CPU, wherever the images are; None is torch's global one.
        """
        ...

    def together(
        self,
        batches: Sequence[UInt8[Tensor, "_ 3 h w"]],
        generators: Iterable[torch.Generator | None],
    ) -> list[Tensor]:
        """Views of several batches, each as a call with its own generator would make it.

        Batches that share a generator draw from it one after the other. Only worth an
        implementation where it saves time; by default each batch is a call.
        """
        return [
            self(images, generator) for images, generator in zip(batches, generators, strict=True)
        ]
