import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from peerdg.data.decode import FORMATS, decode_image
from peerdg.errors import DataError

COLOURS = np.array([[[250, 10, 20], [10, 250, 20]], [[10, 20, 250], [250, 250, 10]]], np.uint8)


def encode(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pixels(source) -> list:
    return np.asarray(decode_image(source)).tolist()


@pytest.mark.parametrize("format", FORMATS)
def test_reads_every_format_it_names(format):
    grey = Image.new("RGB", (16, 8), (100, 100, 100))
    image = decode_image(encode(grey, format))
    assert (image.mode, image.size) == ("RGB", (16, 8))
    assert abs(np.asarray(image).astype(int) - 100).max() <= 2


def test_reads_a_path_and_an_open_image(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png") == COLOURS.tolist()
    assert pixels(Image.fromarray(COLOURS)) == COLOURS.tolist()


def test_turns_the_image_as_its_exif_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    wide = Image.new("RGB", (20, 10))
    assert decode_image(encode(wide, "JPEG", exif=exif)).size == (10, 20)


def test_lays_transparency_on_white():
    assert pixels(encode(Image.new("RGBA", (1, 1), (255, 0, 0, 0)))) == [[[255, 255, 255]]]
    assert pixels(encode(Image.new("LA", (1, 1), (0, 0)))) == [[[255, 255, 255]]]
    ((half,),) = pixels(encode(Image.new("RGBA", (1, 1), (255, 0, 0, 128))))
    assert half == pytest.approx([255, 127, 127], abs=1)


def test_lays_a_transparent_palette_entry_on_white():
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 200, 0, 0])
    image.putpixel((1, 0), 1)
    assert pixels(encode(image, transparency=0)) == [[[255, 255, 255], [200, 0, 0]]]


def test_reads_one_bit_palette_and_cmyk():
    assert pixels(encode(Image.new("1", (1, 1), 1))) == [[[255, 255, 255]]]
    assert pixels(encode(Image.fromarray(COLOURS).quantize(4)))[0][0] == [250, 10, 20]
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert pixels(encode(cmyk, "TIFF"))[0][0] == [255, 0, 0]


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_scales_16_bit_grey_instead_of_clipping_it(format):
    values = np.array([[0, 257, 32_896, 65_535]], np.uint16)
    (row,) = pixels(encode(Image.fromarray(values), format))
    assert [pixel[0] for pixel in row] == [0, 1, 128, 255]


def test_takes_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    content = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(content)[0][0] == [255, 0, 0]


def test_refuses_float_pixels():
    with pytest.raises(DataError, match="floats") as caught:
        decode_image(encode(Image.new("F", (2, 2)), "TIFF"))
    assert "16-bit" in caught.value.hint


def test_refuses_32_bit_values():
    with pytest.raises(DataError, match="from 0 to 70000"):
        decode_image(Image.fromarray(np.array([[0, 70_000]], np.int32)))


@pytest.mark.parametrize("side", [7_072, 12_000, 60_000])
def test_refuses_a_huge_image_by_its_header(tmp_path, side):
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    file = tmp_path / "bomb.png"
    # There are no pixels to decode: only a refusal by the header can say "50 million".
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b""))
    with pytest.raises(DataError, match=r"bomb\.png.* 50 million"):
        decode_image(file)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"])
def test_names_a_truncated_file_and_the_reason(tmp_path, format):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = encode(Image.fromarray(noise), format)
    file = tmp_path / "cut.img"
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"cut\.img"):
        decode_image(file)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty"), (b"hello, world", "known format"), (b"\x89PNG\r\n\x1a\n", "cut")],
)
def test_names_an_empty_or_foreign_file_and_the_reason(tmp_path, content, reason):
    file = tmp_path / "cut.png"
    file.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        decode_image(file)


def test_refuses_a_format_that_is_not_named():
    with pytest.raises(DataError, match="known format"):
        decode_image(encode(Image.new("RGB", (4, 4)), "TGA"))


def test_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        decode_image(tmp_path / "none.png")


def test_a_given_name_is_used_in_the_error():
    with pytest.raises(DataError, match=r"row 17 of list\.csv"):
        decode_image(b"", name="row 17 of list.csv")
