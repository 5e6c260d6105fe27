"""L2D: both stages against the paper's formulas written out, and a run from start to export."""

import copy
import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import peerdg
from peerdg.cli.main import run
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, Stopped
from peerdg.methods.base import Batch
from peerdg.methods.l2d import L2D, Settings
from peerdg.models.classifier import Classifier
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits
from tests.reliability.processes import environment

SMALL = {"kernels": (3, 5), "dim": 6}
PHASE = PhaseSettings(optimizer="sgd", lr=0.05, momentum=0.5)


def method_of(*, batch_norm: bool = False, **options) -> L2D:
    """L2D on a tiny network that normalises its images, from a fixed start."""
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
    found = []
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
        found.append(kernel[:m, :m].mean() + kernel[m:, m:].mean() - 2 * kernel[:m, m:].mean())
    return torch.stack(found).mean()


class PlainL2D:
    """Two optimizers in turn, without anything of `peerdg.methods`."""

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
    weights = {"alpha1": 0.7, "alpha2": 0.3, "beta": 0.4}
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


def value_of(method: L2D, batch: Batch, term: str, stage: str) -> Tensor:
    """A term of a stage with the same draws at every call."""
    torch.manual_seed(9)
    return getattr(method, f"{stage}_loss")(batch, batch.generator())[term]


def distinct_classes(**options) -> tuple[L2D, Batch]:
    """A batch with no class twice: there is no MMD, the mutual information is all there is."""
    method = method_of(**options).double()
    method.model.head = torch.nn.Linear(6, 6).double()
    return method, batch_of(n=6, classes=6)


def test_the_gradient_of_the_style_module_is_that_of_finite_differences():
    """Of the mutual information; the MMD's bandwidth has no gradient, so its slope is another."""
    method, batch = distinct_classes(beta=3.0)
    loss = value_of(method, batch, "style_loss", "style")
    parameters = dict(method.style.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    eps = 1e-6
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        place = gradient.abs().argmax()
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.view(-1)[place] += sign * eps
                ends.append(value_of(method, batch, "style_loss", "style"))
                parameter.view(-1)[place] -= sign * eps
        slope = (ends[0] - ends[1]) / (2 * eps)
        torch.testing.assert_close(gradient.view(-1)[place], slope, rtol=1e-3, atol=1e-8, msg=name)


def style_step(method: L2D, batch: Batch) -> None:
    loss = value_of(method, batch, "style_loss", "style")
    optimizer = torch.optim.SGD(method.style.parameters(), lr=method.settings.style_lr)
    loss.backward(inputs=list(method.style.parameters()))
    optimizer.step()


def test_the_style_module_lowers_the_distance_of_each_class():
    method, batch = method_of(beta=0.0, style_lr=0.5).double(), batch_of()
    before = value_of(method, batch, "mmd", "style")
    style_step(method, batch)
    assert value_of(method, batch, "mmd", "style") < before


def test_the_style_module_lowers_the_information_that_the_network_raises():
    method, batch = distinct_classes(beta=1.0, style_lr=0.5)
    assert value_of(method, batch, "mmd", "style") == 0
    before = value_of(method, batch, "mutual_information", "style")
    style_step(method, batch)
    after = value_of(method, batch, "mutual_information", "style")
    assert after < before
    # The network descends the likelihood term, whose distances T has raised.
    nll = value_of(method, batch, "likelihood", "network")
    loss = value_of(method, batch, "loss", "network") - value_of(method, batch, "ce", "network")
    loss = loss - value_of(method, batch, "contrast", "network")
    torch.testing.assert_close(loss.detach(), nll)
    gradients = torch.autograd.grad(loss, list(method.model.parameters()), allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(method.model.parameters(), gradients, strict=True):
            parameter -= 0 if gradient is None else 1e-3 * gradient
    assert value_of(method, batch, "likelihood", "network") < nll


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
    assert all(not v.requires_grad for n, v in terms.items() if n != "style_loss")


def test_with_a_mix_of_zero_both_views_are_the_clean_image():
    method, batch = method_of(mix=0.0, noise=0.0), batch_of()
    seen: list[Tensor] = []
    method.model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    method.network_loss(batch, batch.generator())
    assert torch.equal(*seen[0].chunk(2))
    torch.testing.assert_close(seen[0][:8], (batch.images / 255 - 0.4) / 0.3)


def test_restyled_images_stay_within_those_that_the_network_can_be_given():
    """A share of sigmoid and of x, both in [0, 1], before normalisation."""
    method, batch = method_of(), batch_of()
    seen: list[Tensor] = []
    method.model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    method.network_loss(batch, batch.generator())
    method.style_loss(batch, batch.generator())
    for images in seen:
        pixels = images[:8] * 0.3 + 0.4
        assert 0 <= pixels.min() and pixels.max() <= 1
        assert not torch.allclose(images[:8], images[8:])


def test_batch_normalisation_sees_both_views_as_one_batch():
    method, batch = method_of(batch_norm=True), batch_of()
    norm, seen = method.model.encoder.norm, []
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    method.network_loss(batch, batch.generator())
    method.style_loss(batch, batch.generator())
    assert seen == [16, 16]


def test_a_batch_has_the_same_images_wherever_it_is_seen():
    """All that T draws comes from the batch's seed."""
    batch = batch_of()
    found = []
    for global_seed in (1, 2):
        method = method_of(noise=0.0)
        torch.manual_seed(global_seed)
        generator = batch.generator()
        terms = {**method.network_loss(batch, generator), **method.style_loss(batch, generator)}
        found.append({name: value.detach() for name, value in terms.items()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_a_class_met_once_leaves_every_term_finite():
    method = method_of()
    for batch in (batch_of(n=2, classes=2), batch_of(n=4, classes=3)):
        terms = {**method.network_loss(batch), **method.style_loss(batch)}
        assert all(math.isfinite(float(value.detach())) for value in terms.values())


def test_a_deployed_network_is_deterministic():
    model, images = method_of().deployed.eval(), tiny_domain().images
    assert torch.equal(model(images), model(images))
    mean = F.leaky_relu(model.neck.mean(model.encoder(model.prepare(images))))
    torch.testing.assert_close(model(images), model.head(mean))


def test_a_network_without_bottleneck_and_kernels_too_large_are_refused():
    with pytest.raises(ConfigError, match="needs a Gaussian bottleneck"):
        L2D(tiny_classifier(), Settings(**SMALL), size=12)
    with pytest.raises(ConfigError, match=r"A kernel of 17 pixels .* images of 12 x 12"):
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


@pytest.mark.parametrize("bottleneck", ["pretrain", "train"])
def test_a_stop_between_both_stages_ends_bitwise_equal(bottleneck, tmp_path, monkeypatch):
    own = {"bottleneck": bottleneck}
    whole = fit(tmp_path / "whole", l2d=own).path
    for step in (1, 4):
        out, calls, style_loss = tmp_path / f"{step}", [], L2D.style_loss

        def stopped(self, *args, calls=calls, style_loss=style_loss, step=step):
            calls.append(0)
            if len(calls) == step:
                signal.raise_signal(signal.SIGTERM)
            return style_loss(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(L2D, "style_loss", stopped)
            with pytest.raises(Stopped):
                fit(out, l2d=own)
        state = {
            k: v
            for file in sorted((out / "checkpoint").glob("*/"))[-1].glob("*.safetensors")
            for k, v in load_file(file).items()
        }
        assert "method.style.scales.0" in state
        fit(out, l2d=own, existing="resume")
        for file in ("model/model.safetensors", "metrics.jsonl"):
            assert (out / file).read_bytes() == (whole / file).read_bytes(), (step, file)


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a named network and images of 32 pixels, as a user would have it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    images = torch.randint(0, 256, (24, 3, 32, 32), generator=generator, dtype=torch.uint8)
    domain = Domain("source", ("a", "b", "c"), images, labels)
    out = tmp_path_factory.mktemp("l2d") / "run"
    peerdg.fit(
        Splits(domain, domain, {"one": domain}), out=out, method="l2d",
        backbone="digits-cnn-half", pretrain={"epochs": 1, "batch_size": 8}, crafted="off",
        train={"epochs": 2, "batch_size": 8}, evaluate_every=2, l2d={"dim": 16},
    )  # fmt: skip
    return out


def test_onnx_answers_like_torch(digits_run: Path, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    assert run(["export", str(digits_run), "--format", "onnx", "-o", str(file)], debug=False) == 0
    images = np.random.default_rng(0).integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)
    found = onnxruntime.InferenceSession(file).run(None, {"images": images})[0]
    with torch.no_grad():
        expected = peerdg.load_model(digits_run).classifier(torch.from_numpy(images))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_model_folder_is_used_without_the_method(digits_run: Path, tmp_path: Path):
    moved = Path((digits_run / "model").rename(tmp_path / "model"))
    try:
        code = (
            "import sys, peerdg, numpy as np; "
            f"m = peerdg.load_model({str(moved)!r}); "
            "m.predict(np.zeros((40, 40, 3), np.uint8)); "
            "sys.exit('peerdg.methods.l2d' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0
        about = json.loads((moved / "model.json").read_text())
        assert about["added_layers"][0]["outputs"] == 16
    finally:
        moved.rename(digits_run / "model")
