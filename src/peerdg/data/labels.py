"""Labels from Python, as numbers or as names, become class indices with class names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peerdg.config import did_you_mean
from peerdg.data.listing import in_order
from peerdg.errors import DataError


def encode_labels(
    labels: Any, classes: Sequence[str] | None, *, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Class index of each label, int64 `[n]`, and the class names.

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
        return _from_names(numbers, classes, name)
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
    numbers = numbers.detach().cpu().long().contiguous()
    if classes is not None:
        return numbers, tuple(map(str, classes))
    if numbers.numel() and int(numbers.min()) < 0:
        raise DataError(
            f"Domain '{name}' has the label {int(numbers.min())}.",
            hint="Labels count from 0; leave images without a class out.",
        )
    found, index = torch.unique(numbers, return_inverse=True)
    return index, tuple(map(str, found.tolist()))


def single_label(label: Any, where: str) -> int | str:
    """A label of one image as a whole number or a name.

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


def _from_names(
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
