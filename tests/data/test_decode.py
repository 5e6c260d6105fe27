import os
import warnings

import numpy as np
import pytest
from PIL import Image, ImageFile

from peerdg.data.decode import IMAGE_FORMATS, UnusableImage, cores, decode_image, in_parallel
from peerdg.errors import DataError
from tests.data.image_files import encode, picture
from tests.data.odd_files import TABLE, frames

COLORS = np.array([[[250, 10, 20], [10, 250, 20]], [[10, 20, 250], [250, 250, 10]]], np.uint8)


def pixels(source) -> list:
    return np.asarray(decode_image(source)).tolist()


def test_reads_every_listed_format():
    gray = Image.new("RGB", (16, 8), (100, 100, 100))
    for format in IMAGE_FORMATS:
        image = decode_image(encode(gray, format))
        assert (image.mode, image.size) == ("RGB", (16, 8))
        assert abs(np.asarray(image).astype(int) - 100).max() <= 2


def test_reads_a_path_and_an_open_image(tmp_path):
    Image.fromarray(COLORS).save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png") == COLORS.tolist()
    assert pixels(Image.fromarray(COLORS)) == COLORS.tolist()


# Transformation of the upright image before storage, for each EXIF orientation.
STORED = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, 1),
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: np.rot90(x, -1),
}


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_every_orientation_is_turned_upright_exactly(format):
    upright = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    options = {"lossless": True} if format == "WEBP" else {}
    for orientation in (*STORED, 0, 9, 4711):  # the last ones do not exist
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = np.ascontiguousarray(STORED.get(orientation, STORED[1])(upright))
        content = encode(Image.fromarray(stored), format, exif=exif, **options)
        assert pixels(content) == upright.tolist(), orientation


@pytest.mark.filterwarnings("ignore")  # Pillow's, of odd metadata
@pytest.mark.parametrize("odd", TABLE, ids=lambda odd: odd.kind)
def test_every_odd_file_is_decoded_as_expected(odd, tmp_path):
    file = tmp_path / f"odd{odd.suffix}"
    file.write_bytes(odd.make())
    if odd.reason is not None:
        with pytest.raises(UnusableImage, match=odd.reason) as caught:
            decode_image(file)
        assert str(file) in caught.value.message
        return
    image = decode_image(file)
    expected = np.asarray(odd.expected.convert("RGB")).astype(float)
    pixels = np.asarray(image).astype(float)
    assert (image.mode, pixels.shape) == ("RGB", expected.shape)
    assert abs(pixels.mean((0, 1)) - expected.mean((0, 1))).max() <= odd.tolerance
    if odd.tolerance == 0:
        assert np.array_equal(pixels, expected)


@pytest.mark.filterwarnings("ignore")
def test_a_decompression_bomb_is_rejected_before_decoding(monkeypatch):
    unpacked = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: unpacked.append(image.size))
    for content in [odd.make() for odd in TABLE if odd.reason == "pixels"]:
        with pytest.raises(UnusableImage):
            decode_image(content)
    assert unpacked == []


def test_the_pixel_limit_can_be_changed():
    content = encode(Image.new("L", (200, 100)))
    assert decode_image(content, max_pixels=20_000).size == (200, 100)
    with pytest.raises(UnusableImage, match="200 x 100 pixels"):
        decode_image(content, max_pixels=19_999)


def test_pipes_and_large_files_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would wait forever
    (tmp_path / "folder.jpg").mkdir()
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(600 * 2**20)  # takes no room on the disk
    reasons = {"pipe": "not a file", "folder": "not a file", "huge": "600 MB", "none": "No such"}
    for name, reason in reasons.items():
        with pytest.raises(UnusableImage, match=reason):
            decode_image(tmp_path / f"{name}.jpg")


def test_16_bit_gray_is_scaled_not_clipped():
    values = np.array([[0, 257, 32_896, 65_535]], np.uint16)
    for format in ("PNG", "TIFF", "PPM"):
        (row,) = pixels(encode(Image.fromarray(values), format))
        assert [pixel[0] for pixel in row] == [0, 1, 128, 255]
    with pytest.raises(DataError, match="from 0 to 70000"):
        decode_image(Image.fromarray(np.array([[0, 70_000]], np.int32)))


def test_the_error_uses_the_given_name():
    with pytest.raises(DataError, match=r"row 17 of list\.csv"):
        decode_image(b"", name="row 17 of list.csv")


def test_parallel_results_keep_their_order_and_few_are_computed_ahead():
    started = []

    def task(number):
        started.append(number)
        return number

    results = in_parallel(task, range(1000))
    assert [next(results), next(results)] == [0, 1]
    results.close()
    assert len(started) <= 3 * cores() + 4


PICTURE = picture(5, (48, 32))
SEEDS = [
    *(encode(PICTURE, format) for format in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")),
    encode(PICTURE, "JPEG", progressive=True),
    encode(PICTURE.quantize(16), "PNG"),
    encode(PICTURE, "WEBP", lossless=True),
    *(encode(PICTURE, "TIFF", compression=f"{kind}") for kind in ("tiff_lzw", "jpeg")),
    *(frames(format) for format in ("GIF", "WEBP", "PNG", "TIFF")),
]


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Apply one to three changes, as made by faulty disks, networks or attackers."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        # Half of all changes hit the header, where they matter most.
        at = int(rng.integers(0, min(len(changed), 200) if rng.random() < 0.5 else len(changed)))
        end = at + int(rng.integers(1, 40))
        other = SEEDS[rng.integers(len(SEEDS))]
        parts = [
            changed[at:end][::-1],
            bytes(end - at),
            b"\xff" * 4,
            other[at : at + 200],
            changed[at:end] * 2,
            bytes([changed[at] ^ 1 << int(rng.integers(8))]) + changed[at + 1 : end],
        ]
        changed[at:end] = parts[rng.integers(len(parts))]
        if rng.random() < 0.1:
            del changed[max(at, 16) :]
    return bytes(changed)


def is_image(number: int) -> bool:
    """Return whether mutation `number` is still an image."""
    content = mutate(SEEDS[number % len(SEEDS)], np.random.default_rng(number))
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


def test_damaged_images_are_decoded_or_rejected():
    outcomes = [is_image(number) for number in range(1500)]
    # Mutations that always or never matter would test nothing.
    assert 0.1 < np.mean(outcomes) < 0.9
