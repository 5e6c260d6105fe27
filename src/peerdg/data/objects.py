"""Convert data in memory to a `Domain`: arrays, lists, datasets from other libraries.

Datasets are recognized by their methods, without importing torchvision or `datasets`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from peerdg.data.classes import in_order
from peerdg.data.decode import decode_image, to_pixels
from peerdg.data.domain import Domain
from peerdg.data.read import DEFAULT_SIDE
from peerdg.errors import DataError
from peerdg.options import did_you_mean

_Item = Callable[[int], tuple[Any, Any]]  # returns the image and label of a row
_ALLOWED = (
    "Give a Domain, a pair (images, labels) of tensors, arrays or lists, a dataset whose items are "
    "(image, label), or a Hugging Face dataset with an image and a label column."
)
_VALUES_HINT = "Give uint8 values 0..255 or floats 0..1, and leave normalization to the model."
_LABEL_HINT = "Give class indices such as 0, 1, 2, or class names, one per image."


def as_domain(
    data: Any,
    *,
    name: str = "source",
    classes: Sequence[str] | None = None,
    size: int | None = None,
) -> Domain:
    """Convert `data` to a domain.

    Args:
        data: A `Domain`, a pair `(images, labels)` of tensors, arrays or lists, a dataset with a
            length whose items are `(image, label)`, such as torchvision's, or a Hugging Face
            dataset. Images are `[N, 3, H, W]`, `[N, H, W, 3]` or `[N, H, W]`, uint8 or floats in
            [0, 1]. Lists may also contain PIL images or paths. Labels are integers or class names.
        name: Domain name. A `Domain` keeps its own.
        classes: Class names in label order. Default: the dataset's own, or the sorted labels.
        size: Side of the square images. By default, images keep their size if all are equal squares
            of at most 256 pixels, and otherwise become 256. Pairs of tensors are never resized.

    Raises:
        DataError: If `data` has an unsupported type, or an image or label cannot be used.
    """
    if isinstance(data, Domain):
        return data
    if isinstance(data, str | Path):
        raise DataError(
            f"'{data}' is a path, not data in memory.",
            hint="Pass folders and lists to peerdg.fit, and target folders as targets=[...].",
        )
    hugging_face = hasattr(data, "column_names") and hasattr(data, "features")
    if isinstance(data, Mapping) and not hugging_face:
        parts = ", ".join(map(str, list(data)[:5]))
        raise DataError(
            f"Expected one data set, got several ({parts}).", hint="Give one, e.g. data['train']."
        )
    if _is_pair(data):
        images, labels = data
        if not hasattr(labels, "__iter__"):
            message = f"The labels of '{name}' must be a sequence, not {_described(labels)}."
            raise DataError(message, hint=_ALLOWED)
        if _is_array(images):
            numbers, known = _encode_labels(labels, classes, name)
            return Domain(name, known, _stacked(images, f"Domain '{name}'"), numbers)
        if len(images) != len(labels):
            raise DataError(f"Domain '{name}' has {len(images)} images but {len(labels)} labels.")
        data = list(zip(images, labels, strict=True))
    if not hasattr(data, "__len__") or not (hugging_face or hasattr(data, "__getitem__")):
        hint = "Pass its .dataset." if hasattr(data, "dataset") else _ALLOWED
        raise DataError(f"Cannot convert {type(data).__name__} to a domain.", hint=hint)
    if len(data) == 0:
        raise DataError(f"Domain '{name}' has no images.")
    item, own_classes = (_hugging_face_item if hugging_face else _dataset_item)(data, name)
    return _from_items(item, len(data), name, classes or own_classes, size)


def _stacked(images: Any, name: str) -> Tensor:
    """Convert images `[N, 3, H, W]`, `[N, H, W, 3]` or `[N, H, W]` to uint8 `[N, 3, H, W]`."""
    pixels = _tensor(images)
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)  # gray
    if pixels.ndim == 4 and pixels.shape[1] not in (1, 3) and pixels.shape[3] in (1, 3):
        pixels = pixels.permute(0, 3, 1, 2)
    if pixels.ndim == 4 and pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    return _as_bytes(pixels, name).contiguous()


def _from_items(
    item: _Item, count: int, name: str, classes: Sequence[str] | None, size: int | None
) -> Domain:
    """Decode the images one by one into a single tensor."""
    side = size or _common_side(item, count, name)
    images = np.empty((count, 3, side, side), np.uint8)
    labels = []
    for row in range(count):
        image, label = item(row)
        images[row] = to_pixels(as_picture(image, f"image {row} of '{name}'"), side)
        single = isinstance(label, Tensor | np.ndarray | np.generic) and np.prod(label.shape) == 1
        labels.append(label.item() if single else label)
    numbers, known = _encode_labels(labels, classes, name)
    return Domain(name, known, torch.from_numpy(images), numbers)


def _common_side(item: _Item, count: int, name: str) -> int:
    """Return the side of the images if all are equal squares of at most 256 pixels, else 256."""
    sizes: set[tuple[int, int]] = set()
    for row in range(count):
        sizes.add(as_picture(item(row)[0], f"image {row} of '{name}'").size)
        width, height = next(iter(sizes))
        if len(sizes) > 1 or width != height or width > DEFAULT_SIDE:
            return DEFAULT_SIDE
    return width


def as_picture(image: Any, name: str) -> Image.Image:
    """Decode an upright RGB image from a PIL image, path, bytes, array or tensor."""
    if isinstance(image, Mapping):  # an undecoded Hugging Face image
        image = image.get("bytes") or image.get("path")
    if isinstance(image, str):
        image = Path(image)
    if isinstance(image, Image.Image | Path | bytes):
        return decode_image(image, name=name)
    if _is_array(image) and image.ndim in (2, 3):
        pixels = _stacked(image[None], name)[0]
        if pixels.shape[0] == 3:
            return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    message = f"{name} has an unsupported type or shape: {_described(image)}."
    raise DataError(message, hint="Give PIL images or uint8 tensors.")


def _as_bytes(pixels: Tensor, name: str) -> Tensor:
    if pixels.dtype == torch.uint8:
        return pixels
    if pixels.is_floating_point() and not pixels.isfinite().all():
        raise DataError(f"{name} contains NaN or infinite values.")
    if pixels.is_floating_point() and pixels.numel() and 0 <= pixels.min() <= pixels.max() <= 1:
        return (pixels * 255).round().to(torch.uint8)
    raise DataError(f"{name} has {pixels.dtype} values outside 0..1.", hint=_VALUES_HINT)


def _dataset_item(data: Any, name: str) -> tuple[_Item, Sequence[str] | None]:
    """Return a function that reads a row of a dataset or `Subset`, and its class names, if any."""

    def item(row: int) -> tuple[Any, Any]:
        values = data[row]
        if not isinstance(values, tuple | list) or len(values) < 2:
            message = f"Item {row} of '{name}' must be (image, label), not {_described(values)}."
            raise DataError(message, hint=_ALLOWED)
        return values[0], values[1]

    origin = data
    while origin is not None and getattr(origin, "classes", None) is None:
        origin = getattr(origin, "dataset", None)
    return item, None if origin is None else [str(known) for known in origin.classes]


def _hugging_face_item(data: Any, name: str) -> tuple[_Item, Sequence[str] | None]:
    kinds = {column: type(kind).__name__ for column, kind in data.features.items()}
    image = _column(kinds, "Image", ("image", "img", "picture"), name)
    label = _column(kinds, "ClassLabel", ("label", "labels", "class", "target"), name)

    def item(row: int) -> tuple[Any, Any]:
        values = data[row]
        return values[image], values[label]

    return item, getattr(data.features[label], "names", None)


def _column(kinds: Mapping[str, str], kind: str, names: Sequence[str], domain: str) -> str:
    """Find the only column of type `kind`, or else one with a common name."""
    columns = [column for column, other in kinds.items() if other == kind]
    if len(columns) != 1:
        columns = [column for column in names if column in (columns or kinds)]
    if not columns:
        raise DataError(
            f"'{domain}' has no column of type {kind}. Its columns are {', '.join(kinds)}.",
            hint=f"Rename the column to '{names[0]}'.",
        )
    return columns[0]


def _encode_labels(
    labels: Any, classes: Sequence[str] | None, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the class index of each label, int64 `[n]`, and the class names.

    Integers index into `classes`. Without `classes`, each distinct label is a class, in order.
    """
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, np.ndarray):
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        if labels.ndim != 1:
            raise DataError(f"Domain '{name}': bad label shape {labels.shape}.", hint=_LABEL_HINT)
    values = [value.item() if isinstance(value, np.generic) else value for value in labels]
    kinds = {type(value) for value in values}
    if kinds not in ({str}, {int}):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"Domain '{name}' has invalid label types: {names}.", hint=_LABEL_HINT)
    class_names = None if classes is None else tuple(map(str, classes))
    if kinds == {int} and class_names is not None:
        return torch.tensor(values), class_names
    if kinds == {int} and min(values) < 0:
        hint = "Labels start at 0. Leave out images without a class."
        raise DataError(f"Domain '{name}' has the negative label {min(values)}.", hint=hint)
    texts = [str(value) for value in values]
    known = in_order(set(texts)) if class_names is None else class_names
    position = {label: index for index, label in enumerate(known)}
    if unknown := [label for label in texts if label not in position]:
        raise DataError(
            f"Domain '{name}' has the label '{unknown[0]}', which is not one of its classes.",
            hint=did_you_mean(unknown[0], known),
        )
    return torch.tensor([position[label] for label in texts]), known


def _tensor(values: Any) -> Tensor:
    if isinstance(values, np.ndarray):  # torch rejects read-only and reversed arrays
        values = np.require(values, requirements=["C", "W"])
    try:
        return torch.as_tensor(values).detach().cpu()
    except TypeError as error:
        message = f"Image arrays of type {values.dtype} are not supported."
        raise DataError(message, hint=_VALUES_HINT) from error


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_pair(data: Any) -> bool:
    """Return whether `data` is `(images, labels)` rather than two `(image, label)` items."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return _is_array(data[0]) or (isinstance(data, tuple) and isinstance(data[0], list))


def _described(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return f"{type(value).__name__}{shape}"
