from typing import Any

import pytest
import torch
import torch.nn.functional as F

import peerdg
from peerdg.methods import ascent as module
from peerdg.methods.ada import ADA, Settings
from peerdg.methods.base import Batch
from peerdg.methods.pool import TrainingPool
from peerdg.models.classifier import Classifier
from peerdg.run.config import resolve
from peerdg.run.prepare import load_splits
from tests.conftest import tiny_classifier
from tests.methods.adversarial import (
    STRONG,
    N,
    cross_entropy,
    feature_distance,
    perturbed,
    tiny_pool,
)


def make(model: Classifier | None = None, *, n: int = N, **settings: Any) -> ADA:
    settings = {"rate": STRONG, "steps": 5, **settings}
    return ADA(model or tiny_classifier(), Settings(**settings), pool=tiny_pool(n))


def images_of(ada: ADA) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return perturbed(ada.ascent, ada.pool)


def test_ascent_equals_a_plain_loop_over_single_images():
    """Ascend each image separately: the mean over one image is its own objective."""
    model = tiny_classifier(batch_norm=True, dropout=0.5).eval()
    ada = make(model, gamma=0.7, n=6)
    x, got, y = images_of(ada)
    for image, label, made in zip(x, y, got, strict=True):
        start = image[None].float() / 255
        wanted = model.encoder(start).detach()
        z = start.clone()
        for _ in range(5):
            z.requires_grad_(True)
            h = model.encoder(z)
            objective = F.cross_entropy(model.head(h), label[None])
            objective = objective - 0.7 * F.mse_loss(h, wanted)
            objective.backward()
            z = (z + STRONG * z.grad).detach()
        expected = (z.clamp(0, 1) * 255).round()
        assert (made - expected[0]).abs().max() <= 1  # a tie may round either way
        assert (made != expected[0]).float().mean() < 0.01


def test_the_loss_rises_and_the_penalty_keeps_features_near():
    model = tiny_classifier()
    results = {}
    for gamma in (0.0, 1.0, 10.0, 100.0):
        x, z, y = images_of(make(model, gamma=gamma, rate=2.0, steps=60))
        assert cross_entropy(model, z, y) > cross_entropy(model, x, y)
        results[gamma] = feature_distance(model, x, z)
    assert results[0.0] > results[1.0] > results[10.0] > results[100.0]
    assert results[100.0] < results[0.0] / 4


def test_the_step_does_not_depend_on_how_many_images_are_computed_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    made = []
    for size in (1, 5, 24):
        monkeypatch.setattr(module, "images_per_pass", lambda side, size=size: size)
        ada = make(perturb="source", steps=4)
        made.append(ada.end_epoch(0).new_images)
    for other in made[1:]:
        assert torch.equal(made[0].labels, other.labels)
        difference = (made[0].images.int() - other.images.int()).abs()
        assert difference.max() <= 1
        assert difference.float().mean() < 0.01


def test_perturbations_of_the_released_step_survive_8_bits():
    """Real digits, a short training, and the released step size."""
    splits = load_splits(resolve({"benchmark": "digits-mini"}))
    rows = torch.arange(0, len(splits.train), len(splits.train) // 96)[:96]
    images, labels = splits.train.images[rows], splits.train.labels[rows]
    torch.manual_seed(0)
    model = peerdg.build_classifier("digits-cnn-half", classes=splits.train.classes)
    ada = ADA(model, Settings(), pool=TrainingPool(images, labels))
    optimizer = torch.optim.Adam(ada.parameters(), lr=1e-3)
    for _ in range(8):
        for part in torch.randperm(len(rows)).split(32):
            optimizer.zero_grad()
            ada.loss(Batch(images[part], labels[part]))["loss"].backward()
            optimizer.step()
    model.eval()
    before = cross_entropy(model, images, labels)
    exact = cross_entropy(model, ada.ascent.ascend(images.float() / 255, labels), labels)
    stored = cross_entropy(model, ada.ascent.perturb(images, labels), labels)
    assert exact > 1.1 * before
    assert stored - before > 0.7 * (exact - before)


def test_clipping_is_at_the_end_or_after_every_step():
    model = tiny_classifier()
    x, end, y = images_of(make(model, rate=500.0, steps=4))
    _, steps, _ = images_of(make(model, rate=500.0, steps=4, clip="steps"))
    assert not torch.equal(end, steps)
    assert ascent_stays_inside(model, x, y, clip="steps")
    assert not ascent_stays_inside(model, x, y, clip="end")


def ascent_stays_inside(model: Classifier, x: torch.Tensor, y: torch.Tensor, clip: str) -> bool:
    """Return whether all intermediate images of the ascent are in [0, 1]."""
    seen: list[torch.Tensor] = []
    handle = model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    make(model, rate=500.0, steps=4, clip=clip).ascent.perturb(x, y)
    handle.remove()
    return all(bool(0 <= z.min() and z.max() <= 1) for z in seen)


def test_the_network_is_left_as_it_was():
    model = tiny_classifier(batch_norm=True, dropout=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make(model).end_epoch(0)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_dropout_and_batch_statistics_are_off_while_images_are_made():
    model = tiny_classifier(batch_norm=True, dropout=0.5).train()
    first, second = (make(model, perturb="source").end_epoch(0).new_images for _ in range(2))
    assert torch.equal(first.images, second.images)


def sizes(perturb: str, epochs: int = 7, **settings: Any) -> list[int]:
    """Return the size of the pool in each epoch."""
    ada = make(perturb=perturb, steps=1, n=6, **settings)
    counts = []
    for epoch in range(epochs):
        counts.append(len(ada.pool))
        result = ada.end_epoch(epoch)
        if result.new_images is not None:
            assert result.records["pool_images"] == len(ada.pool) + len(result.new_images)
        ada.pool.change(result.new_images)
    return counts


@pytest.mark.parametrize(
    ("perturb", "settings", "expected"),
    [
        ("sample", {"k": 3}, [6, 12, 18, 24, 24, 24, 24]),
        ("source", {"k": 3}, [6, 12, 18, 24, 24, 24, 24]),
        ("pool", {"k": 3}, [6, 12, 24, 48, 48, 48, 48]),
        ("pool", {"k": 2, "every": 3}, [6, 6, 6, 12, 12, 12, 24]),
        ("sample", {"k": 0}, [6] * 7),
    ],
)
def test_the_pool_grows_by_the_schedule(
    perturb: str, settings: dict[str, int], expected: list[int]
):
    assert sizes(perturb, **settings) == expected


def test_a_sample_is_of_the_whole_pool_without_repetition():
    ada = make(perturb="sample")
    ada.pool.change(ada.end_epoch(0).new_images)
    drawn = [tuple(ada._rows().tolist()) for _ in range(20)]
    assert all(len(set(rows)) == N for rows in drawn)
    assert {row >= N for rows in drawn for row in rows} == {True, False}
    assert len(set(drawn)) > 1


def test_made_images_keep_the_labels_of_their_origin():
    ada = make(perturb="source", rate=1e-9)
    add = ada.end_epoch(0).new_images
    assert torch.equal(add.images, ada.pool.images)
    assert torch.equal(add.labels, ada.pool.labels)


def test_the_mean_change_of_a_pixel_is_recorded():
    ada = make(perturb="source")
    result = ada.end_epoch(0)
    change = (result.new_images.images.float() - ada.pool.images.float()).abs().mean()
    assert result.records["perturbation"] == pytest.approx(float(change), rel=1e-5)


def test_a_run_is_inert_if_no_ascent_moves_images():
    records: list[dict[str, float]] = [{"perturbation": 0.08}, {"ce": 0.1}, {"perturbation": 0.07}]
    assert Settings().inert(records) == "perturbation 0.08 gray levels"
    assert Settings().inert([*records, {"perturbation": 0.14}]) is None
    assert Settings().inert([{"ce": 0.1}]) is None  # made no images, or did not say
