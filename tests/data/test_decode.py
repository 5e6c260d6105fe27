import os
import tracemalloc
import warnings

import numpy as np
import pytest
from PIL import Image, ImageFile

from peerdg.data.decode import IMAGE_FORMATS, UnusableImage, cores, decode_image, in_parallel
from peerdg.errors import DataError
from tests.data.image_files import encode, picture
from tests.data.odd_files import TABLE, frames

COLOURS = np.array([[[250, 10, 20], [10, 250, 20]], [[10, 20, 250], [250, 250, 10]]], np.uint8)


def pixels(source) -> list:
    return np.asarray(decode_image(source)).tolist()


@pytest.mark.parametrize("format", IMAGE_FORMATS)
def test_reads_every_format_it_names(format):
    grey = Image.new("RGB", (16, 8), (100, 100, 100))
    image = decode_image(encode(grey, format))
    assert (image.mode, image.size) == ("RGB", (16, 8))
    assert abs(np.asarray(image).astype(int) - 100).max() <= 2


def test_reads_a_path_and_an_open_image(tmp_path):
    Image.fromarray(COLOURS).save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png") == COLOURS.tolist()
    assert pixels(Image.fromarray(COLOURS)) == COLOURS.tolist()


def lossless(image: Image.Image, format: str, **options) -> bytes:
    return encode(image, format, **({"lossless": True} if format == "WEBP" else {}), **options)


# For each orientation: what the camera did to the upright image before it stored it.
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
@pytest.mark.parametrize("orientation", STORED)
def test_every_orientation_is_turned_upright_to_the_pixel(format, orientation):
    upright = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert pixels(lossless(stored, format, exif=exif)) == upright.tolist()


@pytest.mark.parametrize("orientation", [0, 9, 4711])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(COLOURS)
    assert pixels(encode(image, exif=exif)) == COLOURS.tolist()


@pytest.mark.filterwarnings("ignore")  # Pillow's, of odd metadata
@pytest.mark.parametrize("odd", TABLE, ids=lambda odd: odd.kind)
def test_every_odd_file_comes_out_as_the_table_says(odd, tmp_path):
    file = tmp_path / f"odd{odd.suffix}"
    file.write_bytes(odd.make())
    if odd.reason is not None:
        with pytest.raises(UnusableImage, match=odd.reason) as caught:
            decode_image(file)
        assert str(file) in caught.value.message
        return
    image = decode_image(file)
    expected = np.asarray(odd.expected.convert("RGB")).astype(float)
    found = np.asarray(image).astype(float)
    assert (image.mode, found.shape) == ("RGB", expected.shape)
    assert abs(found.mean((0, 1)) - expected.mean((0, 1))).max() <= odd.tolerance
    if odd.tolerance == 0:
        assert np.array_equal(found, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("odd", [odd for odd in TABLE if odd.reason == "pixels"])
def test_a_bomb_is_refused_without_unpacking_it(odd, monkeypatch):
    content = odd.make()
    unpacked = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: unpacked.append(image.size))
    tracemalloc.start()
    with pytest.raises(UnusableImage):
        decode_image(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert unpacked == []


def test_the_limit_of_pixels_can_be_changed():
    content = encode(Image.new("L", (200, 100)))
    assert decode_image(content, max_pixels=20_000).size == (200, 100)
    with pytest.raises(UnusableImage, match="200 x 100 pixels"):
        decode_image(content, max_pixels=19_999)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(UnusableImage, match="not a file"):
        decode_image(tmp_path / "pipe.jpg")


def test_a_folder_and_a_huge_file_are_refused(tmp_path):
    with pytest.raises(UnusableImage, match="not a file"):
        decode_image(tmp_path)
    with (tmp_path / "a.tif").open("wb") as file:
        file.truncate(600 * 2**20)  # takes no room on the disk
    with pytest.raises(UnusableImage, match="600 MB"):
        decode_image(tmp_path / "a.tif")


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_scales_16_bit_grey_instead_of_clipping_it(format):
    values = np.array([[0, 257, 32_896, 65_535]], np.uint16)
    (row,) = pixels(encode(Image.fromarray(values), format))
    assert [pixel[0] for pixel in row] == [0, 1, 128, 255]


def test_refuses_32_bit_values():
    with pytest.raises(DataError, match="from 0 to 70000"):
        decode_image(Image.fromarray(np.array([[0, 70_000]], np.int32)))


def test_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        decode_image(tmp_path / "none.png")


def test_a_given_name_is_used_in_the_error():
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


def is_image(number: int) -> bool:
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
    outcomes = [is_image(number) for number in range(2000)]
    # Mutations that always or never matter would test nothing.
    assert 0.1 < np.mean(outcomes) < 0.9
