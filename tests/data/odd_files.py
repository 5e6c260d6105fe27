"""Odd and bad image files, and the expected result of decoding each."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageCms

from tests.data.image_files import encode, picture

PICTURE = picture(7, (40, 30))
GRAY = PICTURE.convert("L")
RED = Image.new("RGB", (1, 1), "red")


@dataclass(frozen=True)
class Odd:
    """One kind of file."""

    kind: str
    make: Callable[[], bytes]
    reason: str | None = None  # part of the error message, None if it is an image
    expected: Image.Image | None = None  # each mean color within `tolerance`
    tolerance: float = 2  # 0 means equal pixel by pixel
    suffix: str = ".png"


def chunk(kind: bytes, body: bytes, checksum: int | None = None) -> bytes:
    checksum = zlib.crc32(kind + body) if checksum is None else checksum
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def png(width: int, height: int, *more: bytes, depth: int = 8, color: int = 2, data=b"") -> bytes:
    """A PNG file made of its parts. `data` are the filtered rows."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(data))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(more) + body + chunk(b"IEND", b"")
    )


def deep_png(color: int, values: np.ndarray) -> bytes:
    """16 bits per channel: gray 0, RGB 2, gray and alpha 4, RGBA 6."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(width, height, depth=16, color=color, data=rows)


def zero_bomb(width: int, height: int) -> bytes:
    """A valid PNG of black pixels: some kilobytes that decode to gigabytes."""
    packer = zlib.compressobj(9)
    row = bytes(1 + width // 8 + 1)  # one bit per pixel keeps the making cheap
    data = b"".join(packer.compress(row) for _ in range(min(height, 2000))) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data)


def jpeg_of_size(width: int, height: int) -> bytes:
    content = encode(PICTURE, "JPEG")
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def frames(format: str, count: int = 3, **options) -> bytes:
    more = [Image.new("RGB", PICTURE.size, (index % 256, 0, 200)) for index in range(count - 1)]
    return encode(PICTURE, format, save_all=True, append_images=more, **options)


def inverted_adobe_cmyk() -> bytes:
    """A JPEG as written by Photoshop: inverted CMYK values and an Adobe marker."""
    return encode(PICTURE.convert("CMYK"), "JPEG", quality=100, subsampling=0)


def palette(transparent: bool) -> bytes:
    image = PICTURE.quantize(16)
    return encode(image, transparency=0) if transparent else encode(image)


def palette_on_white() -> Image.Image:
    image = PICTURE.quantize(16)
    pixels = np.array(image.convert("RGB"))
    pixels[np.asarray(image) == 0] = 255
    return Image.fromarray(pixels)


def with_alpha(image: Image.Image, alpha: int) -> Image.Image:
    image = image.copy()
    image.putalpha(alpha)
    return image


def on_white(image: Image.Image, alpha: int) -> Image.Image:
    white = Image.new("RGB", image.size, "white")
    return Image.blend(white, image.convert("RGB"), alpha / 255)


def broken_exif() -> bytes:
    return encode(PICTURE, "JPEG", quality=95, exif=b"Exif\0\0MM\0*\0\0\0\xff" + bytes(range(200)))


def profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def tiff(image: Image.Image, **options) -> bytes:
    return encode(image, "TIFF", **options)


DEEP = np.asarray(PICTURE).astype(np.uint16) * 257
DEEP_GRAY = np.asarray(GRAY).astype(np.uint16) * 257
NOISE = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()
HEIC = b"\0\0\0\x18ftypheic" + bytes(200)

TABLE = [
    # Not images at all
    Odd("zero bytes", lambda: b"", "empty"),
    Odd("random bytes", lambda: NOISE, "not an image"),
    Odd("text called .jpg", lambda: b"hello, world\n" * 50, "not an image", suffix=".jpg"),
    Odd("web page called .jpg", lambda: b"<!DOCTYPE html><html>404", "not an image", suffix=".jpg"),
    Odd("HEIC called .jpg", lambda: HEIC, "a HEIC or AVIF", suffix=".jpg"),
    Odd("AVIF called .png", lambda: HEIC.replace(b"heic", b"avif"), "a HEIC or AVIF"),
    Odd("PostScript", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    Odd("SVG", lambda: b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not an image"),
    # Cut short or damaged
    Odd("truncated JPEG", lambda: encode(PICTURE, "JPEG")[:500], "damaged", suffix=".jpg"),
    Odd("JPEG without its end", lambda: encode(PICTURE, "JPEG")[:-200], "damaged", suffix=".jpg"),
    Odd("truncated PNG", lambda: encode(PICTURE)[:-200], "damaged"),
    Odd("truncated WebP", lambda: encode(PICTURE, "WEBP")[:150], "damaged|not an image"),
    Odd("zero width PNG", lambda: png(0, 5), "damaged|not an image|0 x 5"),
    Odd("PNG without pixels", lambda: png(40, 30), "damaged"),
    # Too large
    Odd("100 megapixels", lambda: zero_bomb(10_000, 10_000), "pixels"),
    Odd("1 gigapixel", lambda: zero_bomb(32_000, 32_000), "pixels"),
    Odd("4 gigapixel JPEG", lambda: jpeg_of_size(65_000, 65_000), "pixels"),
    Odd("60,000 x 1", lambda: encode(Image.new("L", (60_000, 1))), "per side"),
    # Other kinds of pixels
    Odd("32-bit float", lambda: tiff(GRAY.convert("F")), "floats"),
    Odd("32-bit integers", lambda: tiff(GRAY.convert("I")), "32-bit integers"),
    Odd("CMYK TIFF", lambda: tiff(PICTURE.convert("CMYK")), expected=PICTURE),
    Odd("CMYK JPEG by Adobe", inverted_adobe_cmyk, expected=PICTURE, suffix=".jpg"),
    Odd("16-bit gray PNG", lambda: deep_png(0, DEEP_GRAY), expected=GRAY, tolerance=0),
    Odd("16-bit gray TIFF", lambda: tiff(Image.fromarray(DEEP_GRAY)), expected=GRAY, tolerance=0),
    Odd("16-bit gray PPM", lambda: encode(Image.fromarray(DEEP_GRAY), "PPM"), expected=GRAY),
    Odd("16-bit RGB PNG", lambda: deep_png(2, DEEP), expected=PICTURE, tolerance=0),
    Odd("palette", lambda: palette(False), expected=PICTURE.quantize(16), tolerance=0),
    Odd("palette with transparency", lambda: palette(True), expected=palette_on_white()),
    Odd("1-bit", lambda: encode(GRAY.convert("1")), expected=GRAY.convert("1"), tolerance=0),
    Odd("gray", lambda: encode(GRAY), expected=GRAY, tolerance=0),
    Odd("gray and alpha", lambda: encode(with_alpha(GRAY, 100)), expected=on_white(GRAY, 100)),
    Odd("RGBA", lambda: encode(with_alpha(PICTURE, 100)), expected=on_white(PICTURE, 100)),
    Odd("wholly transparent", lambda: encode(with_alpha(PICTURE, 0)), expected=on_white(GRAY, 0)),
    Odd("color profile", lambda: encode(PICTURE, icc_profile=profile()), expected=PICTURE),
    Odd("damaged profile", lambda: encode(PICTURE, icc_profile=NOISE[:500]), expected=PICTURE),
    Odd("YCbCr TIFF", lambda: tiff(PICTURE.convert("YCbCr")), expected=PICTURE),
    Odd("one pixel", lambda: encode(Image.new("RGB", (1, 1), "red")), expected=RED, tolerance=0),
    # Odd files with a valid picture
    Odd("PNG called .jpg", lambda: encode(PICTURE), expected=PICTURE, tolerance=0, suffix=".jpg"),
    Odd("animated GIF", lambda: frames("GIF"), expected=PICTURE),
    Odd("animated WebP", lambda: frames("WEBP", lossless=True), expected=PICTURE, tolerance=0),
    Odd("animated PNG", lambda: frames("PNG"), expected=PICTURE, tolerance=0),
    Odd("TIFF of several pages", lambda: frames("TIFF"), expected=PICTURE, tolerance=0),
    Odd("second frame damaged", lambda: frames("GIF")[:-30], expected=PICTURE),
    Odd("JPEG with junk behind", lambda: encode(PICTURE, "JPEG", quality=95) + NOISE * 20,
        expected=PICTURE, suffix=".jpg"),
    Odd("PNG with junk behind", lambda: encode(PICTURE) + NOISE, expected=PICTURE, tolerance=0),
    Odd("progressive JPEG", lambda: encode(PICTURE, "JPEG", quality=95, progressive=True),
        expected=PICTURE, suffix=".jpg"),
    Odd("broken EXIF", broken_exif, expected=PICTURE, suffix=".jpg"),
    Odd("interlaced GIF", lambda: encode(PICTURE.quantize(256), "GIF", interlace=True),
        expected=PICTURE),
    Odd("PPM as text", lambda: b"P3 1 1 255 255 0 0", expected=RED, tolerance=0),
]  # fmt: skip
