"""Define the augmentation protocol, and helpers for floating-point augmentations."""

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
    """Interface of the augmentation G, which turns a batch x into views x̄ = G(x).

    Input images are uint8. Views are uint8 or floating point. In floating point, 1.0 is white and
    values may leave [0, 1]. Randomness within a batch comes from the generator passed with it.
    Randomness that lasts for several epochs is drawn by `redraw` from the augmentation's seed. An
    augmentation therefore has no state to save.

    Subclass it to inherit the defaults, or write a class with these three methods.
    """

    def redraw(self, period: int) -> dict[str, Any]:
        """Draw the parameters for a period of epochs and return them for logging.

        They must depend only on the seed and the period, because a resumed run redraws them.
        """
        return {}

    def __call__(self, images: Images, generator: torch.Generator | None = None) -> Tensor:
        """Return a view of each image without changing the argument.

        Args:
            images: A uint8 batch on any device.
            generator: CPU generator, even for images on a GPU. Defaults to torch's global one.
        """
        ...

    def augment_batches(
        self, batches: Sequence[Images], generators: Iterable[torch.Generator | None]
    ) -> list[Tensor]:
        """Augment several batches, with the same result as one call per batch.

        Batches that share a generator draw from it in order. Override this only to save time.
        """
        return [
            self(images, generator) for images, generator in zip(batches, generators, strict=True)
        ]


Self = TypeVar("Self")
Rest = ParamSpec("Rest")
Call = Callable[Concatenate[Self, Tensor, Rest], Tensor]


def augmentation(call: Call[Self, Rest]) -> Call[Self, Rest]:
    """Decorate a method to run timed, without gradients and in full precision.

    Autocast is disabled because views are also computed inside training steps.
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
    """Convert uint8 images to float32 with 1.0 for white. Return float images unchanged."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def centered(images: Tensor) -> FloatImages:
    """Scale images to [-1, 1], like normalization with mean and scale 0.5."""
    return unit(images) * 2 - 1


def uncentered(images: Tensor) -> FloatImages:
    """Undo `centered`: map [-1, 1] back to [0, 1]."""
    return images.add(1).div_(2)


def require_batch(images: Any, *, of: tuple[torch.dtype, ...] = (torch.uint8,)) -> None:
    """Raise a `DataError` unless `images` is a batch of color images with a dtype in `of`."""
    if not isinstance(images, Tensor):
        raise DataError(f"Expected a tensor of images, got {type(images).__name__}.")
    if images.dtype not in of or images.ndim != 4 or images.shape[1] != 3:
        raise DataError(
            f"Expected a uint8 batch of shape [B, 3, H, W], "
            f"got {images.dtype} of shape {list(images.shape)}.",
            hint="Augment before converting to float. Repeat a gray channel three times.",
        )
