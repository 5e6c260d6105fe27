"""A first look at a user's images: how many there are and how large, without decoding one."""

import statistics
from pathlib import Path

from PIL import Image

from peerdg.data.benchmarks.own_data import source_of
from peerdg.data.images.decode import IMAGE_FORMATS
from peerdg.data.own.find import find_images
from peerdg.data.settings import OwnDataSettings
from peerdg.files import open_regular

LOOKED_AT = 50  # files whose header is read


def glance(root: Path, settings: OwnDataSettings) -> tuple[int, int]:
    """The number of training images under `root`, and the usual length of their shorter side.

    Raises:
        ConfigError: If nothing says which domain to learn on.
        DataError: If there are no images, or they cannot be used as they are.
    """
    listing = find_images(root, layout=settings.layout)
    source = source_of(listing, settings, root).require(training=True)
    paths = [item.path for item in source.items if item.split in (None, "train")]
    held_out = settings.validation_folder is None and "validation" not in source.splits
    images = round(len(paths) * (1 - settings.validation_fraction)) if held_out else len(paths)
    step = max(1, len(paths) // LOOKED_AT)
    sides = [side for path in paths[::step] if (side := _shorter_side(path)) is not None]
    return max(1, images), round(statistics.median(sides)) if sides else 224


def _shorter_side(path: Path) -> int | None:
    """From the header; None for a file that decoding will complain about."""
    try:
        with (
            open_regular(path, follow_links=True) as file,
            Image.open(file, formats=IMAGE_FORMATS) as image,
        ):
            return min(image.size)
    except Exception:  # Pillow raises many types on damaged files
        return None
