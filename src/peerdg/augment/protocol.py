"""The protocol of augmentations, and what those that compute in floating point share."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from peerdg.errors import DataError
from peerdg.stages import stage

Images = UInt8[Tensor, "b 3 h w"]
FloatImages = Float[Tensor, "b 3 h w"]


class Augment(Protocol):
    """G: makes x̄ = G(x) of a batch; PEER and all objectives with augmented views take any.

    Images come as uint8. Views go as uint8, or as floating point where 1.0 is white and values may
    leave [0, 1]. What is random about a batch comes from the generator of that batch; what lasts
    for several epochs is drawn by `redraw` from the seed that the augmentation was made with. So
    nothing has to be saved to resume.

    Inherit from it for the defaults. A class of your own with these three methods works, too.
    """

    def redraw(self, period: int) -> dict[str, Any]:
        """Draw what stays the same for a period of epochs; return it for the records.

        It must be a function of the period: a resumed run calls it again. By default there is
        nothing to draw.
        """
        return {}

    def __call__(self, images: Images, generator: torch.Generator | None = None) -> Tensor:
        """Make a view of each image; the argument stays as it is.

        Args:
            images: A uint8 batch on any device.
            generator: A generator on the CPU, wherever the images are; None is torch's global one.
        """
        ...

    def augment_batches(
        self, batches: Sequence[Images], generators: Iterable[torch.Generator | None]
    ) -> list[Tensor]:
        """Make views of several batches, each as a call with its own generator would make it.

        Batches that share a generator draw from it one after the other. Only worth an
        implementation where it saves time; by default each batch is a call.
        """
        return [
            self(images, generator) for images, generator in zip(batches, generators, strict=True)
        ]


Self = TypeVar("Self")
Rest = ParamSpec("Rest")
Call = Callable[Concatenate[Self, Tensor, Rest], Tensor]


def augmentation(call: Call[Self, Rest]) -> Call[Self, Rest]:
    """Make a method the call of an augmentation: timed, without gradients, in full precision.

    A view may be made ahead of a step or inside of it; inside, autocast must not round it.
    """

    @functools.wraps(call)
    @stage("augment")
    @torch.no_grad()
    def augmented(
        self: Self, images: Tensor, /, *args: Rest.args, **options: Rest.kwargs
    ) -> Tensor:
        with torch.autocast(images.device.type, enabled=False):
            return call(self, images, *args, **options)

    return augmented


def unit(images: Tensor) -> Tensor:
    """Return uint8 images as float32 with 1.0 for white; floating-point ones as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def centred(images: Tensor) -> FloatImages:
    """Return images in [-1, 1], as networks see them that are given a mean and a scale of 0.5."""
    return unit(images) * 2 - 1


def uncentred(images: Tensor) -> FloatImages:
    """Invert `centred`: 1.0 is white."""
    return images.add(1).div_(2)


def require_batch(images: Any, *, of: tuple[torch.dtype, ...] = (torch.uint8,)) -> None:
    """Refuse what is not a batch of color images of one of these types with a DataError."""
    if not isinstance(images, Tensor):
        raise DataError(f"An augmentation takes a tensor, not {type(images).__name__}.")
    if images.dtype not in of or images.ndim != 4 or images.shape[1] != 3:
        raise DataError(
            f"An augmentation takes a uint8 batch of shape [B, 3, H, W], "
            f"not {images.dtype} of shape {list(images.shape)}.",
            hint="Augment before the conversion to float; repeat a gray channel three times.",
        )
