"""Make a `Domain` of data in Python: arrays, lists, datasets of other libraries.

Datasets are recognised by what they can do, not by their type, so neither torchvision nor
Hugging Face's `datasets` is imported here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from peerdg.data.classes import in_order
from peerdg.data.decode import decode_image
from peerdg.data.domain import Domain
from peerdg.data.progress import listener
from peerdg.data.read import DEFAULT_SIDE, to_pixels
from peerdg.errors import DataError
from peerdg.options import did_you_mean

_Pairs = Callable[[], Iterator[tuple[Any, int | str]]]
_ALLOWED = (
    "Give a Domain, a pair (images, labels) of tensors, arrays or lists, a dataset whose items are "
    "(image, label), or a Hugging Face dataset with an image and a label column."
)


def as_domain(
    data: Any,
    *,
    name: str = "source",
    classes: Sequence[str] | None = None,
    size: int | None = None,
) -> Domain:
    """Make a domain of `data`.

    Args:
        data: A `Domain`; a pair `(images, labels)` of tensors, arrays or lists; a dataset with a
            length whose items are `(image, label)`, such as torchvision's; or a Hugging Face
            dataset. Images are `[N, 3, H, W]`, `[N, H, W, 3]` or `[N, H, W]`, uint8 or floating
            point in [0, 1]; a list may hold PIL images and paths too. Labels are whole numbers or
            class names.
        name: The domain's name; a `Domain` keeps its own.
        classes: Class names in label order; default: what the dataset says, else the labels that
            occur, sorted.
        size: Side of the square images; None keeps images that share one square size of at most
            256 pixels, and makes all others 256. Pairs of tensors are never resized.

    Raises:
        DataError: If it is none of these, or an image or label cannot be used.
    """
    if isinstance(data, Domain):
        return data
    _refuse_unusable(data, name)
    if _is_pair(data) and _is_array(data[0]):
        return _from_arrays(data[0], data[1], name, classes)
    if _is_pair(data):
        data = _Pair(*data, name=name)
    if _is_hugging_face(data):
        pairs, known = _hugging_face_pairs(data, name)
    else:
        pairs, known = _dataset_pairs(data, name), _class_names(data)
    if len(data) == 0:
        raise DataError(f"Domain '{name}' has no images.")
    return _from_pairs(pairs, len(data), name, classes or known, size)


def _refuse_unusable(data: Any, name: str) -> None:
    """Refuse what is neither a pair nor a dataset, and say what to give instead."""
    if isinstance(data, str | Path):
        raise DataError(
            f"'{data}' is a path, not data in memory.",
            hint="Give a folder or list to peerdg.fit, and those of targets as targets=[...].",
        )
    if isinstance(data, Mapping) and not _is_hugging_face(data):
        parts = ", ".join(map(str, list(data)[:5]))
        raise DataError(
            f"A collection of several data sets was given ({parts}).",
            hint="Give one of them, e.g. data['train'].",
        )
    if _is_pair(data) and not hasattr(data[1], "__iter__"):
        raise DataError(f"The labels of '{name}' are a {_described(data[1])}.", hint=_ALLOWED)
    if not hasattr(data, "__len__") or not (_is_hugging_face(data) or hasattr(data, "__getitem__")):
        loader = hasattr(data, "__len__") and hasattr(data, "dataset")
        hint = "Give its .dataset." if loader else _ALLOWED
        raise DataError(f"A {type(data).__name__} cannot become a domain.", hint=hint)


def _from_arrays(images: Any, labels: Any, name: str, classes: Sequence[str] | None) -> Domain:
    """Make a domain of images `[N, 3, H, W]`, `[N, H, W, 3]` or `[N, H, W]`, 0..255 or 0..1."""
    pixels = _tensor(images)
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)  # grey
    if pixels.ndim == 4 and pixels.shape[1] not in (1, 3) and pixels.shape[3] in (1, 3):
        pixels = pixels.permute(0, 3, 1, 2)
    if pixels.ndim == 4 and pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    numbers, known = _encode_labels(labels, classes, name=name)
    return Domain(
        name=name,
        classes=known,
        images=_as_bytes(pixels, f"Domain '{name}'").contiguous(),
        labels=numbers,
    )


class _Pair:
    """A list of images and their labels, as a dataset."""

    def __init__(self, images: list[Any], labels: Any, *, name: str) -> None:
        self.images, self.labels = images, list(labels)
        if len(images) != len(self.labels):
            raise DataError(f"Domain '{name}': {len(self.labels)} labels, {len(images)} images.")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self.images[row], self.labels[row]


def _from_pairs(
    pairs: _Pairs, count: int, name: str, classes: Sequence[str] | None, size: int | None
) -> Domain:
    """Decode one image after the other into the tensor that holds them all."""
    report = listener()
    side = _common_size(pairs, name) if size is None else size
    images = np.empty((count, 3, side, side), np.uint8)
    labels: list[int | str] = []
    for row, (image, label) in enumerate(pairs()):
        images[row] = to_pixels(_picture(image, f"image {row} of '{name}'"), side)
        labels.append(label)
        report("decoding", row + 1, count)
    numbers, known = _encode_labels(labels, classes, name=name)
    return Domain(name, known, torch.from_numpy(images), numbers)


def _common_size(pairs: _Pairs, name: str) -> int:
    """Find the one small square size that all images share, or 256."""
    first: tuple[int, int] | None = None
    for row, (image, _) in enumerate(pairs()):
        size = _picture(image, f"image {row} of '{name}'").size
        first = first or size
        if size != first or size[0] != size[1] or size[0] > DEFAULT_SIDE:
            return DEFAULT_SIDE
    return first[0] if first else DEFAULT_SIDE


def _picture(image: Any, name: str) -> Image.Image:
    """Decode whatever a dataset calls an image, upright and RGB."""
    if isinstance(image, Mapping):  # Hugging Face, undecoded
        image = image.get("bytes") or image.get("path")
    if isinstance(image, str):
        image = Path(image)
    if isinstance(image, Image.Image | Path | bytes):
        return decode_image(image, name=name)
    if _is_array(image):
        pixels = _tensor(image)
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
            pixels = pixels.permute(1, 2, 0)
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels.squeeze(2)
        if pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4)):
            return decode_image(Image.fromarray(_as_bytes(pixels, name).numpy()), name=name)
    raise DataError(f"{name} is a {_described(image)}.", hint="Give PIL images or uint8 tensors.")


def _as_bytes(pixels: Tensor, name: str) -> Tensor:
    if pixels.dtype == torch.uint8:
        return pixels
    if pixels.is_floating_point() and not pixels.isfinite().all():
        raise DataError(f"{name} has values that are NaN or infinite.", hint="Repair or drop them.")
    if pixels.is_floating_point() and pixels.numel() and 0 <= pixels.min() <= pixels.max() <= 1:
        return (pixels * 255).round().to(torch.uint8)
    raise DataError(
        f"{name}: values are {pixels.dtype} and not within 0..1.",
        hint="Give uint8 values 0..255 or floats 0..1; leave normalisation to the model.",
    )


def _dataset_pairs(data: Any, name: str) -> _Pairs:
    def pairs() -> Iterator[tuple[Any, int | str]]:
        for row in range(len(data)):
            item = data[row]
            if not isinstance(item, tuple | list) or len(item) < 2:
                raise DataError(f"Item {row} of '{name}' is a {_described(item)}.", hint=_ALLOWED)
            yield item[0], _single_label(item[1], f"label {row} of '{name}'")

    return pairs


def _hugging_face_pairs(data: Any, name: str) -> tuple[_Pairs, Sequence[str] | None]:
    kinds = {column: type(kind).__name__ for column, kind in data.features.items()}
    image = _column(kinds, "Image", ("image", "img", "picture"), name)
    label = _column(kinds, "ClassLabel", ("label", "labels", "class", "target"), name)

    def pairs() -> Iterator[tuple[Any, int | str]]:
        for row in range(len(data)):
            item = data[row]
            yield item[image], _single_label(item[label], f"label {row} of '{name}'")

    names = getattr(data.features[label], "names", None)
    return pairs, names


def _column(kinds: Mapping[str, str], kind: str, names: Sequence[str], domain: str) -> str:
    """Find the one column of that kind, else one with a usual name."""
    found = [column for column, there in kinds.items() if there == kind]
    found = found if len(found) == 1 else [n for n in names if n in (found or kinds)]
    if not found:
        raise DataError(
            f"'{domain}' has no column of type {kind}; its columns are {', '.join(kinds)}.",
            hint=f"Rename the right one to '{names[0]}'.",
        )
    return found[0]


def _class_names(data: Any) -> Sequence[str] | None:
    """Read `.classes` of a dataset, or of the one that a `Subset` is part of."""
    while data is not None:
        names = getattr(data, "classes", None)
        if names is not None:
            return [str(known) for known in names]
        data = getattr(data, "dataset", None)
    return None


def _tensor(values: Any) -> Tensor:
    if isinstance(values, np.ndarray):  # torch takes neither read-only nor reversed arrays
        values = np.require(values, requirements=["C", "W"])
    try:
        return torch.as_tensor(values).detach().cpu()
    except TypeError as error:
        raise DataError(
            f"An image array has values of type {values.dtype}.",
            hint="Give uint8 values 0..255 or floats 0..1.",
        ) from error


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _is_pair(data: Any) -> bool:
    """Tell whether it is `(images, labels)`, not two items `(image, label)`."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return _is_array(data[0]) or (isinstance(data, tuple) and isinstance(data[0], list))


def _is_hugging_face(data: Any) -> bool:
    return hasattr(data, "column_names") and isinstance(getattr(data, "features", None), Mapping)


def _described(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return f"{type(value).__name__}{shape}"


def _encode_labels(
    labels: Any, classes: Sequence[str] | None, *, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Find the class index of each label, int64 `[n]`, and the class names.

    Whole numbers index into `classes`; without `classes`, each number that occurs is a class that
    is called after it. Names are looked up in `classes`; without `classes`, each name that occurs
    is a class. Classes made in this way are sorted.

    Args:
        labels: Tensor, array or sequence of whole numbers, or sequence of names.
        classes: Class names in label order, if they are known.
        name: The domain's name, for messages.

    Raises:
        DataError: If a label is neither, is not in `classes`, or there is not one per image.
    """
    numbers = labels if isinstance(labels, Tensor) else _tensor_or_names(labels, name)
    if not isinstance(numbers, Tensor):
        return _encode_names(numbers, classes, name)
    numbers = _whole_numbers(numbers, name)
    if classes is not None:
        return numbers, tuple(map(str, classes))
    if numbers.numel() and int(numbers.min()) < 0:
        raise DataError(
            f"Domain '{name}' has the label {int(numbers.min())}.",
            hint="Labels count from 0; leave images without a class out.",
        )
    found, index = torch.unique(numbers, return_inverse=True)
    return index, tuple(map(str, found.tolist()))


def _whole_numbers(numbers: Tensor, name: str) -> Tensor:
    """Convert labels to int64 `[n]`."""
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise DataError(
            f"Domain '{name}': labels are {numbers.dtype}, not whole numbers.",
            hint="Give class indices such as 0, 1, 2, or class names.",
        )
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.ndim != 1:
        raise DataError(
            f"Domain '{name}': labels have the shape {tuple(numbers.shape)}.",
            hint="Give one class per image; of one-hot labels, labels.argmax(1).",
        )
    return numbers.detach().cpu().long().contiguous()


def _single_label(label: Any, where: str) -> int | str:
    """Read the label of one image as a whole number or a name.

    Raises:
        DataError: If it is neither.
    """
    if isinstance(label, Tensor | np.ndarray | np.generic) and np.prod(label.shape) == 1:
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise DataError(
            f"{where} is {label!r:.60}, not a whole number.",
            hint="Give class indices such as 0, 1, 2, or class names.",
        )
    return label


def _tensor_or_names(labels: Any, name: str) -> Tensor | list[str]:
    if not isinstance(labels, np.ndarray):  # numpy would make text of a number beside a name
        labels = list(labels)
        kinds = {isinstance(label, str) for label in labels}
        if len(kinds) > 1:
            raise DataError(
                f"Domain '{name}' has labels of both kinds, numbers and names.",
                hint="Give all of them as numbers, or all as names.",
            )
        if kinds == {True}:
            return [str(label) for label in labels]
    values = np.asarray(labels)
    if values.dtype.kind == "U" or (
        values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat)
    ):
        return [str(value) for value in values.flat]
    if values.dtype.kind not in "iufb":
        raise DataError(
            f"Domain '{name}': labels are {values.dtype}, not whole numbers.",
            hint="Give class indices such as 0, 1, 2, or class names.",
        )
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _encode_names(
    labels: list[str], classes: Sequence[str] | None, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    known = in_order(set(labels)) if classes is None else tuple(map(str, classes))
    position = {label: index for index, label in enumerate(known)}
    for label in labels:
        if label not in position:
            raise DataError(
                f"Domain '{name}' has the label '{label}', which is none of its classes.",
                hint=did_you_mean(label, known),
            )
    return torch.tensor([position[label] for label in labels], dtype=torch.int64), known
