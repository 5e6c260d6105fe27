"""Which images there are and what each shows, before any of them is opened."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from peerdg.data.classes import class_positions, in_order
from peerdg.data.images.read import ImageFile
from peerdg.errors import DataError
from peerdg.text import storable

Split = Literal["train", "validation", "test"]
# What people call the parts of a data set, in folder names and in lists.
SPLIT_NAMES: dict[str, Split] = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "crossval": "validation",
    "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip
_EXAMPLES = 3


class ListedImage(NamedTuple):
    """One image file, the name of its class, and where the user put it."""

    path: Path
    label: str
    domain: str | None = None
    split: Split | None = None


class Problem(NamedTuple):
    """Something about the files that a person should know.

    Args:
        severity: `"error"`: they cannot be used; `"training"`: they can be tested on, but not
            trained on; `"note"`: they can be used.
        message: What, and where.
        remedy: What to do about it.
    """

    severity: Literal["error", "training", "note"]
    message: str
    remedy: str


@dataclass(frozen=True)
class Listing:
    """The images under a folder or in a list file.

    Args:
        root: The folder that paths are shown relative to.
        items: The images, sorted.
        origin: What to call it in messages: the folder, or the list file.
        ignored: Files that were passed over because of their type or place, relative to `root`.
        structure: What is wrong with the files' places.
    """

    root: Path
    items: tuple[ListedImage, ...]
    origin: Path
    ignored: tuple[str, ...] = ()
    structure: tuple[Problem, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong: with the places of files, and with the classes of these images."""
        return (*self.structure, *class_problems(self.items, str(self.origin)))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes that have an image."""
        return in_order({item.label for item in self.items})

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of all domains; empty if the images are not sorted into domains."""
        return in_order({item.domain for item in self.items if item.domain is not None})

    @property
    def splits(self) -> tuple[Split, ...]:
        """Names of the parts that the user made, if any."""
        found = {item.split for item in self.items}
        return tuple(split for split in ("train", "validation", "test") if split in found)

    def part(self, *, domain: str | None = None, split: Split | None = None) -> "Listing":
        """Take the images of one domain or one split; None takes all."""
        items = tuple(
            item
            for item in self.items
            if domain in (None, item.domain) and split in (None, item.split)
        )
        return replace(self, items=items)

    def files(
        self,
        classes: Sequence[str],
        *,
        name: str,
        class_map: Mapping[str, str] | None = None,
    ) -> list[ImageFile]:
        """Label the images by the index into `classes`, matched by name through `class_map`.

        Raises:
            DataError: If an image belongs to a class that `classes` lacks.
        """
        own = self.classes
        positions = class_positions(own, classes, name=name, class_map=class_map)
        index = dict(zip(own, positions, strict=True))
        return [ImageFile(item.path, index[item.label]) for item in self.items]

    def require(self, *, training: bool) -> "Listing":
        """Return this listing if nothing forbids its use.

        Raises:
            DataError: With everything that does.
        """
        forbidden = {"error", "training"} if training else {"error"}
        found = [problem for problem in self.problems if problem.severity in forbidden]
        if not found:
            return self
        if len(found) == 1:
            raise DataError(found[0].message, hint=found[0].remedy)
        lines = [f"{self.origin} cannot be used as it is:"]
        lines += [f"  {problem.message} {problem.remedy}" for problem in found]
        raise DataError("\n".join(lines))


def class_problems(items: Iterable[ListedImage], where: str) -> list[Problem]:
    """Find what is wrong with the classes of some images, however they were listed."""
    counts = Counter(item.label for item in items)
    problems = [
        Problem(
            "error",
            f"{where} has classes that differ only in case: {_quoted(names)}.",
            "Give them one name, or names that differ.",
        )
        for names in _by_folded_name(counts).values()
        if len(names) > 1
    ]
    if len(counts) == 1:
        (name,) = counts
        message = f"{where} has one class ('{name}'); a classifier needs at least two."
        remedy = "Put the images of each class in a folder of its own, e.g. photos/cat, photos/dog."
        problems.append(Problem("training", message, remedy))
    single = in_order({name for name, count in counts.items() if count == 1})
    if single:
        which = "a class" if len(single) == 1 else f"{len(single):,} classes"
        message = f"{where} has {which} with one image only: {examples(single)}."
        remedy = "Add images, so that one can be held out for validation, or remove the folder."
        problems.append(Problem("training", message, remedy))
    return problems


def readable(name: str) -> str:
    """Turn a name from the disk into text that any record can hold.

    Composed characters: one system stores ü as one character, another as two.
    """
    return unicodedata.normalize("NFC", storable(name))


def examples(names: Sequence[str]) -> str:
    """Name the first of many, for a message."""
    more = f" and {len(names) - _EXAMPLES:,} more" if len(names) > _EXAMPLES else ""
    return ", ".join(names[:_EXAMPLES]) + more


def _by_folded_name(names: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(name.casefold(), []).append(name)
    return groups


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
