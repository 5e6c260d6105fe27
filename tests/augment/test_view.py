"""The reference is torchvision on each image alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peerdg._vision import transforms
from peerdg.augment import view as views
from peerdg.augment.view import Boxes, RandomView, resize, resized_crop
from peerdg.rng import generator_for

F = transforms.functional


def photos(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(
        0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=generator_for(seed, "photo")
    )


def boxes(*rows: tuple[int, int, int, int]) -> Boxes:
    return Boxes(*torch.tensor(rows).T)


@st.composite
def images_and_boxes(draw: st.DrawFn) -> tuple[torch.Tensor, Boxes]:
    # From 2 on: torch fails on images of a single column.
    height, width = draw(st.integers(2, 40)), draw(st.integers(2, 40))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        h, w = draw(st.integers(2, height)), draw(st.integers(2, width))
        rows.append((draw(st.integers(0, height - h)), draw(st.integers(0, width - w)), h, w))
    return photos(len(rows), height, width, draw(st.integers(0, 100))), boxes(*rows)


@settings(deadline=None, max_examples=40)
@given(images_and_boxes(), st.integers(2, 40))
def test_a_crop_is_torchvisions_to_one_level(drawn, size):
    images, where = drawn
    ours = resized_crop(images, where, size)
    for i, box in enumerate(zip(*where, strict=True)):
        theirs = F.resized_crop(images[i], *map(int, box), [size, size], antialias=True)
        difference = (ours[i].int() - theirs.int()).abs()
        assert difference.max() <= 1
        assert difference.float().mean() <= 0.01


def test_crops_at_the_size_of_the_benchmarks_are_torchvisions_but_for_rare_roundings():
    images = photos(8, 227, 227)
    view = RandomView(224, crop=(0.8, 1.0), flip=0.0)
    where, _ = view.draw(8, 227, 227, generator_for(0, "boxes"))
    assert where.width.min() < 224 < where.width.max()  # both smaller and larger
    ours = resized_crop(images, where, 224)
    theirs = torch.stack(
        [
            F.resized_crop(image, *map(int, box), [224, 224], antialias=True)
            for image, box in zip(images, zip(*where, strict=True), strict=True)
        ]
    )
    difference = (ours.int() - theirs.int()).abs()
    assert difference.max() <= 1
    assert difference.float().mean() < 1e-4


def test_an_image_does_not_depend_on_the_others_of_its_batch():
    images = photos(5, 50, 40)
    where = boxes((0, 0, 50, 40), (1, 2, 9, 30), (10, 0, 40, 8), (3, 3, 24, 24), (49, 39, 1, 1))
    flipped = torch.tensor([True, False, True, True, False])
    together = resized_crop(images, where, 24, flipped=flipped)
    for i in range(5):
        part = slice(i, i + 1)
        own = Boxes(*(side[part] for side in where))
        alone = resized_crop(images[part], own, 24, flipped=flipped[part])
        assert torch.equal(alone, together[part])


def test_how_many_images_are_processed_at_a_time_does_not_matter(monkeypatch):
    images, view = photos(7, 30, 30), RandomView(24, crop=(0.3, 1.0), flip=0.5)
    whole = view(images, generator_for(1, "view"))
    for values in (1, 2000, 10**9):
        monkeypatch.setattr(views, "CACHED_VALUES", values)
        assert torch.equal(view(images, generator_for(1, "view")), whole)


def test_the_flip_comes_after_the_crop():
    images, where = photos(3, 20, 30), boxes((0, 0, 10, 10), (2, 5, 18, 20), (0, 0, 20, 30))
    plain = resized_crop(images, where, 16)
    flipped = resized_crop(images, where, 16, flipped=torch.tensor([True, False, True]))
    assert torch.equal(flipped[0], plain[0].flip(2))
    assert torch.equal(flipped[1], plain[1])
    assert torch.equal(flipped[2], plain[2].flip(2))


def test_the_same_draw_gives_the_same_view_and_leaves_the_images_alone():
    images, view = photos(6, 33, 29), RandomView(32, crop=(0.5, 1.0), flip=0.5)
    before = images.clone()
    first = view(images, generator_for(3, "view"))
    assert torch.equal(first, view(images, generator_for(3, "view")))
    assert not torch.equal(first, view(images, generator_for(4, "view")))
    assert torch.equal(images, before)
    assert first.shape == (6, 3, 32, 32)
    assert first.dtype == torch.uint8
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(first, view(channels_last, generator_for(3, "view")))


def test_the_number_of_draws_depends_on_the_batch_size_only():
    states = []
    for view, size in (
        (RandomView(32, crop=(0.8, 1.0), flip=0.5), (40, 40)),
        (RandomView(16, crop=(1.0, 1.0), flip=0.0), (10, 90)),  # all attempts fail
        (RandomView(24, crop=None, flip=0.5), (24, 24)),
    ):
        generator = generator_for(0, "view")
        view(photos(5, *size), generator)
        states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)


def test_boxes_have_the_asked_area_ratio_and_lie_inside_anywhere():
    height, width = 200, 240
    view = RandomView(32, crop=(0.2, 0.6), flip=0.3)
    where, flipped = view.draw(4000, height, width, generator_for(0, "boxes"))
    area = where.height * where.width / (height * width)
    ratio = where.width / where.height
    assert 0.19 < area.min() < 0.21
    assert 0.59 < area.max() < 0.61
    assert abs(area.mean() - 0.4) < 0.01
    assert 3 / 4 - 0.01 < ratio.min() < 0.76
    assert 1.32 < ratio.max() < 4 / 3 + 0.02
    assert abs(ratio.log().mean()) < 0.01
    for start, length, side in (
        (where.top, where.height, height),
        (where.left, where.width, width),
    ):
        assert start.min() == 0
        assert ((start + length) <= side).all()
        assert ((start + length) == side).any()
        place = start / (side - length)
        assert abs(place.mean() - 0.5) < 0.02
        assert abs(place.std() - math.sqrt(1 / 12)) < 0.02
    assert abs(flipped.double().mean() - 0.3) < 0.03


def test_area_ratio_place_and_flip_do_not_depend_on_each_other():
    """Sharing a draw would give a correlation of 1, chance gives 1/80."""
    view = RandomView(32, crop=(0.2, 0.6), flip=0.5)
    where, flipped = view.draw(6400, 200, 240, generator_for(0, "boxes"))
    drawn = {
        "area": where.height * where.width,
        "ratio": (where.width / where.height).log(),
        "top": where.top / (200 - where.height),
        "left": where.left / (240 - where.width),
        "flip": flipped,
    }
    correlation = torch.corrcoef(torch.stack([value.double() for value in drawn.values()]))
    assert (correlation - torch.eye(len(drawn))).abs().max() < 0.06


def test_boxes_are_distributed_as_torchvisions():
    """Near the full area many attempts do not fit, which shapes the distribution."""
    height, width = 60, 50
    theirs = transforms.RandomResizedCrop(32, scale=(0.8, 1.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = [theirs.make_params([torch.empty(3, height, width)]) for _ in range(3000)]
    ours, _ = RandomView(32, crop=(0.8, 1.0), flip=0.5).draw(
        3000, height, width, generator_for(0, "boxes")
    )
    for name in Boxes._fields:
        expected = torch.tensor([float(box[name]) for box in drawn])
        values = getattr(ours, name).float()
        standard_error = expected.std() * math.sqrt(2 / 3000)
        assert abs(values.mean() - expected.mean()) < 4 * standard_error
        assert abs(values.std() / expected.std() - 1) < 0.1


# No ratio of the range fits into these sizes, so torchvision falls back whatever it draws.
@pytest.mark.parametrize(("height", "width"), [(10, 90), (90, 10), (31, 31), (7, 100)])
def test_falls_back_to_torchvisions_central_crop(height, width):
    theirs = transforms.RandomResizedCrop(32, scale=(1.0, 1.0), ratio=(0.9, 0.95))
    expected = theirs.make_params([torch.empty(3, height, width)])
    view = RandomView(32, crop=(1.0, 1.0), flip=0.0, ratio=(0.9, 0.95))
    where, _ = view.draw(3, height, width, generator_for(0, "boxes"))
    for name in Boxes._fields:
        assert getattr(where, name).tolist() == [expected[name]] * 3


def test_without_crop_the_whole_image_is_resized_and_flipped():
    images = photos(40, 20, 30)
    _, flipped = RandomView(16, crop=None, flip=0.5).draw(40, 20, 30, generator_for(0, "view"))
    assert 0 < flipped.sum() < 40
    ours = RandomView(16, crop=None, flip=0.5)(images, generator_for(0, "view"))
    squashed = resize(images, 16)
    expected = torch.where(flipped.view(-1, 1, 1, 1), squashed.flip(3), squashed)
    assert torch.equal(ours, expected)
    same_size = photos(40, 16, 16)
    ours = RandomView(16, crop=None, flip=0.5)(same_size, generator_for(0, "view"))
    assert torch.equal(ours[flipped], same_size[flipped].flip(3))
    assert torch.equal(ours[~flipped], same_size[~flipped])


@pytest.mark.parametrize(("height", "width"), [(50, 31), (16, 40), (9, 12)])
def test_evaluation_squashes_the_whole_image_as_torchvision(height, width):
    images = photos(3, height, width)
    difference = resize(images, 24).int() - F.resize(images, [24, 24], antialias=True).int()
    assert difference.abs().max() <= 1
    assert difference.abs().float().mean() < 1e-3


def test_runs_on_a_device_without_reading_values():
    """The meta device has no values, so reading one would raise."""
    images = photos(4, 30, 20).to("meta")
    view = RandomView(16, crop=(0.8, 1.0), flip=0.5)
    assert view(images, generator_for(0, "view")).shape == (4, 3, 16, 16)
    assert resize(images, 16).shape == (4, 3, 16, 16)


def test_an_empty_batch_stays_empty():
    images = photos(0, 30, 20)
    assert RandomView(16, crop=(0.8, 1.0), flip=0.5)(images).shape == (0, 3, 16, 16)
    assert resize(images, 16).shape == (0, 3, 16, 16)
