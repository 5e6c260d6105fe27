"""The same image twice: in training and validation, in source and target, in two classes."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peerdg.data.domain import Domain

_PROBES = 64  # values of each image; only where they agree are all pixels compared


class Place(NamedTuple):
    """One image: which part of the data it belongs to, which it is there, and its class."""

    part: str
    path: str
    label: str


class Duplicate(NamedTuple):
    """Two places of one image."""

    first: Place
    second: Place

    def __str__(self) -> str:
        return f"{_shown(self.first)} = {_shown(self.second)}"


def find_duplicates(parts: Mapping[str, Domain]) -> list[Duplicate]:
    """Every image whose decoded pixels occurred before, paired with the first occurrence.

    Args:
        parts: The domains to compare, within and among each other, by the names to show.
    """
    groups: dict[tuple[tuple[int, ...], bytes], list[tuple[str, int]]] = {}
    for part, domain in parts.items():
        images = domain.images.numpy()
        for row, probe in enumerate(_probes(images)):
            groups.setdefault((images.shape[1:], probe.tobytes()), []).append((part, row))
    found = []
    for alike in groups.values():
        first: dict[bytes, tuple[str, int]] = {}
        for part, row in alike if len(alike) > 1 else ():
            pixels = parts[part].images[row].contiguous().numpy()
            earlier = first.setdefault(hashlib.sha256(pixels.data).digest(), (part, row))
            if earlier != (part, row):
                found.append(Duplicate(_place(parts, *earlier), _place(parts, part, row)))
    return found


def describe(duplicates: Sequence[Duplicate], *, shown: int = 5) -> str:
    """The first pairs and the number of the rest, for a message."""
    more = len(duplicates) - shown
    return "; ".join(map(str, duplicates[:shown])) + (f"; and {more:,} more" if more > 0 else "")


def _probes(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A few values of each image, spread over it `[n, probes]`."""
    flat = images.reshape(len(images), -1)
    positions = np.linspace(0, flat.shape[1] - 1, min(_PROBES, flat.shape[1])).astype(np.int64)
    return np.ascontiguousarray(flat[:, positions])


def _place(parts: Mapping[str, Domain], part: str, row: int) -> Place:
    domain = parts[part]
    path = f"image {row}" if domain.paths is None else domain.paths[row]
    return Place(part, path, domain.classes[int(domain.labels[row])])


def _shown(place: Place) -> str:
    return f"{place.part}: {place.path}" if place.part else place.path
