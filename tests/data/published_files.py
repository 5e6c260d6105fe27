"""Small files in the layouts in which PACS, Office-Home, VLCS and Terra Incognita are published."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image


def color_of(domain: str, label: int, number: int) -> tuple[int, int, int]:
    """The color of an image, which encodes its domain, class and number."""
    return sum(domain.encode()) % 256, 20 * label + 5, 10 * number + 5


def write_image(path: Path, color: tuple[int, int, int], *, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), color).save(path)


def write_domain(
    folder: Path, domain: str, classes, *, each: int = 5, prefix: str = "", first: int = 0
) -> None:
    """Write `each` PNG images of every class. `classes` are folder names in label order."""
    for label, name in enumerate(classes):
        for number in range(first, first + each):
            path = folder / name / f"{prefix}{number:02d}.png"
            write_image(path, color_of(domain, label, number))


def labels_by_color(domain) -> list[int]:
    """The label encoded in each image's color."""
    return ((domain.images[:, 1].float().mean((1, 2)) - 5) / 20).round().long().tolist()


def numbers_of(domain) -> list[int]:
    """The number of each image within its class."""
    return ((domain.images[:, 2].float().mean((1, 2)) - 5) / 10).round().long().tolist()


def expect(monkeypatch, module, name: str, count: int) -> None:
    """Set the published number of images of each domain of a module's set."""
    published = getattr(module, name)
    counts = dict.fromkeys(published.counts, (count,))
    monkeypatch.setattr(module, name, replace(published, counts=counts))


def domainbed_split(count: int, seed: int, position: int) -> tuple[list[int], list[int]]:
    """DomainBed's partition into training and held-out rows, after its published code."""
    text = f"({seed}, {position})"
    state = np.random.RandomState(int(hashlib.md5(text.encode()).hexdigest(), 16) % (2**31))
    keys = list(range(count))
    state.shuffle(keys)
    held_out = int(count * 0.2)
    return sorted(keys[held_out:]), sorted(keys[:held_out])
