"""Whole runs compared with a plain training loop, written out here.

The loop below shares nothing with `peerdg.train`, `peerdg.losses`, `peerdg.methods` and
`peerdg.rng`: seeds, orders, rates, updates, losses, averages and accuracies are computed by code of
its own, from the documentation. What it takes from the package are networks, and RandAugment and
random views, which other tests compare with torchvision.
"""

import copy
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import peerdg
from peerdg.augment.randaugment import RandAugment
from peerdg.augment.view import RandomView
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.models.classifier import Classifier
from tests.conftest import tiny_classifier, tiny_domain

SEED, BATCH, K = 5, 8, 2
W, LAM, HIDDEN, DIM = 0.1, 0.02, 6, 4
SPLITS = Splits(
    train=tiny_domain(n=27),  # three batches of 8, and three images that an epoch leaves out
    validation=tiny_domain("validation", n=10, seed=1),
    targets={"one": tiny_domain("one", n=40, seed=2)},
)

SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.8, "weight_decay": 0.05}
ADAM = {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}
SLOW = {**SGD, "lr": 0.01}  # PEER multiplies rounding errors at a higher rate
HALVED = {"lr_step": 2, "lr_gamma": 0.5}


def seed_of(*key: str | int) -> int:
    text = "/".join(str(part) for part in (SEED, *key))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") // 2


def generator_of(*key: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*key))


class PlainSGD:
    """b <- momentum b + g + decay θ, θ <- θ - rate b; b starts as the first gradient."""

    def __init__(self, parameters: list[Tensor], options: dict[str, Any]) -> None:
        self.parameters = parameters
        self.momentum, self.decay = options["momentum"], options["weight_decay"]
        self.velocity = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def update(self, gradients: tuple[Tensor, ...], rate: float) -> None:
        for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
            self.velocity[i] = self.momentum * self.velocity[i] + g + self.decay * p
            p.copy_(p - rate * self.velocity[i])


class PlainAdam:
    """Algorithm 1 of Kingma and Ba, 2015, with g + decay θ instead of g."""

    def __init__(self, parameters: list[Tensor], options: dict[str, Any]) -> None:
        self.parameters, self.decay, self.t = parameters, options["weight_decay"], 0
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def update(self, gradients: tuple[Tensor, ...], rate: float) -> None:
        self.t += 1
        for i, (p, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            g = gradient + self.decay * p
            self.m[i] = 0.9 * self.m[i] + 0.1 * g
            self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
            m = self.m[i] / (1 - 0.9**self.t)
            v = self.v[i] / (1 - 0.999**self.t)
            p.copy_(p - rate * m / (v.sqrt() + 1e-8))


def plain_rates(options: dict[str, Any]) -> Iterator[float]:
    """Multiplied by gamma when another `lr_step` epochs are over."""
    rate = options["lr"]
    for epoch in range(options["epochs"]):
        if epoch > 0 and "lr_step" in options and epoch % options["lr_step"] == 0:
            rate = rate * options["lr_gamma"]
        yield rate


def plain_order(phase: str, epoch: int, options: dict[str, Any]) -> Iterator[list[int]]:
    """The rows of each step: a new permutation in every epoch, or draws with replacement."""
    generator, n = generator_of("order", phase, epoch), len(SPLITS.train)
    if "steps_per_epoch" in options:
        shape = (options["steps_per_epoch"], BATCH)
        yield from torch.randint(n, shape, generator=generator).tolist()
        return
    rows = torch.randperm(n, generator=generator).tolist()
    for step in range(n // BATCH):
        yield rows[step * BATCH : step * BATCH + BATCH]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over images of -log softmax of the true class."""
    own = [row[label] - torch.logsumexp(row, 0) for row, label in zip(logits, labels, strict=True)]
    return -sum(own) / len(own)


def barlow_twins(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Σ_i (1 - M_ii)² + λ Σ_{i≠j} M_ij² over standardized columns."""
    n, dim = z_a.shape
    total = torch.zeros(())
    columns = [
        [(c - c.mean()) / ((c - c.mean()).square().sum() / n + 1e-5).sqrt() for c in z.T]
        for z in (z_a, z_b)
    ]
    for i in range(dim):
        for j in range(dim):
            m = (columns[0][i] * columns[1][j]).sum() / n
            total = total + ((1 - m).square() if i == j else LAM * m.square())
    return total


@dataclass
class Plain:
    """The networks and expected records of one run."""

    method: str
    network: Classifier
    task: Classifier = field(init=False)
    head: nn.Module = field(init=False)
    snapshots: list[dict[str, Tensor]] = field(default_factory=list)
    view: RandomView | None = None
    reset_proxy: bool = False
    stored: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)

    def run(self, pretrain: dict[str, Any], main: dict[str, Any]) -> None:
        if pretrain["epochs"]:
            self.train("pretrain", pretrain, "erm")
        self.task = copy.deepcopy(self.network).eval()
        torch.manual_seed(seed_of("init", "train"))
        layers = nn.Linear(8, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM)
        self.head = nn.Sequential(*layers)
        self.evaluate(0)
        self.train("train", main, self.method)

    def train(self, phase: str, options: dict[str, Any], method: str) -> None:
        parameters = list(self.network.parameters())
        parameters += self.head.parameters() if method == "peer" else []
        kind = PlainSGD if options["optimizer"] == "sgd" else PlainAdam
        optimizer = kind(parameters, options)
        for epoch, rate in enumerate(plain_rates(options)):
            self.network.train()
            steps = []
            for step, rows in enumerate(plain_order(phase, epoch, options)):
                x, y = SPLITS.train.images[rows], SPLITS.train.labels[rows]
                if self.view is not None:
                    x = self.view(x, generator_of("view", phase, epoch, step))
                x_bar = self.augmented(x, epoch, generator_of("augment", phase, epoch, step))
                torch.manual_seed(seed_of("dropout", phase, epoch, step))
                terms = self.terms(method, x / 255, x_bar / 255, y)
                optimizer.update(torch.autograd.grad(terms["loss"], parameters), rate)
                steps.append({name: float(value.detach()) for name, value in terms.items()})
            means = {name: math.fsum(t[name] for t in steps) / len(steps) for name in steps[0]}
            self.records.append(
                {"phase": phase, "epoch": epoch + 1, "lr": rate, **means, **self.drawn}
            )
            if phase == "train":
                self.end_epoch(epoch + 1, last=options["epochs"])
                if self.reset_proxy and (epoch + 1) % K == 0:
                    optimizer = kind(parameters, options)

    def augmented(self, x: Tensor, epoch: int, generator: torch.Generator) -> Tensor:
        draw = generator_of("policy", epoch // K)
        num_ops = int(torch.randint(1, 4 + 1, (), generator=draw))
        magnitude = int(torch.randint(1, 20 + 1, (), generator=draw))
        self.drawn = {"policy": {"num_ops": num_ops, "magnitude": magnitude}}
        return RandAugment(num_ops, magnitude)(x, generator)

    def terms(self, method: str, x: Tensor, x_bar: Tensor, y: Tensor) -> dict[str, Tensor]:
        if method == "erm":
            self.drawn = {}
            loss = cross_entropy(self.network(x), y)
            return {"loss": loss, "ce_clean": loss}
        h = self.network.features(torch.cat([x, x_bar]))  # one pass: dropout draws once for both
        logits = self.network.head(h)
        ce, ce_bar = cross_entropy(logits[: len(x)], y), cross_entropy(logits[len(x) :], y)
        terms = {"loss": ce + ce_bar, "ce_clean": ce, "ce_augmented": ce_bar}
        if method == "randaugment":
            return terms
        with torch.no_grad():
            h_f = self.task.features(x)
        regularizer = barlow_twins(self.head(h_f), self.head(h[len(x) :]))
        return {**terms, "loss": ce + ce_bar + W * regularizer, "regularizer": regularizer}

    def end_epoch(self, done: int, *, last: int) -> None:
        if done % K == 0:
            self.snapshots.append(copy.deepcopy(self.network.state_dict()))
            means = {
                name: torch.stack([s[name] for s in self.snapshots]).mean(0)
                for name in self.snapshots[0]
            }
            self.task.load_state_dict(means)
            if self.reset_proxy:
                self.network.load_state_dict(means)
        if done % K == 0 or done == last:
            self.evaluate(done)

    @torch.no_grad()
    def evaluate(self, epoch: int) -> None:
        self.stored[epoch] = copy.deepcopy(self.network.state_dict())
        models = {"proxy": self.network, "task": self.task}
        if self.method != "peer":
            models = {"model": self.network}
        for name, model in models.items():
            for domain in ("validation", "one"):
                images = SPLITS.validation if domain == "validation" else SPLITS.targets[domain]
                assert images is not None
                self.records.append(
                    {"model": name, "domain": domain, "epoch": epoch, **judged(model, images)}
                )

    @property
    def deployed(self) -> Classifier:
        return self.task if self.method == "peer" else self.network


def judged(model: Classifier, domain: Domain) -> dict[str, Any]:
    """Image by image."""
    correct, loss = 0, 0.0
    model.eval()
    for image, label in zip(domain.images, domain.labels.tolist(), strict=True):
        logits = model(image[None] / 255)[0]
        correct += logits.tolist().index(max(logits.tolist())) == label
        loss += float(torch.logsumexp(logits, 0) - logits[label])
    n = len(domain)
    return {"n": n, "correct": correct, "accuracy": correct / n * 100, "loss": loss / n}


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "erm, sgd": ("erm", {"epochs": 0}, {"epochs": 5, **SGD, **HALVED}),
    "erm, adam": ("erm", {"epochs": 3, **SGD, **HALVED}, {"epochs": 3, **ADAM}),
    "randaugment, sgd": ("randaugment", {"epochs": 2, **ADAM}, {"epochs": 5, **SGD, **HALVED}),
    "randaugment, random views": ("randaugment", {"epochs": 2, **SGD}, {"epochs": 3, **SGD}),
    "peer, sgd": ("peer", {"epochs": 2, **SGD}, {"epochs": 6, **SLOW, **HALVED}),
    "peer, adam": ("peer", {"epochs": 0}, {"epochs": 4, **ADAM, **HALVED}),
    "peer, reset": ("peer", {"epochs": 0}, {"epochs": 6, **SLOW}),
    "peer, drawn with replacement": (
        "peer",
        {"epochs": 1, **SGD},
        {"epochs": 4, "steps_per_epoch": 4, **SLOW},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_the_plain_loop(case: str, tmp_path: Path):
    method, pretrain, main = CASES[case]
    view = {"crop": (0.5, 1.0), "flip": 0.5} if "views" in case else {}
    own = {"k": K} if method == "randaugment" else {}
    if method == "peer":
        own = {"k": K, "w": W, "lam": LAM, "head_layers": 2, "head_hidden": HIDDEN, "head_dim": DIM}
        own |= {"scale": "sum", "reset_proxy": "reset" in case}
    run = peerdg.fit(
        SPLITS,
        out=tmp_path / "run",
        model=tiny_classifier(dropout=0.2).eval(),  # as one that was loaded
        method=method,
        seed=SEED,
        pretrain={"batch_size": BATCH, **pretrain},
        train={"batch_size": BATCH, **main},
        transform=view,
        evaluate_every=K,
        crafted="off",
        keep_snapshots=True,
        **({"augment": {"operations": "torchvision", "policy": "default"}} if own else {}),
        **({method: own} if own else {}),
    )
    plain = Plain(method, tiny_classifier(dropout=0.2))
    plain.view = RandomView(12, **view) if view else None
    plain.reset_proxy = "reset" in case
    with torch.random.fork_rng():
        plain.run(pretrain, main)
    start = tiny_classifier().state_dict()
    for name, value in run.model.classifier.state_dict().items():
        assert_equal(value, plain.deployed.state_dict()[name], name)
        assert (value - start[name]).abs().max() > 0.01, f"{name} hardly moved: nothing was tested"
    for epoch, weights in plain.stored.items():
        stored = load_file(run.path / f"snapshots/{epoch:06d}.safetensors")
        for name, value in weights.items():
            assert_equal(stored[name], value, f"{name} after {epoch} epochs")
    assert len(run.records) == len(plain.records)
    for record, wanted in zip(run.records, plain.records, strict=True):
        for name, value in wanted.items():
            rounded = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            assert record[name] == rounded, (name, record, wanted)


def assert_equal(actual: Tensor, expected: Tensor, name: str) -> None:
    """Compare up to rounding errors, which training amplifies."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4, msg=name)
