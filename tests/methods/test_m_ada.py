import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.augment.view import RandomView
from peerdg.errors import ConfigError
from peerdg.methods import m_ada as module
from peerdg.methods.ascent import Ascent
from peerdg.methods.base import Batch
from peerdg.methods.m_ada import MADA, Settings, meta_losses, relaxation
from peerdg.methods.pool import PoolImages, TrainingPool
from peerdg.models.classifier import Classifier
from peerdg.models.generators import WassersteinAutoEncoder
from tests.conftest import tiny_classifier, tiny_domain
from tests.methods.adversarial import (
    STRONG,
    N,
    cross_entropy,
    perturbed,
    tiny_pool,
)

SMALL = {"rate": STRONG, "steps": 2, "wae_epochs": 1, "wae_batch": 8}


def make(model: Classifier | None = None, *, n: int = N, **settings: Any) -> MADA:
    return MADA(model or tiny_classifier(), Settings(**{**SMALL, **settings}), pool=tiny_pool(n))


def autoencoder(seed: int = 0) -> WassersteinAutoEncoder:
    torch.manual_seed(seed)
    return WassersteinAutoEncoder(12).requires_grad_(False)


def ascent(model: Classifier, vae: WassersteinAutoEncoder, **settings: Any) -> Ascent:
    chosen = Settings(**settings)
    return Ascent(model, chosen, lambda x: relaxation(vae, x, beta=chosen.beta))


# The ascent


@pytest.mark.parametrize("clip", ["off", "end"])
def test_it_equals_a_plain_loop_over_single_images(clip: str):
    """Each image by itself ascends CE - γ MSE(H) + β MSE(V)."""
    model, v, pool = tiny_classifier(batch_norm=True).eval(), autoencoder(), tiny_pool(6)
    options = {"gamma": 0.7, "beta": 30.0, "steps": 4, "rate": STRONG, "clip": clip}
    x, got, y = perturbed(ascent(model, v, **options), pool)
    for image, label, made in zip(x, y, got, strict=True):
        start = image[None].float() / 255
        wanted, seen = model.encoder(start).detach(), torch.sigmoid(v(start)[0])
        z = start.clone()
        for _ in range(4):
            z.requires_grad_(True)
            h = model.encoder(z)
            objective = F.cross_entropy(model.head(h), label[None]) - 0.7 * F.mse_loss(h, wanted)
            objective = objective + 30.0 * F.mse_loss(torch.sigmoid(v(z)[0]), seen)
            objective.backward()
            z = (z + STRONG * z.grad).detach()
        if clip == "off":
            assert made.dtype == torch.float16
            torch.testing.assert_close(made.float(), z[0], rtol=1e-3, atol=1e-3)
            continue
        expected = (z.clamp(0, 1) * 255).round()
        assert (made - expected[0]).abs().max() <= 1  # a value halfway may round either way
        assert (made != expected[0]).float().mean() < 0.01


def test_the_relaxation_drives_images_out_of_what_the_auto_encoder_knows():
    model, v, distances = tiny_classifier(), autoencoder(), {}
    for beta in (0.0, 100.0, 2000.0):
        x, z, y = perturbed(ascent(model, v, beta=beta, rate=2.0, steps=25), tiny_pool())
        assert cross_entropy(model, z, y) > cross_entropy(model, x, y)
        moved = v.reconstruct(x) - v.reconstruct(z.float())
        distances[beta] = float(moved.square().mean())
    assert distances[0.0] < distances[100.0] < distances[2000.0]
    assert distances[2000.0] > 4 * distances[0.0]


# The meta step


def two_batches(classes: int = 3) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    a, b = tiny_domain(n=8, classes=classes), tiny_domain(n=6, classes=classes, seed=5)
    return (a.images, a.labels), (b.images, b.labels)


def double_classifier(**options: Any) -> Classifier:
    return tiny_classifier(**options).double()


def test_the_losses_are_those_of_a_step_taken_by_hand():
    model, (source, made) = double_classifier(), two_batches()
    found = meta_losses(model, source, made, step_size=0.3)
    other = copy.deepcopy(model)
    loss = F.cross_entropy(other(source[0]), source[1])
    loss.backward()
    with torch.no_grad():
        for p in other.parameters():
            p -= 0.3 * p.grad
    torch.testing.assert_close(found[0], loss)
    torch.testing.assert_close(found[1], F.cross_entropy(other(made[0]), made[1]))


def two_step_loss(model: Classifier, rate: float) -> Tensor:
    """(L_s(θ) + L_a(θ - rate ∇L_s(θ))) / 2, by a step that is really taken."""
    source, made = two_batches()
    other = copy.deepcopy(model)
    loss = F.cross_entropy(other(source[0]), source[1])
    gradients = torch.autograd.grad(loss, list(other.parameters()))
    with torch.no_grad():
        for p, gradient in zip(other.parameters(), gradients, strict=True):
            p -= rate * gradient
        return (loss + F.cross_entropy(other(made[0]), made[1])) / 2


def meta_gradients(model: Classifier, rate: float) -> dict[str, Tensor]:
    method = MADA(model, Settings(meta_rate=rate), pool=tiny_pool(8))
    (source, made) = two_batches()
    method.pool.change(PoolImages(*made))
    # As many as there are: in another order, which changes no mean.
    loss = method.loss(Batch(*source, seed=1))["loss"]
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


def test_the_meta_gradient_is_that_of_finite_differences():
    """float64; the two highest entries of each weight, so that every layer is looked at."""
    model, rate, eps = double_classifier(), 0.5, 1e-6
    for name, gradient in meta_gradients(model, rate).items():
        parameter = model.get_parameter(name)
        for place in gradient.abs().flatten().topk(2).indices:
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[place] += sign * eps
                ends.append(two_step_loss(model, rate))
                with torch.no_grad():
                    parameter.view(-1)[place] -= sign * eps
            slope = (ends[0] - ends[1]) / (2 * eps)
            found = gradient.flatten()[place]
            torch.testing.assert_close(found, slope, rtol=1e-5, atol=1e-9, msg=name)


class Attention(nn.Module):
    """Features by attention over rows of pixels, whose fast kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(36, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inputs(x.transpose(1, 2).flatten(2))[:, None].chunk(3, dim=3)
        return F.scaled_dot_product_attention(q, k, v).mean((1, 2))


def test_networks_with_attention_are_differentiated_twice():
    torch.manual_seed(0)
    model = Classifier(Attention(), nn.Linear(8, 3), classes=("a", "b", "c"))
    losses = meta_losses(model, *two_batches(), step_size=0.1)
    (sum(losses) / 2).backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in model.parameters())


def test_frozen_and_unused_weights_stay_where_they_are():
    model = tiny_classifier(batch_norm=True)
    model.encoder.conv.requires_grad_(False)
    model.encoder.unused = nn.Parameter(torch.ones(2))
    losses = meta_losses(model, *two_batches(), step_size=0.1)
    sum(losses).backward()
    assert model.encoder.conv.weight.grad is None
    assert model.encoder.unused.grad is None
    assert model.head.weight.grad.any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch itself imports
def test_a_compiled_network_is_refused():
    model = tiny_classifier()
    model.encoder.compile(backend="eager")
    with pytest.raises(ConfigError, match="second derivatives"):
        MADA(model, Settings(), pool=tiny_pool())


def test_before_there_is_a_domain_it_learns_by_cross_entropy():
    method, domain = make(), tiny_domain(n=8)
    terms = method.loss(Batch(domain.images, domain.labels))
    expected = F.cross_entropy(method.model(domain.images), domain.labels)
    torch.testing.assert_close(terms["loss"], expected)
    assert set(terms) == {"loss", "ce"}


def test_a_batch_of_the_source_meets_one_of_all_domains_that_were_made():
    """Different images of every domain, none of the source, the same for one seed of the batch."""
    method, seen = make(n=6), []
    for shade in (100, 200):
        images = torch.full((5, 3, 12, 12), shade, dtype=torch.uint8)
        images[:, 0, 0, 0] = torch.arange(5)
        method.pool.change(PoolImages(images, torch.arange(5) % 3))
    source = Batch(*method.pool.clean(torch.arange(6)), seed=3)
    for seed in (3, 3, 4):
        generator = torch.Generator().manual_seed(seed)
        images, labels = method.pool.view(method._drawn_from_domains(6, generator), generator)
        found = {(int(i[1, 0, 0]), int(i[0, 0, 0])) for i in images}
        assert len(found) == 6
        assert {shade for shade, _ in found} == {100, 200}
        assert all(int(i[0, 0, 0]) % 3 == label for i, label in zip(images, labels, strict=True))
        seen.append(images)
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    terms = method.loss(source)
    torch.testing.assert_close(terms["loss"].detach(), (terms["ce"] + terms["meta"]) / 2)


def test_made_images_are_seen_in_the_random_views_of_training():
    domain = tiny_domain()
    view = RandomView(10, crop=(0.5, 1.0), flip=0.5)
    pool = TrainingPool(domain.images, domain.labels, 10, random_view=view)
    pool.change(PoolImages(domain.images, domain.labels))
    method = MADA(tiny_classifier(), Settings(meta_rate=0.0), pool=pool)
    batch = Batch(pool.clean(torch.arange(8))[0], domain.labels[:8], seed=3)
    rows = torch.randperm(24, generator=(generator := batch.generator()))[:8]
    expected = F.cross_entropy(method.model(view(domain.images[rows], generator)),
                               domain.labels[rows])  # fmt: skip
    torch.testing.assert_close(method.loss(batch)["meta"], expected.detach())


# Domains


def test_unclipped_images_reach_the_loss_and_the_next_domain_as_they_were_made():
    method = make(rate=5000.0, steps=3)
    domain = tiny_domain(n=8)
    for epoch in range(2):
        made = method.end_epoch(epoch).new_images
        assert made.images.min() < 0 and made.images.max() > 1
        method.pool.change(made)
    rows = torch.tensor([0, N, N + 1])  # one of the source, two of the first domain
    got, _ = method.pool.clean(rows)
    first = method.pool.additions[0].images
    torch.testing.assert_close(got[0], method.pool.images[0] / 255)
    assert torch.equal(got[1:], first[:2].float())
    assert torch.isfinite(method.loss(Batch(domain.images, domain.labels, seed=0))["loss"])


@pytest.mark.parametrize(
    ("size", "expected"), [("share", [24, 48, 60, 68, 68]), ("source", [24, 48, 72, 96, 96])]
)
def test_the_pool_grows_by_the_schedule(size: str, expected: list[int]):
    method, found = make(domain_size=size, steps=1), []
    for epoch in range(5):
        found.append(len(method.pool))
        result = method.end_epoch(epoch)
        if result.new_images is not None:
            assert result.records["pool_images"] == len(method.pool) + len(result.new_images)
        method.pool.change(result.new_images)
    assert found == expected


def test_a_domain_is_made_of_the_source_and_of_those_before_it():
    """Of the n-th, a share of 1/n comes from the source; no image twice."""
    method = make(n=24)
    for before, (total, source) in enumerate([(24, 24), (12, 6), (8, 2)]):
        assert len(method.pool.additions) == before
        rows = method._rows()
        assert len(rows) == len(set(rows.tolist())) == total
        assert int((rows < 24).sum()) == source
        assert not torch.equal(rows, method._rows()) or before == 0
        domain = tiny_domain(n=total)
        method.pool.change(PoolImages(domain.images, domain.labels))


def test_each_auto_encoder_is_fresh_and_learns_the_newest_domain(monkeypatch: pytest.MonkeyPatch):
    rows: list[list[int]] = []
    models: list[WassersteinAutoEncoder] = []

    def noted(model, pool, chosen, settings):
        rows.append(chosen.tolist())
        models.append(model)
        return 0.25

    monkeypatch.setattr(module, "train_autoencoder", noted)
    method = make()
    for epoch in range(4):
        result = method.end_epoch(epoch)
        method.pool.change(result.new_images)
        assert result.records.get("autoencoder_loss") == (0.25 if epoch < 3 else None)
    # The source, then the domains of 24 and of 12 images; none after the last.
    assert rows == [list(range(24)), list(range(24, 48)), list(range(48, 60))]
    assert len({id(model) for model in models}) == 3


def test_the_network_is_left_as_it_was():
    model = tiny_classifier(batch_norm=True, dropout=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method = make(model)
    add = method.end_epoch(0).new_images
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(add.labels, method.pool.labels)
    assert {name.partition(".")[0] for name in method.state_dict()} == {"model"}


def test_the_auto_encoder_sees_thumbnails_whose_side_must_fit():
    assert Settings().autoencoder_side(224) == 32
    assert Settings().autoencoder_side(28) == 28
    Settings(autoencoder="conv").check_images(224)
    Settings(autoencoder="mlp").check_images(30)
    with pytest.raises(ConfigError, match="multiple of 4") as caught:
        Settings(autoencoder="conv").check_images(30)
    assert "--m-ada.thumbnail 28" in caught.value.hint
    result = make(autoencoder="conv", thumbnail=8).end_epoch(0)
    assert result.new_images.images.shape == (N, 3, 12, 12)


def test_a_step_in_bfloat16_is_finite_and_near(tmp_path: Path):
    images, labels = tiny_domain(n=8).images, tiny_domain(n=8).labels
    found = []
    for bf16 in (False, True):
        method = make(tiny_classifier())
        method.pool.change(PoolImages(images.flip(3), labels))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = method.loss(Batch(images, labels, seed=0))["loss"]
        loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in method.model.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=0.1, atol=0.02)
