from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peerdg._vision import transforms
from peerdg.augment import operations
from peerdg.augment.randaugment import TABLES, RandAugment, Scale
from peerdg.errors import ConfigError

SETS = sorted(TABLES)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(count=32, height=16, width=16):
    shape = (count, 3, height, width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded(99))


def strengths(operations, **changes):
    values = {"magnitude": 9, "height": 32, "width": 32, "absolute_pixels": False}
    scale = Scale(**{**values, **changes})
    return {row.name: row.strength(scale) for row in TABLES[operations]}


def test_the_table_is_torchvisions_at_every_magnitude():
    space = transforms.RandAugment._AUGMENTATION_SPACE
    assert {row.name: row.signed for row in TABLES["torchvision"]} == {
        name: signed for name, (_, signed) in space.items()
    }
    for magnitude in range(31):
        ours = strengths("torchvision", magnitude=magnitude, height=28, width=45)
        for name, (grid, _) in space.items():
            values = grid(31, 28, 45)
            assert ours[name] == (0.0 if values is None else float(values[magnitude])), name


def test_the_sdg_table_has_the_published_strengths():
    ours = strengths("sdg", magnitude=4, height=224, width=224)
    assert len(ours) == 16
    assert ours["Brightness"] + 1 == pytest.approx(0.34)
    assert ours["Posterize"] == 1
    assert ours["Solarize"] * 255 == pytest.approx(256 * 4 / 30)
    assert ours["SolarizeAdd"] == pytest.approx(110 * 4 / 30)
    assert ours["Cutout"] == pytest.approx(40 * 4 / 30)
    assert ours["TranslateX"] == pytest.approx(100 * 4 / 30)
    assert ours["Rotate"] == pytest.approx(4.0)
    assert ours["ShearY"] == pytest.approx(0.04)
    signed = {row.name for row in TABLES["sdg"] if row.signed}
    assert signed == {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}


def test_lengths_in_pixels_scale_with_the_side_by_default():
    scaled = strengths("sdg", magnitude=30, height=112, width=56)
    assert (scaled["TranslateX"], scaled["TranslateY"], scaled["Cutout"]) == (25, 50, 10)
    literal = strengths("sdg", magnitude=30, height=112, width=56, absolute_pixels=True)
    assert (literal["TranslateX"], literal["TranslateY"], literal["Cutout"]) == (100, 100, 40)


def one_by_one(augment, images, generator):
    """The same draws, applied to each image alone, one operation after the other."""
    table = TABLES[augment.operations]
    scale = Scale(augment.magnitude, *images.shape[-2:], augment.absolute_pixels)
    draws = augment._draw(len(images), generator)
    results = images.clone()
    for operation, flipped, center in zip(*draws, strict=True):
        for k in range(len(images)):
            row = table[int(operation[k])]
            sign = -1 if row.signed and flipped[k] else 1
            strength = torch.tensor([sign * row.strength(scale)], dtype=torch.float64)
            extra = [center[k : k + 1]] if row.placed else []
            results[k : k + 1] = row.function(results[k : k + 1], strength, *extra)
    return results


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([(3, 3), (16, 16), (9, 14)]),
    magnitude=st.integers(0, 30),
    num_ops=st.integers(0, 4),
    absolute=st.booleans(),
)
def test_a_batch_equals_its_images_one_by_one(name, seed, size, magnitude, num_ops, absolute):
    augment = RandAugment(num_ops, magnitude, operations=name, absolute_pixels=absolute)
    images = batch(24, *size)
    assert torch.equal(augment(images, seeded(seed)), one_by_one(augment, images, seeded(seed)))


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    num_ops=st.integers(0, 3),
    channels_last=st.booleans(),
)
def test_batches_augmented_together_equal_each_alone(seed, sizes, num_ops, channels_last):
    augment = RandAugment(num_ops, operations="sdg")
    batches = list(batch(sum(sizes)).split(sizes))
    if channels_last:
        batches = [images.contiguous(memory_format=torch.channels_last) for images in batches]
    views = augment.augment_batches(batches, [seeded(seed + k) for k in range(len(sizes))])
    for number, (images, ours) in enumerate(zip(batches, views, strict=True)):
        assert torch.equal(ours, augment(images, seeded(seed + number)))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("height", "width"), [(64, 64), (97, 130), (400, 450)])
def test_large_images_and_large_batches_equal_their_images_one_by_one(name, height, width):
    # Large enough for the paths of large images and for several portions.
    augment = RandAugment(3, 13, operations=name)
    images = batch(60 if height < 200 else 8, height, width)
    assert torch.equal(augment(images, seeded(3)), one_by_one(augment, images, seeded(3)))


@pytest.mark.parametrize("name", SETS)
def test_a_batch_that_is_cut_into_portions_gives_the_same_images(name, monkeypatch):
    augment = RandAugment(3, operations=name)
    whole = augment(batch(64), seeded(4))
    monkeypatch.setattr(operations, "PORTION", 3000)
    monkeypatch.setattr(operations, "LARGE", 100)
    assert torch.equal(augment(batch(64), seeded(4)), whole)
    first = augment(batch(64), seeded(5))
    before = first.clone()
    augment(batch(64), seeded(6))
    assert torch.equal(first, before)  # results are not in reused memory


def test_two_threads_do_not_disturb_each_other(monkeypatch):
    monkeypatch.setattr(operations, "LARGE", 100)
    augment, images = RandAugment(3), batch(64)
    seeds = range(12)
    alone = [augment(images, seeded(seed)) for seed in seeds]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda seed: augment(images, seeded(seed)), seeds))
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("name", SETS)
def test_operations_are_drawn_uniformly_and_signs_evenly(name):
    rounds, size, count = 4, 5000, len(TABLES[name])
    operations, flips, _ = RandAugment(rounds, operations=name)._draw(size, seeded())
    for operation, flipped in zip(operations, flips, strict=True):
        expected = size / count
        counts = torch.bincount(operation, minlength=count)
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert statistic < 40  # beyond 99.9 % of chi-square with 15 degrees of freedom
        assert abs(flipped.double().mean() - 0.5) < 4 * 0.5 / size**0.5
    repeated = (operations[0] == operations[1]).double().mean()
    assert abs(repeated - 1 / count) < 4 * (1 / count / size) ** 0.5  # with replacement


def test_the_number_of_draws_does_not_depend_on_what_was_drawn():
    states = set()
    for magnitude, names in ((0, "torchvision"), (30, "sdg")):
        generator = seeded(7)
        RandAugment(2, magnitude, operations=names)(batch(), generator)
        states.add(int(torch.randint(2**60, (), generator=generator)))
    assert len(states) == 1


@pytest.mark.parametrize("name", SETS)
def test_channels_last_gives_the_same_values_in_its_own_layout(name):
    augment = RandAugment(operations=name)
    images = batch().contiguous(memory_format=torch.channels_last)
    result = augment(images, seeded())
    assert torch.equal(result, augment(batch(), seeded()))
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert augment(batch(), seeded()).is_contiguous()


def test_the_result_can_be_trained_on():
    result = RandAugment()(batch(), seeded())
    assert not result.is_inference()
    weight = torch.ones(3, 1, 1, requires_grad=True)
    (result * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("name", SETS)
def test_runs_on_another_device_without_looking_at_the_images(name):
    images = torch.empty(40, 3, 16, 18, dtype=torch.uint8, device="meta")
    result = RandAugment(3, operations=name)(images, seeded())
    assert (result.shape, result.dtype, result.device) == (
        images.shape,
        torch.uint8,
        images.device,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_ops": -1}, "num_ops .* -1"),
        ({"magnitude": 31}, "from 0 to 30"),
        ({"operations": "sgd"}, "Did you mean 'sdg'"),
    ],
)
def test_refuses_settings_out_of_range(arguments, message):
    with pytest.raises(ConfigError, match=message):
        RandAugment(**arguments)
