"""Any image file becomes an upright RGB image, or an error that names the file and the reason."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from peerdg.errors import DataError

# Named one by one, because Pillow's full list has formats that start other programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
PIXEL_LIMIT = 50_000_000


def decode_image(source: Path | bytes | Image.Image, *, name: str | None = None) -> Image.Image:
    """An upright 8-bit RGB image.

    The EXIF orientation is applied, transparency is laid on white, 16-bit grey is scaled from
    0..65535 to 0..255, and of an animation the first frame is taken.

    Args:
        source: A file, its content, or an image that is already open.
        name: What to call it in an error; a path's own name if not given.

    Raises:
        DataError: If it cannot be read, is not an image of `FORMATS`, is damaged, has more than
            `PIXEL_LIMIT` pixels, or has float values.
    """
    name = name or (str(source) if isinstance(source, Path) else "the image")
    if isinstance(source, Image.Image):
        return _to_rgb(source, name)
    with _open(source, name) as image:
        return _to_rgb(image, name)


def _open(source: Path | bytes, name: str) -> Image.Image:
    """Read the header only; the pixels stay compressed until the size has been checked."""
    try:
        content = source.read_bytes() if isinstance(source, Path) else source
    except OSError as error:
        raise DataError(f"Cannot read {name}: {error.strerror or error}.") from error
    if not content:
        raise DataError(f"Cannot decode {name}: the file is empty.")
    try:
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, "far more than") from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"Cannot decode {name}: it is not an image in a known format.",
            hint=f"Known formats: {', '.join(FORMATS)}.",
        ) from error
    except Exception as error:  # a damaged header surfaces as almost any type
        raise _damaged(name, error) from error


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.width * image.height > PIXEL_LIMIT:
        raise _too_large(name, f"{image.width} x {image.height} pixels, more than")
    if image.mode == "F":
        raise DataError(
            f"Cannot decode {name}: its pixels are floats, whose black and white are not known.",
            hint="Save it as an 8-bit or 16-bit image.",
        )
    try:
        image.load()
        image = _upright(image)
        if image.mode == "I" or image.mode.startswith("I;16"):
            image = _scale_16_bit(image, name)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image)
        return image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise _damaged(name, error) from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF beside sound pixels: then nothing says how to turn it
        return image


def _scale_16_bit(image: Image.Image, name: str) -> Image.Image:
    """16-bit grey over its whole range, where Pillow's own conversion clips at 255."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65_535:
        raise DataError(
            f"Cannot decode {name}: its values run from {values.min()} to {values.max()}, "
            "which is neither 8-bit nor 16-bit grey.",
            hint="Save it as an 8-bit or 16-bit image.",
        )
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _too_large(name: str, amount: str) -> DataError:
    return DataError(
        f"Refused {name}: it has {amount} the limit of {PIXEL_LIMIT // 1_000_000} million pixels.",
        hint="Scale it down first; models see a few hundred pixels on each side.",
    )


def _damaged(name: str, error: Exception) -> DataError:
    reason = str(error).rstrip(".") or type(error).__name__
    return DataError(f"Cannot decode {name}: the file is damaged ({reason}).")
