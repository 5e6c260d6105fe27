"""Random damage to valid images: an image or a `DataError` comes out, never anything else."""

import warnings

import numpy as np

from peerdg.data.decode import decode_image
from peerdg.errors import DataError
from tests.data.image_files import encode, picture
from tests.data.odd_files import TABLE, frames

PICTURE = picture(5, (48, 32))
SEEDS = [
    encode(PICTURE, "JPEG"),
    encode(PICTURE, "JPEG", progressive=True),
    encode(PICTURE, "PNG"),
    encode(PICTURE.quantize(16), "PNG"),
    encode(PICTURE, "WEBP"),
    encode(PICTURE, "WEBP", lossless=True),
    encode(PICTURE, "BMP"),
    encode(PICTURE, "GIF"),
    encode(PICTURE, "TIFF"),
    encode(PICTURE, "TIFF", compression="tiff_lzw"),
    encode(PICTURE, "TIFF", compression="tiff_adobe_deflate"),
    encode(PICTURE, "TIFF", compression="jpeg"),
    encode(PICTURE, "PPM"),
    frames("GIF"),
    frames("WEBP"),
    frames("PNG"),
    frames("TIFF"),
]
KINDS = ("flip", "byte", "cut", "zeros", "repeat", "swap", "splice", "length")


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """One to three changes of the kinds that disks, networks and malice make."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        size = len(changed)
        if size < 16:
            break
        # Half of all changes hit the header, where they matter most.
        at = int(rng.integers(0, min(size, 200) if rng.random() < 0.5 else size))
        end = at + int(rng.integers(1, 40))
        kind = KINDS[rng.integers(len(KINDS))]
        if kind == "flip":
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == "byte":
            changed[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == "cut":
            del changed[at:]
        elif kind == "zeros":
            changed[at:end] = bytes(end - at)
        elif kind == "repeat":
            changed[at:at] = changed[at:end]
        elif kind == "swap":
            changed[at:end] = changed[at:end][::-1]
        elif kind == "splice":
            other = SEEDS[rng.integers(len(SEEDS))]
            changed[at:end] = other[at : at + 200]
        elif kind == "length":
            changed[at : at + 4] = rng.choice(
                [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1"]
            )
    return bytes(changed)


def check(number: int) -> bool:
    """Whether mutation `number` is still an image."""
    rng = np.random.default_rng(number)
    content = mutate(SEEDS[number % len(SEEDS)], rng)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = decode_image(content)
    except DataError as error:
        assert error.message
        return False
    assert image.mode == "RGB"
    assert image.width * image.height <= 50_000_000
    np.asarray(image).sum()
    return True


def test_damaged_images_are_decoded_or_refused():
    outcomes = [check(number) for number in range(2000)]
    # Mutations that always or never matter would test nothing.
    assert 0.1 < np.mean(outcomes) < 0.9


def test_damaged_odd_files_are_decoded_or_refused():
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for odd in TABLE:
            if "bomb" in odd.kind or "2,000" in odd.kind:
                continue  # large to make
            content = odd.make()
            for _ in range(3):
                try:
                    decode_image(mutate(content, rng))
                except DataError:
                    continue
