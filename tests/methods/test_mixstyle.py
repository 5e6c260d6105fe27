"""MixStyle: its loss, its places in the network, and deployed networks without it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import peerdg
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch
from peerdg.methods.mixstyle import MixStyle, Settings
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import load_stored
from peerdg.rng import seeded
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits


def digits(seed: int = 0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_classifier("digits-cnn-half", classes=("a", "b", "c"))


def batch_of(n: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Batch(images, torch.arange(n) % 3)


def plain_style(x: torch.Tensor, share: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The paper's equations, image by image."""
    mixed = []
    for i, j in enumerate(other.tolist()):
        mu, mu_other = x[i].mean((1, 2)).detach(), x[j].mean((1, 2)).detach()
        sigma = (x[i].var((1, 2), correction=0).detach() + 1e-6).sqrt()
        sigma_other = (x[j].var((1, 2), correction=0).detach() + 1e-6).sqrt()
        gamma = share[i] * sigma + (1 - share[i]) * sigma_other
        beta = share[i] * mu + (1 - share[i]) * mu_other
        normal = (x[i] - mu[:, None, None]) / sigma[:, None, None]
        mixed.append(gamma[:, None, None] * normal + beta[:, None, None])
    return torch.stack(mixed)


def plain_loss(model, batch: Batch) -> torch.Tensor:
    """The Digits network layer by layer, with the draws in the order in which they are made."""
    encoder = model.encoder
    x = F.relu(F.max_pool2d(encoder.conv1(batch.images.float() / 255), 2))
    assert float(torch.rand(())) < 1  # p = 1: mixed in any case
    share = torch.distributions.Beta(torch.tensor(0.1), torch.tensor(0.1)).sample((len(x),))
    x = plain_style(x, share, torch.randperm(len(x)))
    x = F.relu(F.max_pool2d(encoder.conv2(x), 2)).flatten(1)
    logits = model.head(F.relu(encoder.fc2(F.relu(encoder.fc1(x)))))
    return -logits.log_softmax(1)[torch.arange(len(x)), batch.labels].mean()


def test_loss_and_gradient_are_those_of_the_equations():
    model = digits()
    settings = Settings(stages=1, p=1.0)
    method = MixStyle(model, settings, size=32).train()
    batch = batch_of()
    with seeded(3, "dropout"):
        loss = method.loss(batch)["loss"]
    with seeded(3, "dropout"):
        expected = plain_loss(model, batch)
    torch.testing.assert_close(loss, expected)
    assert not torch.allclose(loss, F.cross_entropy(model(batch.images), batch.labels))
    weights = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_styles_are_mixed_after_the_first_stages_or_named_modules():
    model = digits()
    for options, places in (
        ({}, ("before conv2", "after conv2")),
        ({"stages": 1}, ("before conv2",)),
        ({"layers": ("conv1",)}, ("after conv1",)),
    ):
        method = MixStyle(model, Settings(**options, p=0.3, alpha=0.2), size=32)
        assert method.places == places
        assert {(layer.p, layer.alpha) for layer in method.mixing} == {(0.3, 0.2)}
    with pytest.raises(ConfigError, match="no module 'conv9'"):
        MixStyle(model, Settings(layers=("conv9",)), size=32)


def test_places_are_mixed_independently_of_each_other():
    method = MixStyle(digits(), Settings(), size=32).train()
    batch, seen = batch_of(), set()
    mixed: dict[int, bool] = {}
    for number, layer in enumerate(method.mixing):
        layer.register_forward_hook(
            lambda module, given, output, n=number: mixed.update({n: output is not given[0]})
        )
    with seeded(0, "test"), torch.no_grad():
        for _ in range(30):
            method.loss(batch)
            seen.add((mixed[0], mixed[1]))
    assert seen == {(a, b) for a in (False, True) for b in (False, True)}


def test_outside_of_training_steps_the_network_is_the_one_without_layers():
    model, batch = digits(), batch_of()
    method = MixStyle(model, Settings(p=1.0), size=32)
    plain = F.cross_entropy(model(batch.images), batch.labels)
    assert torch.equal(method.eval().loss(batch)["loss"], plain)
    assert not torch.equal(method.train().loss(batch)["loss"], plain)
    assert torch.equal(F.cross_entropy(model(batch.images), batch.labels), plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def fit(out: Path, method: str, **options):
    return peerdg.fit(
        tiny_splits(), out=out, model=tiny_classifier(batch_norm=True), method=method,
        pretrain={"epochs": 1, "batch_size": 8}, train={"epochs": 2, "batch_size": 8, "lr": 0.01},
        evaluate_every=1, crafted="off", **options,
    )  # fmt: skip


def test_with_probability_zero_a_run_is_that_of_erm(tmp_path):
    """Pre-training, steps and evaluations are bitwise equal, unlike with p = 1."""
    erm = fit(tmp_path / "erm", "erm")
    none = fit(tmp_path / "none", "mixstyle", mixstyle={"p": 0.0})
    always = fit(tmp_path / "always", "mixstyle", mixstyle={"p": 1.0})
    assert erm.records == none.records
    assert erm.records != always.records
    first = [r for r in always.records if r["kind"] == "epoch" and r["phase"] == "pretrain"]
    assert first == [r for r in erm.records if r["kind"] == "epoch" and r["phase"] == "pretrain"]
    assert len(first) == 1
    images = tiny_domain().images
    with torch.no_grad():
        assert torch.equal(erm.model.classifier(images), none.model.classifier(images))


@pytest.mark.parametrize("rule", ["clean", "trained"])
def test_both_rules_of_batch_statistics_and_averages_go_with_it(rule, tmp_path):
    run = fit(
        tmp_path / "run", "mixstyle", batch_statistics=rule, average={"kind": ["ema"]},
        mixstyle={"p": 1.0},
    )  # fmt: skip
    assert set(run.accuracy) == {"model", "ema"}
    loaded, _ = load_stored(run.path / "model", tiny_classifier(batch_norm=True))
    images = tiny_domain().images
    with torch.no_grad():
        assert torch.equal(loaded(images), run.model.classifier(images))
