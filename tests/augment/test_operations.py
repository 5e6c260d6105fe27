"""The reference is torchvision itself, called as its RandAugment calls it, image by image.

Color, contrast and sharpness end in a multiply-add, which torchvision rounds once, except on a CPU
for the last values of a row that do not fill a vector register (see `operations.multiply_add`). For
these three, `without_remainder` gives torchvision an equivalent image whose rows fill the
registers, and the comparison is exact for every size.
"""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageOps

from peerdg._vision import transforms
from peerdg.augment import geometry
from peerdg.augment import operations as op
from peerdg.augment.geometry import CUTOUT_COLOR, move_rows, row_starts, sources
from peerdg.augment.operations import FixedCurve, gray

TORCHVISION = transforms.RandAugment()
FUNCTIONS = {
    "Identity": op.identity,
    "ShearX": geometry.shear_x,
    "ShearY": geometry.shear_y,
    "TranslateX": geometry.translate_x,
    "TranslateY": geometry.translate_y,
    "Rotate": geometry.rotate,
    "Brightness": op.brightness,
    "Color": op.color,
    "Contrast": op.contrast,
    "Sharpness": op.sharpness,
    "Posterize": op.posterize,
    "Solarize": op.solarize,
    "AutoContrast": op.autocontrast,
    "Equalize": op.equalize,
    "Invert": op.invert,
}
FIXED = [name for name, function in FUNCTIONS.items() if isinstance(function, FixedCurve)]
MULTIPLY_ADD = ("Color", "Contrast", "Sharpness")
SIZES = [(1, 1), (2, 5), (3, 3), (4, 7), (16, 16), (28, 28), (32, 32), (33, 47)]
VECTOR = 32  # float32 values in the two registers that the widest CPU loop fills at a time


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Use one thread. Each further thread would start in a row and leave another remainder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def torchvision(name, image, strength):
    return TORCHVISION._apply_image_or_video_transform(
        image, name, strength, interpolation="nearest", fill={torch.Tensor: None}
    )


def without_remainder(name, image, strength):
    """torchvision on an image that differs outside the compared part only."""
    height, width = image.shape[-2:]
    if name == "Sharpness":  # appended columns are seen by the last column, which is border
        if min(height, width) <= 2:
            return image
        wide = torch.nn.functional.pad(image, (0, -(width - 2) % VECTOR))
        result = torchvision(name, wide, strength)[..., :width]
        result[..., -1] = image[..., -1]
        return result
    # Repeated `VECTOR` times, an image keeps its mean exactly.
    return torchvision(name, image.repeat(1, 1, VECTOR), strength)[..., :width]


def expected(name, images, strengths):
    reference = without_remainder if name in MULTIPLY_ADD else torchvision
    pairs = zip(images, strengths.tolist(), strict=True)
    return torch.stack([reference(name, image, strength) for image, strength in pairs])


def make_images(seed, height, width):
    """Noise, dark noise, few values, gray, black, white, one color, two values, gradients."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (12, 3, height, width), dtype=torch.uint8, generator=generator)
    noise[1] //= 16
    noise[2] = noise[2] // 64 * 64 + 7
    noise[3] = noise[3, :1]
    noise[4] = 0
    noise[5] = 255
    noise[6] = torch.tensor([12, 200, 77], dtype=torch.uint8).view(3, 1, 1)
    noise[7] = (noise[7] > 127).to(torch.uint8) * 255
    noise[8] = (torch.arange(height * width) % 256).view(height, width)
    noise[9, 1] = 40
    noise[10] = 255 - noise[10] // 16
    return noise


def all_strengths(name, height, width, bins=31):
    """Every magnitude of torchvision's grid, with both signs if it has one."""
    grid, signed = TORCHVISION._AUGMENTATION_SPACE.get(name, (lambda *_: None, False))
    values = grid(bins, height, width)
    if values is None:
        return torch.zeros(1, dtype=torch.float64)
    values = values.double()
    return torch.cat((values, -values)) if signed else values


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from(SIZES), shift=st.integers(0, 61))
@example(seed=0, size=(32, 32), shift=18)
@example(seed=0, size=(33, 47), shift=49)
@example(seed=0, size=(3, 3), shift=30)
def test_equals_torchvision_bit_for_bit_with_a_strength_per_image(name, seed, size, shift):
    images = make_images(seed, *size)
    grid = all_strengths(name, *size)
    strengths = grid[(shift + 5 * torch.arange(len(images))) % len(grid)]
    result = FUNCTIONS[name](images, strengths)
    assert result.dtype == torch.uint8
    assert torch.equal(result, expected(name, images, strengths))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_torchvision_at_every_magnitude_and_sign(name):
    strengths = all_strengths(name, 32, 32)
    images = make_images(1, 32, 32)[:1].expand(len(strengths), -1, -1, -1)
    result = FUNCTIONS[name](images, strengths)
    assert torch.equal(result, expected(name, images, strengths))


@pytest.mark.parametrize("name", [*FIXED, "SolarizeAdd"])
def test_a_fixed_curve_is_the_same_with_and_without_its_table(name):
    function = FUNCTIONS.get(name, op.solarize_add)
    strengths = {
        "SolarizeAdd": torch.linspace(0, 110, 31, dtype=torch.float64),
        "Solarize": torch.linspace(0, 256 / 255, 301, dtype=torch.float64),
        "Posterize": torch.arange(9, dtype=torch.float64),
    }.get(name, torch.linspace(-0.99, 0.99, 199, dtype=torch.float64))
    every_value = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    images = every_value.expand(len(strengths), 3, -1, -1).contiguous()
    pixels = images.flatten(2)
    looked_up = op.look_up(function.table(strengths), pixels, torch.empty_like(pixels))
    assert torch.equal(looked_up.view(images.shape), function(images, strengths))


@pytest.mark.parametrize("size", [(1, 1), (3, 8), (8, 3), (64, 64), (70, 31)])
@pytest.mark.parametrize("name", ["ShearX", "TranslateX", "TranslateY"])
def test_maps_that_shift_rows_move_rows_as_they_move_pixels(name, size):
    strengths = all_strengths(name, *size)
    images = make_images(7, *size)[:1].expand(len(strengths), -1, -1, -1).contiguous()
    source = sources(FUNCTIONS[name].matrix(strengths, *size), *size)
    starts, faithful = row_starts(source, *size)
    # Rounding may bend a row of a shear, which must be detected.
    assert faithful.float().mean() > 0.5 if name == "ShearX" else faithful.all()
    moved = move_rows(images, starts, torch.arange(len(images)), torch.empty_like(images))
    assert torch.equal(moved[faithful], FUNCTIONS[name](images, strengths)[faithful])


def test_a_map_that_bends_or_mixes_rows_is_not_taken_for_a_shift():
    for name in ("ShearY", "Rotate"):
        strength = all_strengths(name, 32, 32)[[9, 30]]
        source = sources(FUNCTIONS[name].matrix(strength, 32, 32), 32, 32)
        assert not row_starts(source, 32, 32)[1].any()


@pytest.mark.parametrize("name", MULTIPLY_ADD)
def test_differs_from_torchvision_in_remainders_by_one_level_and_rarely(name):
    images = torch.cat([make_images(seed, 32, 32) for seed in range(20)])
    grid = all_strengths(name, 32, 32)
    strengths = grid[torch.arange(len(images)) % len(grid)]
    result = FUNCTIONS[name](images, strengths).int()
    plain = [torchvision(name, i, s) for i, s in zip(images, strengths.tolist(), strict=True)]
    difference = (result - torch.stack(plain).int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 1e-5


def test_solarize_add_adds_to_every_pixel_and_then_solarizes_as_pil_does():
    strengths = torch.arange(31, dtype=torch.float64) * 110 / 30
    every_value = np.arange(256).reshape(16, 16)
    images = torch.from_numpy(every_value).to(torch.uint8).expand(len(strengths), 3, 16, 16)
    for strength, result in zip(strengths, op.solarize_add(images, strengths), strict=True):
        added = np.clip(every_value + float(strength), 0, 255).astype(np.uint8)
        reference = np.array(ImageOps.solarize(Image.fromarray(added), threshold=128))
        assert (result.numpy() == reference).all()


@settings(max_examples=20, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    sides=st.lists(st.floats(0, 50), min_size=12, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_cutout_equals_rectangles_drawn_by_pil(size, sides, seed):
    height, width = size
    images = make_images(seed, height, width)
    strengths = torch.tensor(sides, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    centers = torch.rand(len(images), 2, dtype=torch.float64, generator=generator)
    result = geometry.cutout(images, strengths, centers)
    for k, side in enumerate(sides):
        picture = Image.fromarray(images[k].permute(1, 2, 0).numpy().copy())
        left = int(max(0, float(centers[k, 0]) * width - side / 2))
        top = int(max(0, float(centers[k, 1]) * height - side / 2))
        columns = [x for x in range(width) if left <= x < left + side]
        rows = [y for y in range(height) if top <= y < top + side]
        if columns and rows:
            corners = (columns[0], rows[0], columns[-1], rows[-1])
            ImageDraw.Draw(picture).rectangle(corners, fill=CUTOUT_COLOR)
        drawn = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        assert torch.equal(result[k], drawn.view(height, width, 3).permute(2, 0, 1))


def test_gray_is_torchvisions_luma():
    generator = torch.Generator().manual_seed(6)
    values = torch.randint(0, 256, (1, 3, 512, 512), dtype=torch.uint8, generator=generator)
    luma = transforms.functional.rgb_to_grayscale(values[0])
    assert torch.equal(gray(values).to(torch.uint8), luma)


def test_warps_refuse_images_whose_pixels_float32_cannot_number():
    images = torch.empty(1, 3, 4096, 4096, dtype=torch.uint8, device="meta")
    with pytest.raises(ValueError, match="4096 x 4096"):
        geometry.rotate(images, torch.zeros(1, dtype=torch.float64, device="meta"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_leaves_its_argument_as_it_is_and_takes_any_layout(name):
    images = make_images(5, 14, 15)
    before = images.clone()
    strengths = all_strengths(name, 14, 15)[-1:].expand(len(images))
    result = FUNCTIONS[name](images, strengths)
    assert torch.equal(images, before)
    other = FUNCTIONS[name](images.contiguous(memory_format=torch.channels_last), strengths)
    assert torch.equal(other, result)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_needs_no_data_on_the_host(name):
    images = torch.empty(4, 3, 10, 11, dtype=torch.uint8, device="meta")
    result = FUNCTIONS[name](images, torch.zeros(4, dtype=torch.float64, device="meta"))
    assert (result.shape, result.dtype, result.device) == (
        images.shape,
        torch.uint8,
        images.device,
    )
