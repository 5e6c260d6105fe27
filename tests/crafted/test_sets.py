from pathlib import Path

import numpy as np
import pytest
import torch

from peerdg.crafted import DISJOINT, FAMILIES, RANDAUGMENT, sets
from peerdg.crafted.operation import (
    UNCHANGED,
    Operation,
    between,
    distort,
    either,
    pixels,
    randint,
    signed,
)
from peerdg.crafted.sets import craft, crafted_domains
from peerdg.data.domain import Domain

OPERATIONS = [operation for family in FAMILIES for operation in sets.OPERATIONS[family]]


def photo(side: int, *, seed: int = 0) -> np.ndarray:
    """Discs of random colors on a color gradient with some texture, as float32."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    image = np.stack([200 * y, 120 + 60 * x, 220 - 150 * y], axis=-1)
    for cy, cx, radius, *color in rng.random((6, 6)):
        inside = np.hypot(y - cy, x - cx) < 0.1 + 0.15 * radius
        image[inside] = np.array(color) * 255
    image += rng.normal(0, 6, image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.float32)


def digit(side: int = 32) -> np.ndarray:
    """A soft gray ring on black."""
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    ring = np.clip(3 - np.abs(np.hypot(y, 1.4 * x) - side / 3.5), 0, 1) * 255
    return np.rint(ring)[..., None].repeat(3, axis=2).astype(np.float32)


def domain(n: int = 8, *, side: int = 32) -> Domain:
    images = np.stack([photo(side, seed=i) for i in range(n)]).astype(np.uint8)
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    return Domain("validation", ("a", "b", "c"), tensor, torch.arange(n) % 3)


def change(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(np.float64(a) - np.float64(b)).mean())


def test_every_operation_distorts_a_photo_and_leaves_its_argument_alone():
    image = photo(96)
    before = image.copy()
    for operation in OPERATIONS:
        for seed in range(3):
            result = operation(image, np.random.default_rng(seed))
            assert result.shape == image.shape and result.dtype == np.float32, operation.name
            assert 0 <= result.min() <= result.max() <= 255, operation.name  # NaN does not pass
            assert np.array_equal(result, np.rint(result)), operation.name
            assert change(result, image) > 2, operation.name
            assert result.std() > 3, operation.name  # something is left to see
        assert np.array_equal(image, before), operation.name


@pytest.mark.parametrize("size", [(8, 8), (20, 31)])
def test_every_operation_accepts_small_and_oblong_images(size):
    image = photo(40)[: size[0], : size[1]]
    for operation in OPERATIONS:
        assert operation(image, np.random.default_rng(0)).shape == image.shape, operation.name


def test_black_images_are_accepted():
    black = torch.zeros(3, 3, 16, 16, dtype=torch.uint8)
    for family in FAMILIES:
        assert craft(black, family).shape == black.shape


def test_every_family_changes_gray_digits():
    image = digit()
    for family in set(FAMILIES) - {"artistic"}:
        for seed in range(20):
            result = distort(image, sets.OPERATIONS[family], np.random.default_rng(seed))
            assert change(result, image) >= UNCHANGED, family


def test_an_operation_without_effect_is_replaced_by_another():
    nothing = Operation("nothing", lambda image, rng: image)
    invert = Operation("invert", lambda image, rng: 255 - image)
    for seed in range(6):
        result = distort(digit(), [nothing, nothing, invert], np.random.default_rng(seed))
        assert np.array_equal(result, 255 - digit())


def test_small_images_skip_operations_that_destroy_them():
    jigsaw = Operation("jigsaw", lambda image, rng: 255 - image, smallest=64)
    dim = Operation("dim", lambda image, rng: image / 2)
    table = [jigsaw, dim]
    for seed in range(6):
        drawn = distort(digit(32), table, np.random.default_rng(seed))
        assert drawn.max() <= 128
    large = [distort(digit(64), table, np.random.default_rng(s)).max() for s in range(6)]
    assert max(large) == 255


def test_strengths_are_in_range_and_lengths_scale_with_the_image():
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert 2 <= between(2, 3)(rng, 1) <= 3
        assert randint(1, 2)(rng, 1) in (1, 2)
        assert 50 <= abs(signed(between(50, 60))(rng, 1)) <= 60
        assert not 0.3 < either(between(0.1, 0.3), between(1.8, 2))(rng, 1) < 1.8
        assert 1 <= pixels(10, 20)(rng, 0.1) <= 2
        assert pixels(10, 20, at_least=3)(rng, 0.1) == 3
    assert {randint(1, 2)(rng, 1) for _ in range(50)} == {1, 2}
    assert {np.sign(signed(between(1, 2))(rng, 1)) for _ in range(50)} == {-1, 1}


def test_the_sets_are_reproducible_and_depend_on_the_seed():
    images = domain().images
    for family in FAMILIES:
        first = craft(images, family)
        assert torch.equal(first, craft(images, family))
        assert not torch.equal(first, craft(images, family, seed=1))


def test_a_copy_depends_on_the_position_but_not_on_other_images():
    images = domain().images
    assert torch.equal(craft(images, "weather")[:3], craft(images[:3], "weather"))
    same = images[:1].repeat(6, 1, 1, 1)
    assert len({tuple(image.flatten().tolist()) for image in craft(same, "arithmetic")}) > 1


def test_crafted_domains_keep_labels_classes_and_order():
    validation = domain()
    crafted = crafted_domains(validation)
    assert list(crafted) == [f"crafted:{family}" for family in FAMILIES]
    for name, copy in crafted.items():
        assert copy.name == name
        assert copy.classes == validation.classes
        assert torch.equal(copy.labels, validation.labels)
        assert copy.images.shape == validation.images.shape
        assert copy.images.dtype == torch.uint8
        assert change(copy.images.numpy(), validation.images.numpy()) > UNCHANGED


def test_families_are_sorted_and_unknown_ones_rejected():
    chosen = crafted_domains(domain(2), families=["edges", "blur"])
    assert list(chosen) == ["crafted:blur", "crafted:edges"]
    with pytest.raises(ValueError):
        crafted_domains(domain(2), families=["blurr"])


def test_the_sets_are_made_once_per_content_family_and_seed(monkeypatch):
    validation = domain(4)
    first = crafted_domains(validation, seed=7, families=["blur"])
    made = []

    def count(images, family, *, seed):
        made.append(family)
        return craft(images, family, seed=seed)

    monkeypatch.setattr(sets, "craft", count)
    again = crafted_domains(domain(4), seed=7, families=["blur"])
    assert made == []
    assert torch.equal(first["crafted:blur"].images, again["crafted:blur"].images)
    crafted_domains(validation, seed=8, families=["blur"])
    crafted_domains(domain(5), seed=7, families=["blur"])
    crafted_domains(validation, seed=7, families=["edges"])
    assert made == ["blur", "blur", "edges"]


def test_six_families_do_not_overlap_randaugment():
    assert DISJOINT == ("artistic", "blur", "convolutional", "edges", "segmentation", "weather")
    assert not set(DISJOINT) & RANDAUGMENT


def test_the_documentation_lists_every_operation_of_every_family():
    page = Path(__file__).parents[2] / "docs" / "crafted-validation.md"
    for family in FAMILIES:
        row = next(
            line for line in page.read_text().splitlines() if line.startswith(f"| {family} |")
        )
        listed = row.split("|")[2].strip().split(", ")
        assert listed == [operation.name for operation in sets.OPERATIONS[family]]
