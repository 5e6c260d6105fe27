"""L2D: both stages against the formulas of the paper, and a run from start to export."""

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import peerdg
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch
from peerdg.methods.l2d import L2D, Settings
from peerdg.models.classifier import Classifier
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

SMALL = {"kernels": (3, 5), "dim": 6}
PHASE = PhaseSettings(optimizer="sgd", lr=0.05, momentum=0.5)


def method_of(*, batch_norm: bool = False, **options) -> L2D:
    """Make L2D on a tiny network that normalizes its images, with fixed weights."""
    settings = Settings(**{**SMALL, **options})
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = tiny_classifier(batch_norm=batch_norm)
        model = Classifier(
            model.encoder, model.head, classes=model.classes, mean=(0.4,) * 3, std=(0.3,) * 3
        )
        return L2D(L2D.adapt(model, settings, 12), settings, size=12).train()


def batch_of(number: int = 0, *, n: int = 8, classes: int = 3) -> Batch:
    domain = tiny_domain(n=n, seed=number, classes=classes)
    return Batch(domain.images, domain.labels, seed=100 + number)


# The formulas of the paper and its released code, sample by sample.


def plain_nll(mu: Tensor, log_variance: Tensor, z: Tensor) -> Tensor:
    return ((mu - z) ** 2 / torch.exp(log_variance) + log_variance).sum() / mu.numel()


def plain_supcon(z: Tensor, labels: Tensor, tau: float) -> Tensor:
    z = z / z.norm(dim=1, keepdim=True)
    losses = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        scores = {j: z[i] @ z[j] / tau for j in others}
        total = torch.logsumexp(torch.stack(list(scores.values())), 0)
        positives = [scores[j] - total for j in others if labels[j] == labels[i]]
        losses.append(-torch.stack(positives).mean())
    return torch.stack(losses).mean()


def plain_club(mu: Tensor, log_variance: Tensor, z: Tensor, other: Tensor) -> Tensor:
    values = []
    for i in range(len(mu)):
        own = -((mu[i] - z[i]) ** 2) / log_variance[i].exp()
        against = (mu[i] - z[other[i]]) ** 2 / log_variance[i].exp()
        values.append((own + against).sum() / 2)
    return torch.stack(values).mean()


def plain_class_mmd(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    distances = []
    for label in sorted(set(labels.tolist())):
        x, y = a[labels == label], b[labels == label]
        if len(x) < 2:
            continue
        both = torch.cat((x, y))
        n = len(both)
        distance = torch.stack([((p - q) ** 2).sum() for p in both for q in both]).view(n, n)
        width = distance.detach().sum() / (n * n - n)
        kernel = sum((-distance / (width * 2.0**power)).exp() for power in (-2, -1, 0, 1, 2))
        m = len(x)
        distances.append(kernel[:m, :m].mean() + kernel[m:, m:].mean() - 2 * kernel[:m, m:].mean())
    return torch.stack(distances).mean()


class PlainL2D:
    """Train with two optimizers in turn, without `peerdg.methods`."""

    def __init__(self, method: L2D, *, lr: float, style_lr: float) -> None:
        self.model, self.style = copy.deepcopy(method.model), copy.deepcopy(method.style)
        self.main = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.5)
        self.styles = torch.optim.SGD(self.style.parameters(), lr=style_lr)

    def embed(self, x_hat: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        neck = self.model.neck
        h = self.model.encoder(torch.cat((x_hat, x)))
        mu = F.leaky_relu(neck.mean(h), 0.01)
        log_variance = neck.log_variance(h).clamp(min=0)
        z = mu + 0.2 * torch.exp(log_variance / 2) * torch.randn(mu.shape)
        n = len(x)
        return z[:n], z[n:], mu[n:], log_variance[n:]

    def step(self, batch: Batch, *, alpha1: float, alpha2: float, beta: float) -> None:
        generator = torch.Generator().manual_seed(batch.seed)
        x, y = (batch.images.float() / 255 - 0.4) / 0.3, batch.labels
        with torch.no_grad():
            styled = (torch.sigmoid(self.style(x, generator)) - 0.4) / 0.3
        z_hat, z, mu, log_variance = self.embed(0.6 * styled + 0.4 * x, x)
        both = torch.cat((y, y))
        logits = self.model.head(torch.cat((z_hat, z)))
        ce = -logits.log_softmax(1)[torch.arange(len(both)), both].mean()
        contrast = plain_supcon(torch.cat((z_hat, z)), both, 0.07)
        self._update(
            self.main, ce + alpha2 * plain_nll(mu, log_variance, z_hat) + alpha1 * contrast
        )
        styled = (torch.sigmoid(self.style.styled(x, generator)) - 0.4) / 0.3
        z_hat, z, mu, log_variance = self.embed(0.6 * styled + 0.4 * x, x)
        other = torch.randperm(len(x), generator=generator)
        distance = plain_class_mmd(z_hat, z, y)
        self._update(self.styles, distance + beta * plain_club(mu, log_variance, z_hat, other))

    def _update(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        self.main.zero_grad(), self.styles.zero_grad()
        loss.backward()
        optimizer.step()


def test_training_equals_a_plain_alternating_loop():
    weights = {"alpha1": 0.7, "alpha2": 0.3, "beta": 40.0}
    method = method_of(style_lr=2.0, **weights)
    start = copy.deepcopy(method.state_dict())
    plain = PlainL2D(method, lr=PHASE.lr, style_lr=2.0)
    state = TrainState("train", method, make_optimizers(method, PHASE))
    guard = Guard(state)
    for number in range(3):
        batch = batch_of(number)
        train_step(state, batch, torch.arange(8), guard=guard, seed=0, key=("t", number))
        with peerdg.rng.seeded(0, "dropout", "t", number):  # the noise of the bottleneck
            plain.step(batch, **weights)
    for ours, theirs in ((method.model, plain.model), (method.style, plain.style)):
        for name, value in ours.state_dict().items():
            expected = theirs.state_dict()[name]
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=name)
    moved = {n: (v - start[n]).abs().max() for n, v in method.state_dict().items()}
    assert all(
        moved[n] > 1e-4 for n in ("style.scales.0", "style.shifts.1", "model.neck.mean.bias")
    )
    assert all(moved[f"style.convolution{i}"] == 0 for i in range(5))


def test_each_stage_changes_only_its_own_parameters():
    method = method_of()
    seen: list[tuple[str, set[str]]] = []
    optimizers = make_optimizers(method, PHASE)

    def update(name: str, loss: Tensor, terms=None) -> None:
        before = {n: p.clone() for n, p in method.named_parameters()}
        parameters = [p for g in optimizers[name].param_groups for p in g["params"]]
        loss.backward(inputs=parameters)
        optimizers[name].step()
        optimizers[name].zero_grad()
        changed = {n for n, p in method.named_parameters() if not torch.equal(p, before[n])}
        seen.append((name, changed))

    method.step(batch_of(), update)
    parameters = {n for n, _ in method.named_parameters()}
    network = {n for n in parameters if n.startswith("model.")}
    assert [name for name, _ in seen] == ["main", "style"]
    assert seen[0][1] == network
    assert seen[1][1] == parameters - network


def test_the_loss_is_the_weighted_sum_of_its_recorded_terms():
    method, batch = method_of(alpha1=0.3, alpha2=0.6, beta=0.2), batch_of()
    torch.manual_seed(0)
    terms = method.network_loss(batch, batch.generator())
    total = terms["ce"] + 0.3 * terms["contrast"] + 0.6 * terms["likelihood"]
    torch.testing.assert_close(terms["loss"].detach(), total)
    terms = method.style_loss(batch, batch.generator())
    torch.testing.assert_close(
        terms["style_loss"].detach(), terms["mmd"] + 0.2 * terms["mutual_information"]
    )


def test_with_a_mix_of_zero_both_views_are_the_clean_image():
    method, batch = method_of(mix=0.0, noise=0.0), batch_of()
    seen: list[Tensor] = []
    method.model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    method.network_loss(batch, batch.generator())
    assert torch.equal(*seen[0].chunk(2))
    torch.testing.assert_close(seen[0][:8], (batch.images / 255 - 0.4) / 0.3)


def test_batch_normalization_treats_both_views_as_one_batch():
    method, batch = method_of(batch_norm=True), batch_of()
    norm, seen = method.model.encoder.norm, []
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    method.network_loss(batch, batch.generator())
    method.style_loss(batch, batch.generator())
    assert seen == [16, 16]


def test_a_class_with_one_image_leaves_every_term_finite():
    method = method_of()
    for batch in (batch_of(n=2, classes=2), batch_of(n=4, classes=3)):
        terms = {**method.network_loss(batch), **method.style_loss(batch)}
        assert all(math.isfinite(float(value.detach())) for value in terms.values())


def test_the_noise_of_the_bottleneck_is_an_option():
    assert [method_of(noise=noise).model.neck.noise for noise in (0.0, 0.7)] == [0.0, 0.7]


def test_a_deployed_network_is_deterministic():
    model, images = method_of().deployed.eval(), tiny_domain().images
    assert torch.equal(model(images), model(images))
    mean = F.leaky_relu(model.neck.mean(model.encoder(model.prepare(images))))
    torch.testing.assert_close(model(images), model.head(mean))


def test_a_missing_bottleneck_and_too_large_kernels_are_rejected():
    with pytest.raises(ConfigError, match="needs a Gaussian bottleneck"):
        L2D(tiny_classifier(), Settings(**SMALL), size=12)
    with pytest.raises(ConfigError, match="A kernel of 17 pixels"):
        fit(Path("never"), l2d={"kernels": [5, 17]})
    for side, fits in ((5, False), (6, True)):
        settings = Settings(kernels=(3, 5))
        if fits:
            settings.check_images(side)
        else:
            with pytest.raises(ConfigError):
                settings.check_images(side)


def fit(out: Path, *, existing: str = "refuse", l2d: dict | None = None):
    model = tiny_classifier(batch_norm=True, dropout=0.3)
    return peerdg.fit(
        tiny_splits(), out=out, model=model, existing=existing, method="l2d",
        pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 2, "batch_size": 8, "optimizer": "sgd", "lr": 0.01},
        evaluate_every=1, checkpoint_minutes=0.0, l2d={**SMALL, "style_lr": 1.0, **(l2d or {})},
    )  # fmt: skip
