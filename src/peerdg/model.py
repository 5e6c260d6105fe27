"""Load a stored model to predict, evaluate or export."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import nn

from peerdg.data.decode import to_pixels
from peerdg.data.domain import Domain
from peerdg.data.objects import as_picture
from peerdg.errors import ConfigError, PeerdgWarning
from peerdg.evaluate.accuracy import (
    WORST,
    DomainReport,
    Overlap,
    evaluate_domain,
    evaluate_in_detail,
)
from peerdg.evaluate.predictions import (
    FilePrediction,
    Predictions,
    images_in_memory,
    most_probable,
    not_finite,
    predict_batch,
    predict_files,
)
from peerdg.export import Format
from peerdg.export.export import Exported, export_model
from peerdg.models.classifier import Classifier, images_per_pass
from peerdg.models.stored import OWN, how_far, load_stored
from peerdg.run.hardware import find_device
from peerdg.run.manifest import count_known_images
from peerdg.terminal import visible

_FEW = 5  # class names shown by `repr`
ImageLike = Path | str | Image.Image | np.ndarray | torch.Tensor


@dataclass(frozen=True)
class Prediction:
    """The most probable class of an image and its probability."""

    label: str
    probability: float


class Model:
    """A trained classifier for image files, PIL images, arrays and tensors.

    Images are decoded to squares of `stored_size`, like the training images, and then resized to
    `image_size`.

    Args:
        classifier: Network with class names and normalization.
        image_size: Side length of the network's input in pixels.
        stored_size: Side length that images are decoded to. Default: `image_size`.
        description: Content of `model.json`, for exports and the model card.
        folder: Run folder or model folder, if any. With a run folder, evaluation warns about
            images that the run was trained on.
    """

    def __init__(
        self,
        classifier: Classifier,
        image_size: int,
        *,
        stored_size: int | None = None,
        description: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.classifier = classifier.eval()
        self.image_size = image_size
        self.stored_size = stored_size or image_size
        self.description = dict(description or {})
        self.folder = folder

    def __repr__(self) -> str:
        names = ", ".join(map(visible, self.classes[:_FEW]))
        more = ", ..." if len(self.classes) > _FEW else ""
        backbone = visible(str(self.description.get("backbone", OWN)))
        return (
            f"Model({backbone}, {len(self.classes)} classes ({names}{more}), "
            f"{self.image_size} px, {self.device})"
        )

    @property
    def how_far(self) -> str | None:
        """Training progress if the run is not finished, else None."""
        return how_far(self.description)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the probabilities."""
        return self.classifier.classes

    @property
    def device(self) -> torch.device:
        """Device of the network. Images may be on any device, and results are on the CPU."""
        return self.classifier.head.weight.device

    def to(self, device: str | torch.device) -> Self:
        """Move the network to `device`, e.g. `"cuda"` or `"auto"`, and return the model."""
        self.classifier.to(find_device(str(device)))
        return self

    def predict(self, images: ImageLike | Iterable[ImageLike], *, top: int | None = None) -> Any:
        """Predict the class of one image (returns a `Prediction`) or of several (returns a list).

        Args:
            images: Path, PIL image, array `[H, W, 3]` or `[H, W]`, or tensor `[3, H, W]`, uint8 or
                in [0, 1]. For several images, an array `[N, H, W, 3]`, a tensor `[N, 3, H, W]` or
                a sequence of single images.
            top: If set, return a list with this many of the most probable classes per image.
        """
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
            raise ConfigError(f"top must be a whole number of at least 1, got {top!r}.")
        result: list[Any] = []
        for batch in self._predict(images):
            for label, row in zip(batch.labels.tolist(), batch.probabilities, strict=True):
                order = most_probable(row, label, top or 1)
                ranked = [Prediction(self.classes[n], float(row[n])) for n in order]
                result.append(ranked[0] if top is None else ranked)
        return result[0] if _is_single(images) else result

    def probabilities(self, images: ImageLike | Iterable[ImageLike]) -> torch.Tensor:
        """Compute class probabilities `[N, classes]` for one image (N = 1) or several."""
        rows = [batch.probabilities for batch in self._predict(images)]
        return torch.cat(rows) if rows else torch.empty(0, len(self.classes))

    def predict_files(self, paths: Iterable[str | Path]) -> Iterator[FilePrediction]:
        """Predict any number of image files, in order and in constant memory.

        If a file cannot be decoded, its prediction has an `error`.
        """
        size, stored_size = self.image_size, self.stored_size
        return predict_files(self.classifier, map(Path, paths), size=size, stored_size=stored_size)

    def evaluate(self, domain: Domain) -> dict[str, Any]:
        """Compute loss, accuracy in percent, and the number of images and of correct predictions.

        Classes are matched by name. A warning is issued about images that the run was trained on.
        """
        domain = domain.with_classes(self.classes)
        self._count_seen(domain)
        result = evaluate_domain(self.classifier, domain, size=self.image_size)
        if not math.isfinite(result["loss"]):
            raise not_finite()
        return result

    def evaluate_in_detail(self, domain: Domain, *, worst: int = WORST) -> DomainReport:
        """Report accuracy per class, confusions, calibration and the most confident mistakes."""
        domain = domain.with_classes(self.classes)
        overlap = self._count_seen(domain)
        report = evaluate_in_detail(self.classifier, domain, size=self.image_size, worst=worst)
        return replace(report, overlap=overlap)

    def _count_seen(self, domain: Domain) -> Overlap | None:
        """Count training images in `domain`, and warn if there are any. Return None if unknown."""
        seen = None if self.folder is None else count_known_images(self.folder, domain)
        if seen is not None and seen.trained:
            warnings.warn(f"'{visible(domain.name)}': {seen}", PeerdgWarning, stacklevel=3)
        return seen

    def export(self, path: str | Path, *, format: Format, overwrite: bool = False) -> Exported:
        """Write the model as `"onnx"`, `"torch-export"` or `"safetensors"`, and check the result.

        Args:
            path: File to write if it has the format's suffix, else a folder to create.
            format: File format.
            overwrite: Whether to replace an existing file.
        """
        description = self.description or {
            "backbone": OWN,
            "image_size": self.image_size,
            "stored_size": self.stored_size,
            "classes": self.classes,
            "mean": self.classifier.mean.flatten().tolist(),
            "std": self.classifier.std.flatten().tolist(),
        }
        path = Path(path)
        return export_model(self.classifier, description, path, format=format, overwrite=overwrite)

    def _predict(self, images: ImageLike | Iterable[ImageLike]) -> Iterator[Predictions]:
        several = [images] if _is_single(images) else images
        pixels = map(self._pixels, several)  # type: ignore[arg-type]
        size = min(images_per_pass(self.image_size), images_in_memory(self.stored_size))
        while batch := list(islice(pixels, size)):
            yield predict_batch(self.classifier, torch.stack(batch), size=self.image_size)

    def _pixels(self, image: ImageLike) -> torch.Tensor:
        """Convert an image to a uint8 square `[3, stored_size, stored_size]`."""
        name = str(image) if isinstance(image, str | Path) else "the image"
        return torch.from_numpy(to_pixels(as_picture(image, name), self.stored_size).copy())


def load_model(
    path: str | Path, *, network: nn.Module | None = None, device: str | torch.device = "cpu"
) -> Model:
    """Load the model from a run folder or model folder. No other files are needed.

    Args:
        path: Run folder or model folder.
        network: Network to load the weights into, if you trained your own.
        device: Device to load onto, e.g. `"cuda"`. `"auto"` uses an accelerator if available.
    """
    place = find_device(str(device))  # rejects an unknown device before loading
    classifier, description = load_stored(Path(path), network)
    if far := how_far(description):
        warnings.warn(
            f"The model in {path} was {far}: its run is not finished.", PeerdgWarning, stacklevel=2
        )
    return make_model(classifier, description, Path(path)).to(place)


def make_model(classifier: Classifier, description: Mapping[str, Any], folder: Path) -> Model:
    """Build a `Model` from the description stored in its folder."""
    return Model(
        classifier,
        description["image_size"],
        stored_size=description["stored_size"],
        description=description,
        folder=folder,
    )


def _is_single(images: Any) -> bool:
    if isinstance(images, np.ndarray | torch.Tensor):
        return images.ndim < 4
    return isinstance(images, str | Path | Image.Image)
