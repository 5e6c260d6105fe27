"""The auto-encoder's training against a plain loop, and what it promises."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.errors import NumericalError
from peerdg.methods import m_ada as module
from peerdg.methods.m_ada import Settings, train_autoencoder
from peerdg.models.generators import LatentCritic, WassersteinAutoEncoder
from tests.methods.adversarial import N, tiny_pool

TRAINING = {"epochs": 2, "lr": 1e-3, "batch": 8, "weight": 100.0, "shift": "sample"}


def train(model: WassersteinAutoEncoder, rows: Tensor | None = None, **changes: object) -> float:
    rows = torch.arange(N) if rows is None else rows
    options = {f"wae_{name}": value for name, value in {**TRAINING, **changes}.items()}
    training = Settings(**options)
    return train_autoencoder(model, tiny_pool(), rows, training)


def log_density(z: Tensor) -> Tensor:
    """Of one dimension: that of all twenty leaves the codes almost no gradient."""
    return torch.distributions.Normal(0, 1).log_prob(z).mean(1)


def plain_training(
    model: WassersteinAutoEncoder, critic: LatentCritic, *, shift: str, epochs: int
) -> float:
    """Critic first, then encoder and decoder by the updated critic."""
    images = tiny_pool().images.float() / 255
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        losses = 0.0
        for part in torch.randperm(N).split(8):
            x = images[part]
            code = model.encoder(x)
            sample = torch.randn(8, 20)
            offset = log_density(sample) if shift == "sample" else log_density(code.detach())
            right = torch.sigmoid(critic(sample) + log_density(sample)).clamp_min(1e-38)
            wrong = critic(code.detach()) + offset
            loss = 100 * (-right.log().mean() + F.softplus(wrong).mean())
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
            offset = log_density(sample) if shift == "sample" else log_density(code)
            pixels = F.binary_cross_entropy(torch.sigmoid(model.decoder(code)), x, reduction="sum")
            loss = pixels + 100 * F.softplus(-(critic(code) + offset)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += float(loss.detach())
    return losses / N


@pytest.mark.parametrize("shift", ["sample", "code"])
def test_training_equals_a_plain_loop(shift: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model, critic = WassersteinAutoEncoder(12), LatentCritic()
    plain, plain_critic = copy.deepcopy(model), copy.deepcopy(critic)
    monkeypatch.setattr(module, "LatentCritic", lambda dim: critic)
    monkeypatch.setattr(module, "log_unit_gaussian", log_density)
    torch.manual_seed(1)
    got = train(model, shift=shift)
    torch.manual_seed(1)
    expected = plain_training(plain, plain_critic, shift=shift, epochs=2)
    assert got == pytest.approx(expected, rel=1e-4)
    for ours, theirs in ((model, plain), (critic, plain_critic)):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_it_learns_to_reconstruct_what_it_saw(kind: str):
    torch.manual_seed(0)
    model = WassersteinAutoEncoder(12, kind)
    images = tiny_pool().images.float() / 255

    def error() -> float:
        with torch.no_grad():
            return float((model.reconstruct(images) - images).square().mean())

    before = error()
    first = train(copy.deepcopy(model), epochs=1, weight=1.0)
    assert train(model, epochs=40, weight=1.0) < 0.95 * first
    assert error() < 0.9 * before


def test_its_codes_become_a_unit_gaussian_if_the_critic_knows_their_own_density():
    """By the released shift, of the sample beside it, the critic does not see how far codes are."""
    spread = {}
    for shift in ("sample", "code"):
        torch.manual_seed(0)
        model = WassersteinAutoEncoder(12)
        with torch.no_grad():
            model.encoder[-1].weight.mul_(20)  # codes begin far outside
        train(model, epochs=60, shift=shift)
        with torch.no_grad():
            spread[shift] = float(model.encoder(tiny_pool().images.float() / 255).std())
    assert 0.3 < spread["code"] < 2.0
    assert spread["sample"] > 1.5 * spread["code"]


def test_only_the_given_images_are_learnt_from(monkeypatch: pytest.MonkeyPatch):
    seen: list[Tensor] = []
    step = module._step

    def noted(model, critic, images, *rest):
        seen.append(images)
        return step(model, critic, images, *rest)

    monkeypatch.setattr(module, "_step", noted)
    rows = torch.tensor([3, 8, 11, 20, 21])
    train(WassersteinAutoEncoder(12), rows, epochs=3, batch=2)
    assert [len(part) for part in seen] == [2, 2, 1] * 3
    wanted = {tuple(i.flatten().tolist()) for i in tiny_pool().images[rows].float() / 255}
    for epoch in range(3):
        found = {tuple(i.flatten().tolist()) for i in torch.cat(seen[3 * epoch : 3 * epoch + 3])}
        assert found == wanted


def test_a_loss_that_is_not_finite_is_a_numerical_error():
    with pytest.raises(NumericalError, match="auto-encoder") as caught:
        train(WassersteinAutoEncoder(12), lr=1e30, epochs=5)
    assert "--m-ada.wae-lr" in (caught.value.hint or "")
    assert caught.value.details["wae_lr"] == 1e30
