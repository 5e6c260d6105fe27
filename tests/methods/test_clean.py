"""Clean images for batch statistics: shuffled chunks, and accepted inputs of users."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from peerdg.data.domain import Domain
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.methods.base import Batch
from peerdg.methods.clean import CleanImages, as_bytes, as_clean
from peerdg.methods.peer import PEER, Settings
from peerdg.models.classifier import Classifier
from peerdg.models.statistics import recompute_statistics
from peerdg.train.source import Source
from tests.conftest import tiny_classifier, tiny_domain

SIDE = 72  # photos of more than 64 pixels come in chunks of at most 32


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


@cache
def residual_network() -> Classifier:
    """Train for a few steps, so that channels separate the classes. Callers must copy it."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 16, 5, stride=4, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    encoder = nn.Sequential(
        *stem, Block(16), nn.MaxPool2d(2), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    model = Classifier(encoder, nn.Linear(16, 7), classes=tuple("abcdefg"))
    photos = class_sorted_photos()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for rows in torch.randint(len(photos), (40, 32)):
        adam.zero_grad()
        nn.functional.cross_entropy(model(photos.images[rows]), photos.labels[rows]).backward()
        adam.step()
    return model


def class_sorted_photos() -> Domain:
    """Return seven classes of 40 images, sorted by class. Each class has its own colors."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(7).repeat_interleave(40)
    colors = torch.rand(7, 3, 4, 4, generator=random)[labels] + 0.3 * torch.rand(
        280, 3, 4, 4, generator=random
    )
    images = nn.functional.interpolate(colors, size=SIDE, mode="bilinear").mul(190)
    return Domain("photos", tuple("abcdefg"), images.to(torch.uint8), labels)


def variances(model: Classifier) -> torch.Tensor:
    """Return the variances of all channels of the last four normalization layers."""
    layers = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    return torch.cat([layer.running_var for layer in layers[-4:]])


def stored_variances(domain: Domain) -> torch.Tensor:
    """Return the statistics of PEER's task model after a snapshot."""
    peer = PEER(copy.deepcopy(residual_network()), Settings(k=1), clean=Source(domain).clean)
    peer.start_epoch(0)
    peer.end_epoch(0)
    return variances(peer.deployed)


def test_statistics_of_class_sorted_photos_are_those_of_shuffled_batches():
    photos = class_sorted_photos()
    reference = copy.deepcopy(residual_network())
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(1))
    update_bn([photos.images[rows] for rows in order.split(56)], reference)
    ratio = stored_variances(photos) / variances(reference)
    assert abs(ratio.median() - 1) < 0.05
    assert (ratio - 1).abs().median() < 0.05
    # Control: in storage order the variance between classes is lost.
    update_bn(list(photos.images.split(32)), reference)
    assert (variances(reference) / stored_variances(photos)).median() < 0.9


@settings(max_examples=60, deadline=None)
@given(count=st.integers(2, 1200), side=st.sampled_from([1, 64, 65]))
def test_chunks_hold_every_row_once_and_never_a_single_one(count, side):
    images = (torch.arange(count) % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, side, 1)
    clean = CleanImages(images)
    sizes = [len(rows) for rows in clean.rows]
    assert torch.cat(clean.rows).sort().values.equal(torch.arange(count))
    assert min(sizes) >= 2
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= (256 if side <= 64 else 32)
    for rows, chunk in clean.chunks():
        assert torch.equal(chunk, images[rows])


def test_the_order_is_fixed():
    first, second = (CleanImages(class_sorted_photos().images) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.rows, second.rows, strict=True))
    assert not torch.cat(first.rows).equal(torch.arange(280))


def test_a_set_of_one_image_is_refused():
    with pytest.raises(DataError, match="at least two"):
        CleanImages(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


# Accepted inputs

SOURCE = tiny_domain(n=24)
FLOATS = SOURCE.images / 255


def measured(clean) -> list[torch.Tensor]:
    model = tiny_classifier(batch_norm=True)
    recompute_statistics(model, as_clean(clean))
    return list(model.buffers())


@pytest.mark.parametrize(
    "clean",
    [
        SOURCE.images,
        FLOATS,
        FLOATS.double(),
        [SOURCE.images],
        [(FLOATS, SOURCE.labels)],
        DataLoader(SOURCE.images, batch_size=24),
        DataLoader(TensorDataset(FLOATS, SOURCE.labels), batch_size=24),
    ],
    ids=["uint8", "float", "double", "list", "pairs", "loader", "loader of pairs"],
)
def test_tensors_loaders_and_lists_give_the_same_statistics(clean):
    reference = tiny_classifier(batch_norm=True)
    update_bn([SOURCE.images], reference)
    for ours, expected in zip(measured(clean), reference.buffers(), strict=True):
        torch.testing.assert_close(ours, expected)


def sorted_batches() -> dict[str, Any]:
    """Return seven classes, sorted, in batches of mostly one class."""
    photos = class_sorted_photos()
    data = TensorDataset(photos.images, photos.labels)
    return {
        "list": list(photos.images.split(20)),
        "pairs": list(zip(photos.images.split(20), photos.labels.split(20), strict=True)),
        "single images": list(photos.images.split(1)),
        "shuffling loader": DataLoader(data, batch_size=20, shuffle=True),
    }


@pytest.mark.parametrize("kind", sorted_batches())
def test_class_sorted_batches_give_the_statistics_of_all_images(kind):
    model, reference = (copy.deepcopy(residual_network()) for _ in range(2))
    recompute_statistics(model, as_clean(sorted_batches()[kind]))
    update_bn([class_sorted_photos().images], reference)
    ratio = variances(model) / variances(reference)
    assert (ratio - 1).abs().median() < 0.05
    # Control: in the original order the variance between classes is lost.
    update_bn(list(class_sorted_photos().images.split(20)), reference)
    assert (variances(reference) / variances(model)).median() < 0.9


class OwnBatches:
    """A custom batch sampler, as for balanced classes."""

    def __iter__(self):
        return iter([[0, 8, 16], [23, 3, 11]])

    def __len__(self) -> int:
        return 2


def test_a_loader_that_does_not_shuffle_warns_once():
    data = TensorDataset(SOURCE.images, SOURCE.labels)
    with pytest.warns(PeerdgWarning, match="does not shuffle.*shuffle=True") as caught:
        peer = PEER(tiny_classifier(batch_norm=True), Settings(k=1), clean=DataLoader(data, 8))
        for epoch in (0, 1):
            peer.start_epoch(epoch)
            peer.end_epoch(epoch)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    whole_batches = DataLoader(SOURCE.images.split(8), batch_size=None)
    with pytest.warns(PeerdgWarning, match="does not shuffle"):
        as_clean(whole_batches)
    for loader in (
        DataLoader(data, 8, shuffle=True),
        DataLoader(data, 24),  # one batch has no order
        DataLoader(data, sampler=RandomSampler(data), batch_size=8),
        DataLoader(data, batch_sampler=OwnBatches()),
    ):
        as_clean(loader)  # a warning would be an error


def test_a_batch_of_one_image_of_a_loader_is_left_out():
    data = DataLoader(SOURCE.images[:11], batch_size=10)
    with pytest.warns(PeerdgWarning, match="does not shuffle"):
        statistics = measured(data)
    for ours, expected in zip(statistics, measured(SOURCE.images[:10]), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    "clean",
    [
        "photos/",
        SOURCE,
        SOURCE.images.numpy(),
        SOURCE.images[0],
        SOURCE.images[:, :1],
        [SOURCE.images[0]],
        (SOURCE.images, SOURCE.labels),
        (images for images in SOURCE.images.split(8)),
        DataLoader([{"image": 1}, {"image": 2}], batch_size=2),
    ],
    ids=["path", "domain", "array", "image", "gray", "images", "pair", "generator", "dicts"],
)
def test_other_inputs_are_rejected_with_the_accepted_ones(clean):
    with pytest.raises(ConfigError, match=r"one tensor \[N, 3, H, W\], a DataLoader or a list"):
        PEER(tiny_classifier(batch_norm=True), clean=clean)


@pytest.mark.parametrize(
    ("clean", "message"),
    [
        ([], "one size"),
        ([SOURCE.images[:1]], "at least two"),
        ([SOURCE.images[:8], SOURCE.images[8:, :, :8, :8]], "one size"),
    ],
)
def test_a_list_without_two_images_of_one_size_is_refused_at_once(clean, message):
    with pytest.raises(DataError, match=message):
        PEER(tiny_classifier(batch_norm=True), clean=clean)


def test_normalized_images_are_rejected_with_a_hint():
    for clean in (FLOATS * 2 - 1, [FLOATS * 255], DataLoader(FLOATS - 0.5, batch_size=8)):
        with pytest.raises(DataError, match=r"\[0, 1\].*\n.*mean=\.\.\., std="):
            PEER(tiny_classifier(batch_norm=True), clean=clean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_batch_rounds_float_images_to_the_bytes_they_came_from(dtype):
    every_value = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, -1, -1)
    floats = (every_value.double() / 255).to(dtype)
    images = Batch(floats, torch.zeros(2, dtype=torch.int64)).images
    assert images.dtype == torch.uint8
    if dtype != torch.bfloat16:  # it cannot represent all 256 values
        assert torch.equal(images, every_value)


def test_a_batch_of_integers_that_are_not_bytes_is_refused():
    with pytest.raises(DataError, match="int64"):
        Batch(SOURCE.images.long(), SOURCE.labels)


def test_float_images_become_the_nearest_of_256_values():
    values = torch.tensor([0.0, 0.4, 0.6, 99.49, 99.51, 254.4, 254.6, 255.0]) / 255
    assert as_bytes(values).tolist() == [0, 0, 1, 99, 100, 254, 255, 255]
