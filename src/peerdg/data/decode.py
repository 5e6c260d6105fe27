"""Decode image files into upright RGB images, one at a time or many in parallel.

Color profiles are ignored. This module does not import torch.
"""

import contextlib
import io
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from peerdg.errors import DataError

# For other formats, such as EPS, Pillow may start external programs.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM")
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .bmp .dib .gif .tif .tiff .ppm .pgm .pbm .pnm"
    .split()
)  # fmt: skip
MAX_PIXELS = 50_000_000
MAX_SIDE = 32_767
MAX_FILE_BYTES = 512 * 2**20  # 50 million pixels of 16-bit RGBA are 400 MB

A = TypeVar("A")
B = TypeVar("B")


class UnusableImage(DataError):
    """An image that cannot be used. `reason` is a short message for lists of files."""

    def __init__(self, name: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"Cannot decode {name}: {reason}.", hint=hint)
        self.reason = reason


def decode_image(
    source: Path | bytes | Image.Image, *, name: str | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode an upright 8-bit RGB image.

    The EXIF orientation is applied, transparent images are put on white, 16-bit values are scaled
    to 0..255, and the first frame of an animation is used.

    Raises:
        UnusableImage: If the image cannot be read, is not one of `IMAGE_FORMATS`, is damaged, has
            more than `max_pixels`, or has an unknown value range.
    """
    name = name or (str(source) if isinstance(source, Path) else "the image")
    if isinstance(source, Image.Image):
        return _to_rgb(source, name, max_pixels)
    with open_header(read_content(source) if isinstance(source, Path) else source, name) as image:
        return _to_rgb(image, name, max_pixels)


def read_content(path: Path) -> bytes:
    """Read an image file. Reject pipes and devices, which could block forever."""
    try:
        if path.exists() and not path.is_file():
            raise UnusableImage(str(path), "it is not a file")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UnusableImage(str(path), f"its size of {size / 2**20:,.0f} MB is too large")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: null byte in the name
        raise UnusableImage(str(path), getattr(error, "strerror", None) or str(error)) from error


def open_header(content: bytes, name: str) -> Image.Image:
    """Open an image without decoding its pixels, to check its size first."""
    if not content:
        raise UnusableImage(name, "the file is empty")
    try:
        return Image.open(io.BytesIO(content), formats=IMAGE_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnusableImage(name, "it has far too many pixels") from error
    except UnidentifiedImageError as error:
        is_phone_photo = content[4:8] == b"ftyp"  # HEIC and AVIF
        reason = "a HEIC or AVIF image" if is_phone_photo else "not an image in a known format"
        hint = f"Save it as JPEG or PNG. Known formats: {', '.join(IMAGE_FORMATS)}."
        raise UnusableImage(name, f"it is {reason}", hint=hint) from error
    except Exception as error:  # a damaged header can raise almost anything
        raise _damaged(name, error) from error


def to_pixels(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Resize an RGB image to a square `[3, side, side]` with Pillow's bilinear filter."""
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def in_parallel(
    task: Callable[[A], B], items: Iterable[A], *, workers: int | None = None
) -> Generator[B, None, None]:
    """Run `task` on items in threads and yield results in order, only a few items ahead."""
    workers = workers or cores()
    ahead: deque[Future[B]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for item in items:
            ahead.append(pool.submit(task, item))
            if len(ahead) > 3 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # Ctrl-C only waits for a few images


def _to_rgb(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    width, height = image.size
    if width < 1 or height < 1:
        raise UnusableImage(name, f"it has {width} x {height} pixels")
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        limit = f"{max_pixels / 1e6:g} million, or {MAX_SIDE:,} per side"
        reason = f"it has {width} x {height} pixels, more than the limit of {limit}"
        raise UnusableImage(name, reason, hint="Scale it down first.")
    # Mode "I" alone is not enough: Pillow also uses it for 16-bit PPM files.
    is_wide = image.mode == "F" or (image.mode == "I" and image.format == "TIFF")
    try:
        image.load()
        with contextlib.suppress(Exception):  # broken EXIF: keep the stored orientation
            if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
                image = image.copy()
                # In place, so that the pixels are rotated even if rewriting the EXIF data fails.
                ImageOps.exif_transpose(image, in_place=True)
        if image.mode in ("F", "I") or image.mode.startswith("I;16"):
            image = _scale_16_bit(image, name, is_wide)
        if image.has_transparency_data:
            image = image if image.mode in ("RGBA", "LA") else image.convert("RGBA")
            white = Image.new("RGB", image.size, "white")
            white.paste(image.convert("RGB"), mask=image.getchannel("A"))
            return white
        return image if image.mode == "RGB" else image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # decoders raise many kinds of errors on damaged files
        raise _damaged(name, error) from error


def _scale_16_bit(image: Image.Image, name: str, is_wide: bool) -> Image.Image:
    """Scale 16-bit gray values to 0..255. Pillow's own conversion clips them at 255."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if is_wide or low < 0 or high > 65_535:
        kind = "floats" if image.mode == "F" else "32-bit integers"
        reason = f"its pixels are {kind} from {low} to {high}, so black and white are unknown"
        raise UnusableImage(name, reason, hint="Save it as an 8-bit or 16-bit image.")
    return Image.fromarray(((values.astype(np.uint32) * 255 + 32_767) // 65_535).astype(np.uint8))


def _damaged(name: str, error: Exception) -> UnusableImage:
    reason = str(error).rstrip(".") or type(error).__name__
    return UnusableImage(name, f"the file is damaged ({reason})")
