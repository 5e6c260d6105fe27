"""Predict class probabilities for images and files.

Each image is decoded to an upright RGB square of the same size as the stored training images
(Pillow's bilinear filter, antialiased). This square is then resized to the network's input size, as
in every evaluation.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peerdg.augment.view import resize
from peerdg.data.decode import UnusableImage, decode_image, in_parallel, to_pixels
from peerdg.errors import NumericalError
from peerdg.models.classifier import Classifier, images_per_pass

_GROUP = 16  # files per decoding task
_MAX_STORED_PIXELS = 256 * 256**2  # maximum pixels of decoded squares in memory (50 MB)

T = TypeVar("T")
_Decoded = tuple[Path, NDArray[np.uint8] | str]  # pixels, or why decoding failed


class Predictions(NamedTuple):
    """Predictions for a batch."""

    labels: Tensor  # most probable class of each image, int64 [n]
    probabilities: Tensor  # for each image and class, [n, classes]
    log_probabilities: Tensor  # accurate even if a probability is rounded to 0


class FilePrediction(NamedTuple):
    """Prediction for a file, or an error."""

    path: Path
    label: str | None = None  # most probable class, None if decoding failed
    probability: float | None = None
    probabilities: Tensor | None = None  # for each class, [classes]
    error: str | None = None  # why the file could not be decoded


def most_probable(probabilities: Tensor, label: int, top: int) -> list[int]:
    """Rank the `top` most probable classes of one image. Ties keep the class order.

    `label`, the class with the largest logit, comes first even if another class has the same
    probability after rounding.
    """
    order: list[int] = torch.argsort(probabilities, descending=True, stable=True).tolist()
    return [label, *(index for index in order if index != label)][:top]


@torch.inference_mode()
def predict_batch(model: Classifier, images: Tensor, *, size: int) -> Predictions:
    """Resize a uint8 batch `[n, 3, h, w]` to `size` and predict its classes."""
    logits = model(resize(images.to(model.head.weight.device), size))
    if not logits.isfinite().all():
        raise not_finite()
    return Predictions(logits.argmax(1).cpu(), logits.softmax(1).cpu(), logits.log_softmax(1).cpu())


def not_finite() -> NumericalError:
    """Return the error for a network with non-finite outputs."""
    return NumericalError(
        "The network's output for an image is NaN or infinite.",
        hint="Its weights are too large or damaged. Train the model again or use another one.",
    )


def predict_files(
    model: Classifier, paths: Iterable[Path], *, size: int, stored_size: int
) -> Iterator[FilePrediction]:
    """Predict any number of files in order, keeping only a few batches in memory.

    Threads decode files to squares of side `stored_size` a few batches ahead of the network, which
    gets images of side `size`. The model must be in eval mode.
    """
    batch = min(images_per_pass(size), images_in_memory(stored_size))
    task = partial(_decode_group, side=stored_size)
    with closing(in_parallel(task, _groups(paths, min(_GROUP, batch)))) as groups:
        for decoded in _groups(chain.from_iterable(groups), batch):
            yield from _predict(model, decoded, size)
            decoded.clear()  # frees memory before the next batch is collected


def images_in_memory(stored_size: int) -> int:
    """Return how many decoded squares of this side are kept in memory at most."""
    return max(1, _MAX_STORED_PIXELS // stored_size**2)


def _groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(items)
    while group := list(islice(left, size)):
        yield group


def _decode_group(paths: list[Path], *, side: int) -> list[_Decoded]:
    decoded: list[_Decoded] = []
    for path in paths:
        try:
            decoded.append((path, to_pixels(decode_image(path), side)))
        except UnusableImage as error:
            decoded.append((path, error.reason))
    return decoded


def _predict(model: Classifier, decoded: list[_Decoded], size: int) -> Iterator[FilePrediction]:
    pixels = [image for _, image in decoded if not isinstance(image, str)]
    rows: Iterator[tuple[int, Tensor]] = iter(())
    if pixels:
        predictions = predict_batch(model, torch.from_numpy(np.stack(pixels)), size=size)
        rows = zip(predictions.labels.tolist(), predictions.probabilities, strict=True)
    for path, image in decoded:
        if isinstance(image, str):
            yield FilePrediction(path, error=image)
        else:
            label, row = next(rows)
            yield FilePrediction(path, model.classes[label], float(row[label]), row)
