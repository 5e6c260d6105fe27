"""Small image files for tests."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int = 0, size: tuple[int, int] = (24, 24)) -> Image.Image:
    """A smooth picture that survives JPEG, different for each seed."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC)


def encode(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def write_picture(path: Path, seed: int = 0, size: tuple[int, int] = (24, 24)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, size).save(path)
    return path


def make_tree(root: Path, *folders: str, count: int = 3, size: tuple[int, int] = (24, 24)) -> Path:
    """`count` different images in each of `folders`."""
    for number, folder in enumerate(folders):
        for index in range(count):
            write_picture(root / folder / f"{index}.png", 100 * number + index, size)
    return root


def touch_tree(root: Path, *files: str) -> Path:
    """Empty files, for tests that never open them."""
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root
