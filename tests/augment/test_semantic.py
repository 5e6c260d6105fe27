"""References: torchvision, PIL, scipy, colorsys, and closed forms written as plain loops."""

import colorsys
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from scipy.ndimage import affine_transform
from torch import Tensor

from peerdg._vision import transforms
from peerdg.augment.semantic import HOLES, Chain, Chains, Transformation, semantic_transformations

vision = transforms.functional
BILINEAR = transforms.InterpolationMode.BILINEAR
ALL = {each.name: each for each in semantic_transformations()}
PIL_CONTRAST = {each.name: each for each in semantic_transformations(mean_contrast=True)}
CHAINS = Chains(tuple(ALL.values()))
RANGES = {
    "hsv": (-1, 1, 3),
    "rotate": (0.01, 1, 1),
    "translate": (-1, 1, 2),
    "invert": (0.5, 1, 1),
    "shear": (-0.3, 0.3, 2),
    "contrast": (0.1, 1.9, 1),
    "sharpness": (0, 1, 1),
    "solarize-add": (-0.5, 0.5, 1),
    "scale": (0.5, 2, 1),
    "cutout": (0, 1, 3),
}


def some_images(n: int = 3, *, height: int = 11, width: int = 11, seed: int = 0) -> Tensor:
    """Random 8-bit images as floats, the first of them gray."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 3, height, width), generator=generator) / 255
    images[0] = images[0, :1]
    return images


def apply(
    transformation: Transformation, images: Tensor, parameters: list, drawn: Tensor | None = None
) -> Tensor:
    """All images with the same parameters."""
    rows = torch.tensor(parameters, dtype=images.dtype).expand(len(images), -1)
    if drawn is None:
        drawn = torch.rand(len(images), transformation.drawn, generator=torch.Generator())
    return transformation(images, rows, drawn)


def as_pil(image: Tensor) -> Image.Image:
    return Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


# Grammar


def test_ranges_and_numbers_of_parameters_are_the_published_ones():
    ranges = {e.name: (e.low, e.high, e.parameters) for e in ALL.values() if e.parameters}
    assert ranges == RANGES
    assert [name for name, each in ALL.items() if not each.parameters] == ["equalize", "posterize"]
    assert len(ALL) == 12


def test_all_chains_of_distinct_operations_with_hsv_only_first_occur_once():
    # Of n operations: HSV and then n - 1 others in any order, or others only.
    assert [len(chains) for chains in CHAINS.by_length] == [12, 11 + 11 * 10, 110 + 11 * 10 * 9]
    for length, chains in enumerate(CHAINS.by_length, start=1):
        names = [tuple(each.name for each in chain) for chain in chains]
        assert len(set(names)) == len(names)
        assert all(len(set(chain)) == length and "hsv" not in chain[1:] for chain in names)


def test_lengths_are_uniform_and_so_are_chains_of_a_length():
    generator = torch.Generator().manual_seed(0)
    drawn = [CHAINS.draw(0, generator=generator).transformations for _ in range(6000)]
    lengths = Counter(map(len, drawn))
    assert all(abs(lengths[n] - 2000) < 4 * math.sqrt(6000 * (1 / 3) * (2 / 3)) for n in (1, 2, 3))
    singles = Counter(chain[0].name for chain in drawn if len(chain) == 1)
    expected = lengths[1] / 12
    statistic = sum((singles[name] - expected) ** 2 / expected for name in ALL)
    assert statistic < 31.3  # chi-square with 11 degrees of freedom, p = 0.001
    first = sum(chain[0].name == "hsv" for chain in drawn if len(chain) == 3) / lengths[3]
    assert first == pytest.approx(110 / 1100, abs=0.03)


@given(seed=st.integers(0, 2**32), images=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_drawn_parameters_lie_in_their_ranges_and_each_image_has_its_own(seed: int, images: int):
    chain = CHAINS.draw(images, generator=torch.Generator().manual_seed(seed))
    for each, parameters, drawn in zip(
        chain.transformations, chain.parameters, chain.drawn, strict=True
    ):
        assert parameters.shape == (images, each.parameters)
        assert drawn.shape == (images, each.drawn)
        assert ((each.low <= parameters) & (parameters <= each.high)).all()
        assert len(parameters.unique()) == parameters.numel()


@given(
    seed=st.integers(0, 2**32),
    far=st.floats(-1e6, 1e6),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
)
@settings(max_examples=40, deadline=None)
def test_whatever_the_parameters_a_chain_respects_ranges_and_images_stay_images(
    seed: int, far: float, height: int, width: int
):
    chain = CHAINS.draw(2, generator=torch.Generator().manual_seed(seed))
    moved = [p + far * torch.randn(p.shape) for p in chain.parameters]
    clamped = [
        p.clamp(each.low, each.high) if each.clamped else p
        for each, p in zip(chain.transformations, moved, strict=True)
    ]
    images = some_images(2, height=height, width=width)
    made = Chain(chain.transformations, moved, chain.drawn)(images)
    assert made.shape == images.shape
    assert ((made >= 0) & (made <= 1)).all()
    assert torch.equal(made, Chain(chain.transformations, clamped, chain.drawn)(images))


def test_only_shifts_of_hsv_and_shears_leave_their_range_as_in_the_released_code():
    assert {name for name, each in ALL.items() if not each.clamped} == {"hsv", "shear"}
    images = some_images()
    for name, inside, outside in (
        ("hsv", [0.5, 1.0, 0.1], [0.5, 2.0, 0.1]),
        ("shear", [0.3, 0.0], [0.9, 0.0]),
    ):
        assert not torch.equal(apply(ALL[name], images, inside), apply(ALL[name], images, outside))
    wide = apply(ALL["cutout"], images, [3.0, -2.0, 0.5], torch.full((3, 2 * HOLES), 0.5))
    assert torch.equal(
        wide, apply(ALL["cutout"], images, [1.0, 0.0, 0.5], torch.full((3, 2 * HOLES), 0.5))
    )


def test_a_shear_onto_a_line_is_finite():
    tangents = torch.ones(3, 2, requires_grad=True)
    made = ALL["shear"](some_images(), tangents, torch.zeros(3, 0))
    (gradient,) = torch.autograd.grad(made.sum(), tangents)
    assert torch.isfinite(made).all() and torch.isfinite(gradient).all()


def test_a_chain_applies_its_operations_in_order():
    invert, contrast = ALL["invert"], ALL["contrast"]
    images = some_images()
    empty = torch.zeros(3, 0)
    ones, halves = torch.ones(3, 1), torch.full((3, 1), 0.5)
    made = Chain((invert, contrast), (ones, halves), (empty, empty))(images)
    torch.testing.assert_close(made, 0.5 * (1 - images))
    made = Chain((contrast, invert), (halves, ones), (empty, empty))(images)
    torch.testing.assert_close(made, 1 - 0.5 * images)


@pytest.mark.parametrize("name", ALL)
def test_an_image_does_not_depend_on_the_others(name: str):
    images = some_images(4)
    chain = Chain.draw([ALL[name]], 4, generator=torch.Generator().manual_seed(3))
    together = chain(images)
    for n in range(4):
        rows = slice(n, n + 1)
        alone = ALL[name](images[rows], chain.parameters[0][rows], chain.drawn[0][rows])
        torch.testing.assert_close(together[rows], alone)


# Each operation against a reference


@pytest.mark.parametrize("shift", [(0.3, 0.2, -0.1), (-1, 0.9, 0.4), (0.7, -0.8, 0.1), (1, 1, 1)])
def test_hsv_is_that_of_colorsys_with_hue_in_radians(shift: tuple[float, float, float]):
    images = some_images(height=5, width=5)
    made = apply(ALL["hsv"], images, list(shift))
    for image, got in zip(images.flatten(2), made.flatten(2), strict=True):
        for pixel, actual in zip(image.T.tolist(), got.T.tolist(), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            hue = (hue + shift[0] / (2 * math.pi)) % 1
            expected = _from_hsv(hue, saturation + shift[1], value + shift[2])
            assert actual == pytest.approx([min(1, max(0, c)) for c in expected], abs=2e-5)


def _from_hsv(hue: float, saturation: float, value: float) -> tuple[float, ...]:
    """Convert as colorsys does, but for any saturation."""
    sector, rest = int(hue * 6) % 6, hue * 6 - int(hue * 6)
    p, q, t = (value * (1 - saturation * part) for part in (1, rest, 1 - rest))
    return [
        (value, t, p), (q, value, p), (p, value, t), (p, q, value), (t, p, value), (value, p, q)
    ][sector]  # fmt: skip


@pytest.mark.parametrize("turn", [0.01, 0.13, 0.25, 0.5, 0.9])
def test_rotation_is_torchvisions(turn: float):
    images = some_images(height=9, width=12)
    expected = vision.rotate(images, 360 * turn, interpolation=BILINEAR)
    torch.testing.assert_close(apply(ALL["rotate"], images, [turn]), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("shift", [(0.5, 0.0), (-1.0, 0.3), (0.17, -0.83)])
def test_translation_is_torchvisions_by_tenths_of_the_side(shift: tuple[float, float]):
    images = some_images(height=20, width=30)
    pixels = [3.0 * shift[0], 2.0 * shift[1]]
    expected = vision.affine(images, 0.0, pixels, 1.0, [0.0, 0.0], interpolation=BILINEAR)
    made = apply(ALL["translate"], images, list(shift))
    torch.testing.assert_close(made, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.3, 2.0])
def test_scaling_is_torchvisions(factor: float):
    images = some_images(height=9, width=12)
    expected = vision.affine(images, 0.0, [0, 0], factor, [0.0, 0.0], interpolation=BILINEAR)
    torch.testing.assert_close(apply(ALL["scale"], images, [factor]), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("tangents", [(0.2, 0.0), (0.0, -0.3), (0.3, 0.25), (-0.1, 0.3)])
def test_shearing_is_the_inverse_map_of_scipy_about_the_first_pixel(tangents: tuple[float, float]):
    images = some_images(height=9, width=12)
    made = apply(ALL["shear"], images, list(tangents))
    # Rows and columns: a pixel at (y, x) goes to (y + t_y x, x + t_x y).
    back = np.linalg.inv([[1, tangents[1]], [tangents[0], 1]])
    for image, got in zip(images.flatten(0, 1), made.flatten(0, 1), strict=True):
        expected = affine_transform(image.double().numpy(), back, order=1, mode="grid-constant")
        np.testing.assert_allclose(got.numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("white", [0.5, 0.77, 1.0])
def test_inversion_subtracts_from_its_parameter(white: float):
    images = some_images()
    torch.testing.assert_close(apply(ALL["invert"], images, [white]), (white - images).clamp(min=0))


@pytest.mark.parametrize("factor", [0.1, 0.6, 1.9])
def test_contrast_multiplies_or_is_torchvisions(factor: float):
    images = some_images()
    brightened = vision.adjust_brightness(images, factor)
    torch.testing.assert_close(apply(ALL["contrast"], images, [factor]), brightened)
    expected = vision.adjust_contrast(images, factor)
    torch.testing.assert_close(apply(PIL_CONTRAST["contrast"], images, [factor]), expected)


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0])
def test_sharpness_is_torchvisions(factor: float):
    images = some_images(height=7, width=10)
    expected = vision.adjust_sharpness(images, factor)
    torch.testing.assert_close(apply(ALL["sharpness"], images, [factor]), expected)


@pytest.mark.parametrize("added", [-0.5, -0.2, 0.0, 0.31, 0.5])
def test_solarization_is_torchvisions_after_an_addition(added: float):
    images = some_images()
    expected = vision.solarize((images + added).clamp(0, 1), 0.5)
    torch.testing.assert_close(apply(ALL["solarize-add"], images, [added]), expected)


def test_equalization_is_pils():
    images = some_images(height=40, width=40)  # PIL leaves images of few pixels as they are
    made = apply(ALL["equalize"], images, [])
    assert not torch.equal(made, images)
    for image, got in zip(images, made, strict=True):
        torch.testing.assert_close(got, from_pil(ImageOps.equalize(as_pil(image))))


@pytest.mark.parametrize(("drawn", "bits"), [(0.0, 1), (0.13, 2), (0.5, 5), (0.99, 8)])
def test_posterization_is_pils_with_one_to_eight_bits(drawn: float, bits: int):
    images = some_images()
    made = apply(ALL["posterize"], images, [], torch.full((3, 1), drawn))
    for image, got in zip(images, made, strict=True):
        torch.testing.assert_close(got, from_pil(ImageOps.posterize(as_pil(image), bits)))


@pytest.mark.parametrize(
    ("pixels", "height", "width", "side"),
    [(None, 32, 32, 6), (None, 84, 90, 16), (None, 3, 3, 1), (16, 20, 32, 16), (16, 12, 12, 12)],
)
def test_cutout_paints_its_holes(pixels: int | None, height: int, width: int, side: int):
    cutout = {e.name: e for e in semantic_transformations(hole_pixels=pixels)}["cutout"]
    images = some_images(2, height=height, width=width)
    chain = Chain.draw([cutout], 2, generator=torch.Generator().manual_seed(0))
    made = chain(images)
    assert not torch.equal(chain.drawn[0][0], chain.drawn[0][1])
    for n in range(2):
        expected = images[n].clone()
        for y, x in chain.drawn[0][n].view(2, HOLES).T.tolist():
            top, left = int(y * (height - side + 1)), int(x * (width - side + 1))
            expected[:, top : top + side, left : left + side] = chain.parameters[0][n][
                :, None, None
            ]
        torch.testing.assert_close(made[n], expected)


# Gradients

INSIDE = {
    "hsv": [0.31, 0.12, -0.07],
    "rotate": [0.137],
    "translate": [0.23, -0.41],
    "invert": [0.93],
    "shear": [0.11, -0.17],
    "contrast": [1.21],
    "sharpness": [0.37],
    "solarize-add": [0.083],
    "scale": [1.37],
    "cutout": [0.2, 0.5, 0.8],
}


@pytest.mark.parametrize("name", INSIDE)
def test_parameters_have_the_gradient_of_finite_differences(name: str):
    images = 0.35 + 0.3 * some_images(2, height=6, width=5).double()
    parameters = torch.tensor(INSIDE[name], dtype=torch.float64).repeat(2, 1)
    parameters += 0.01 * torch.arange(2).view(2, 1)
    drawn = torch.rand(2, ALL[name].drawn, generator=torch.Generator().manual_seed(0))
    for each in (ALL[name], PIL_CONTRAST[name]):
        assert torch.autograd.gradcheck(
            lambda p, each=each: each(images, p, drawn), parameters.requires_grad_()
        )
        (gradient,) = torch.autograd.grad(
            each(images, parameters, drawn).square().sum(), parameters
        )
        assert (gradient != 0).all()


@pytest.mark.parametrize("name", ALL)
def test_every_operation_passes_gradients_on_to_the_one_before(name: str):
    if ALL[name].only_first:
        return
    chain = Chain.draw([ALL["rotate"], ALL[name]], 3, generator=torch.Generator().manual_seed(1))
    turns = chain.parameters[0].requires_grad_()
    (gradient,) = torch.autograd.grad(chain(some_images()).square().sum(), turns)
    assert torch.isfinite(gradient).all()
    assert (gradient != 0).any()


@pytest.mark.parametrize("name", ["equalize", "posterize"])
def test_steps_have_the_gradient_of_the_identity(name: str):
    images = some_images(height=20, width=20).requires_grad_()
    weights = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    made = apply(ALL[name], images, [], torch.full((3, ALL[name].drawn), 0.3))
    (gradient,) = torch.autograd.grad((made * weights).sum(), images)
    torch.testing.assert_close(gradient, weights)
