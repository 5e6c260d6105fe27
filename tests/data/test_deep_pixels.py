"""Pixels of unusual files, against values computed by hand."""

import struct

import numpy as np
import pytest
from PIL import Image

from peerdg.data.decode import IMAGE_SUFFIXES, decode_image
from tests.data.image_files import encode, picture
from tests.data.odd_files import chunk, png

# 16-bit values and the 8-bit grey each stands for: value * 255 / 65535, rounded.
GREY = np.array([[0, 1_000, 32_768], [32_896, 65_278, 65_535]], np.uint16)
BLACK_IS_ZERO = [[0, 4, 128], [128, 254, 255]]
WHITE_IS_ZERO = [[255, 251, 127], [127, 1, 0]]


def grey_tiff(values: np.ndarray, photometric: int) -> bytes:
    """An uncompressed grey TIFF file, written by hand."""
    height, width = values.shape
    data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    bits = 8 * values.itemsize
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1,
            278: height, 279: len(data)}  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory


def deep_png(values: np.ndarray, *more: bytes, colour: int) -> bytes:
    height, width = values.shape[:2]
    data = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(width, height, *more, depth=16, colour=colour, data=data)


@pytest.mark.parametrize(
    ("photometric", "expected"), [(0, WHITE_IS_ZERO), (1, BLACK_IS_ZERO)], ids=["white", "black"]
)
def test_a_16_bit_tiff_says_whether_zero_is_white(photometric, expected):
    found = np.asarray(decode_image(grey_tiff(GREY, photometric)))
    assert (found == np.array(expected)[..., None]).all()


def test_8_and_16_bit_tiff_files_with_white_zero_agree():
    plain = np.arange(0, 256, 5, dtype=np.uint8).reshape(4, 13)
    shallow = np.asarray(decode_image(grey_tiff(255 - plain, 0)))[..., 0]
    deep = np.asarray(decode_image(grey_tiff((255 - plain).astype(np.uint16) * 257, 0)))[..., 0]
    assert (deep == plain).all()
    assert (shallow == plain).all()


def test_the_transparent_value_of_a_16_bit_grey_png_is_white():
    content = deep_png(GREY, chunk(b"tRNS", struct.pack(">H", 1_000)), colour=0)
    expected = np.array(BLACK_IS_ZERO)
    expected[0, 1] = 255
    assert (np.asarray(decode_image(content)) == expected[..., None]).all()


def test_the_transparent_colour_of_a_16_bit_png_is_compared_in_both_bytes():
    transparent = (1_000, 2_000, 3_000)
    near = [(1_001, 2_000, 3_000), (1_000, 2_001, 3_000), (1_000, 2_000, 2_999)]
    values = np.array([[transparent, near[0]], [near[1], near[2]]], np.uint16)
    content = deep_png(values, chunk(b"tRNS", struct.pack(">3H", *transparent)), colour=2)
    found = np.asarray(decode_image(content)).tolist()
    assert found[0][0] == [255, 255, 255]
    assert [found[0][1], found[1][0], found[1][1]] == [[3, 7, 11]] * 3  # the upper bytes


def test_transparent_pixels_turn_with_the_image():
    values = np.array([[[1, 2, 3], [9, 9, 9], [9, 9, 9]]], np.uint16) * 257
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    more = (
        chunk(b"tRNS", struct.pack(">3H", 257, 514, 771)),
        chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")),
    )
    found = np.asarray(decode_image(deep_png(values, *more, colour=2)))
    assert found.shape == (3, 1, 3)
    assert found[:, 0].tolist() == [[255] * 3, [9] * 3, [9] * 3]


def test_dib_files_are_decoded_like_bmp():
    assert ".dib" in IMAGE_SUFFIXES
    image = picture(3, (13, 7))
    found = decode_image(encode(image, "DIB"))
    assert (np.asarray(found) == np.asarray(image)).all()
    assert (np.asarray(decode_image(encode(image, "BMP"))) == np.asarray(image)).all()
