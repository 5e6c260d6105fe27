"""Any image file becomes an upright RGB image, or an error that names the file and the reason.

Color profiles are ignored, as in every published training pipeline: the stored values are taken
as they are.
"""

import contextlib
import io
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from peerdg.errors import DataError
from peerdg.files import NotRegularError, open_regular

# Named one by one, because Pillow's full list has formats that start other programs (EPS).
# DIB is BMP without its file header, read by the same code.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM")
IMAGE_SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .webp .bmp .dib .gif .tif .tiff .ppm .pgm .pbm .pnm"
    .split()
)  # fmt: skip
PIXEL_LIMIT = 50_000_000
SIDE_LIMIT = 32_767
FILE_LIMIT = 512 * 2**20  # more than 50 million pixels need in any format

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262
_KNOWN = f"Known formats: {', '.join(IMAGE_FORMATS)}."


class UnusableImage(DataError):
    """An image that cannot be used, with the reason on its own for lists of many files."""

    def __init__(self, name: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"Cannot decode {name}: {reason}.", hint=hint)
        self.reason = reason


class Decoded(NamedTuple):
    """An upright RGB image, and whether its file holds further frames or pages."""

    image: Image.Image
    several_frames: bool


def decode_image(
    source: Path | bytes | Image.Image, *, name: str | None = None, pixel_limit: int = PIXEL_LIMIT
) -> Image.Image:
    """Decode an upright 8-bit RGB image.

    The EXIF orientation is applied, transparency is laid on white, 16-bit values are scaled from
    their range to 0..255, and of an animation the first frame is taken.

    Args:
        source: A file, its content, or an image that is already open.
        name: What to call it in an error; a path's own name if not given.
        pixel_limit: Refuse images of more pixels, by their header.

    Raises:
        UnusableImage: If it cannot be read, is not an image of `IMAGE_FORMATS`, is damaged, is too
            large, or has values whose black and white are not known.
    """
    return decode(source, name=name, pixel_limit=pixel_limit).image


def decode(
    source: Path | bytes | Image.Image, *, name: str | None = None, pixel_limit: int = PIXEL_LIMIT
) -> Decoded:
    """Decode an image; also return whether the file has more than its first frame."""
    name = name or (str(source) if isinstance(source, Path) else "the image")
    if isinstance(source, Image.Image):
        return Decoded(_to_rgb(source, name, pixel_limit), False)
    content = read_content(source, name) if isinstance(source, Path) else source
    with open_header(content, name) as image:
        return Decoded(_to_rgb(image, name, pixel_limit, content), _has_further_frames(image))


def read_content(path: Path, name: str | None = None) -> bytes:
    """Read an image file; refuse a pipe or a device, which could block for ever."""
    name = name or str(path)
    try:
        with open_regular(path, follow_links=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size > FILE_LIMIT:
                text = f"it has {size / 2**20:,.0f} MB, more than any image within the limits"
                raise UnusableImage(name, text)
            return file.read(FILE_LIMIT)
    except NotRegularError as error:
        raise UnusableImage(name, "it is not a file") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise UnusableImage(name, getattr(error, "strerror", None) or str(error)) from error


def open_header(content: bytes, name: str) -> Image.Image:
    """Read size and mode; the pixels stay compressed until the size has been checked."""
    if not content:
        raise UnusableImage(name, "the file is empty")
    try:
        return Image.open(io.BytesIO(content), formats=IMAGE_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, "far more pixels than", PIXEL_LIMIT) from error
    except UnidentifiedImageError as error:
        raise _foreign(name, content) from error
    except Exception as error:  # a damaged header surfaces as almost any type
        raise _damaged(name, error) from error


def _to_rgb(
    image: Image.Image, name: str, pixel_limit: int, content: bytes | None = None
) -> Image.Image:
    _check_size(image, name, pixel_limit)
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
        kind = "floats" if image.mode == "F" else "32-bit integers"
        raise UnusableImage(
            name,
            f"its pixels are {kind}, whose black and white are not known",
            hint="Save it as an 8-bit or 16-bit image.",
        )
    try:
        hidden = None if content is None else _hidden_pixels(image, content)
        image.load()
        # Before anything makes a copy without them.
        turn, top, inverted = _turn(image), _top_value(image), _white_is_zero(image)
        if hidden is not None:
            pixels = np.array(image)
            pixels[hidden] = 255
            image = Image.fromarray(pixels)
        if (image.format, image.mode) == ("JPEG", "CMYK") and "adobe" not in image.info:
            # Pillow takes every CMYK JPEG for inverted; only those with Adobe's marker are.
            image = Image.eval(image, lambda value: 255 - value)
        image = image if turn is None else image.transpose(turn)
        if image.mode == "I" or image.mode.startswith("I;16"):
            image = _scale_deep_grey(image, name, top, inverted=inverted)
        if image.has_transparency_data:
            return _on_white(image)
        if (image.format, image.mode) == ("JPEG", "RGB"):
            return image  # by far the most frequent kind needs no copy
        return image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise _damaged(name, error) from error


def _check_size(image: Image.Image, name: str, pixel_limit: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise UnusableImage(name, f"it has {width} x {height} pixels")
    if width * height > pixel_limit:
        raise _too_large(name, f"{width} x {height} pixels, more than", pixel_limit)
    if max(width, height) > SIDE_LIMIT:
        raise UnusableImage(
            name,
            f"it has {width} x {height} pixels; the longest side may have {SIDE_LIMIT:,}",
            hint="Cut or scale it first.",
        )


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Find what makes the image upright, if its EXIF data says that it is not."""
    orientation: object = None
    with contextlib.suppress(Exception):  # broken EXIF: orientation unknown, leave as is
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    return _TURNS.get(orientation) if isinstance(orientation, int) else None


def _top_value(image: Image.Image) -> int:
    """Find the value of white in more than 8 bits: some TIFF files have only 12 of 16."""
    with contextlib.suppress(Exception):
        (bits,) = image.tag_v2[_BITS_PER_SAMPLE]  # type: ignore[attr-defined]
        if bits == 12:
            return 4095
    return 65_535


def _white_is_zero(image: Image.Image) -> bool:
    """Tell whether 0 means white, in TIFF files; Pillow turns such values only up to 8 bits."""
    with contextlib.suppress(Exception):
        return bool(image.tag_v2[_PHOTOMETRIC] == 0)  # type: ignore[attr-defined]
    return False


def _hidden_pixels(image: Image.Image, content: bytes) -> NDArray[np.bool_] | None:
    """Find the pixels of a PNG with 16 bits per color that have its one transparent color.

    Pillow keeps only the upper byte of each value, but the color is meant in both: the same file
    read as if its bytes were in the other order gives the lower ones. None for all other images.
    """
    color = image.info.get("transparency")
    tiles = getattr(image, "tile", ())
    if image.format != "PNG" or not isinstance(color, tuple) or not tiles:
        return None
    if tiles[0].args != "RGB;16B":
        return None
    with Image.open(io.BytesIO(content), formats=("PNG",)) as again:
        again.tile = [tile._replace(args="RGB;16L") for tile in again.tile]
        low = np.asarray(again, np.uint16)
    values = np.asarray(image, np.uint16) << 8 | low
    return np.asarray((values == np.array(color)).all(axis=2))


def _scale_deep_grey(image: Image.Image, name: str, top: int, *, inverted: bool) -> Image.Image:
    """Scale more than 8 bits over their whole range; Pillow's own conversion clips at 255."""
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > top:
        raise UnusableImage(
            name,
            f"its values run from {low} to {high}, which is neither 8-bit nor 16-bit grey",
            hint="Save it as an 8-bit or 16-bit image.",
        )
    scaled = (top - values.astype(np.int64) if inverted else values).astype(np.uint32)
    scaled *= 255
    scaled += top // 2
    scaled //= top
    grey = scaled.astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):  # one value of a PNG; laid on white like all transparency
        grey[values == transparent] = 255
    return Image.fromarray(grey)


def _on_white(image: Image.Image) -> Image.Image:
    image = image if image.mode in ("RGBA", "LA") else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image.convert("RGB"), mask=image.getchannel("A"))
    return white


def _has_further_frames(image: Image.Image) -> bool:
    if image.format == "MPO":  # a photo with its own preview
        return False
    with contextlib.suppress(Exception):  # damage after the first frame does not concern us
        return bool(getattr(image, "is_animated", False))
    return False


def _foreign(name: str, content: bytes) -> UnusableImage:
    brand = content[8:12] if content[4:8] == b"ftyp" else b""
    if brand in (b"heic", b"heix", b"mif1", b"msf1", b"hevc", b"avif", b"avis"):
        kind = "an AVIF" if brand.startswith(b"avi") else "a HEIC"
        return UnusableImage(name, f"it is {kind} image", hint="Save it as JPEG or PNG.")
    return UnusableImage(name, "it is not an image in a known format", hint=_KNOWN)


def _too_large(name: str, amount: str, pixel_limit: int) -> UnusableImage:
    return UnusableImage(
        name,
        f"it has {amount} the limit of {pixel_limit / 1e6:g} million",
        hint="Scale it down first; models see a few hundred pixels on each side.",
    )


def _damaged(name: str, error: Exception) -> UnusableImage:
    reason = str(error).rstrip(".") or type(error).__name__
    return UnusableImage(name, f"the file is damaged ({reason})")
