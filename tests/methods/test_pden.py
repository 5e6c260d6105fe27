"""PDEN: both losses against the paper's formulas written out, and how domains follow each other."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import peerdg
from peerdg.methods.base import Batch
from peerdg.methods.pden import PDEN, Settings, Views, capped_difference
from peerdg.models.classifier import Classifier
from peerdg.models.generators import DomainGenerator
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

SMALL = {"domains": 3, "k": 2, "width": 4, "dim": 6}
WEIGHTS = {"w_cls": 0.7, "w_div": 1.5, "w_cyc": 3.0, "w_info": 0.4, "delta": 0.5}
PHASE = PhaseSettings(optimizer="sgd", lr=0.05, momentum=0.5)


def method_of(*, batch_norm: bool = False, **options) -> PDEN:
    """PDEN on a tiny network that normalizes its images, from a fixed start."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = tiny_classifier(batch_norm=batch_norm)
        model = Classifier(
            model.encoder, model.head, classes=model.classes, mean=(0.4,) * 3, std=(0.3,) * 3
        )
        method = PDEN(model, Settings(**{**SMALL, **options})).train()
        for module in (method.generator, *method.finished):
            if hasattr(module, "map"):  # a spatial transformer, as after some training
                torch.nn.init.normal_(module.map.weight, std=0.1)
        return method


def batch_of(number: int = 0, *, n: int = 6) -> Batch:
    domain = tiny_domain(n=n, seed=number)
    return Batch(domain.images, domain.labels, seed=100 + number)


# The formulas of the paper and its released code, image by image.


def plain_ce(logits: Tensor, y: Tensor) -> Tensor:
    return -torch.stack(
        [row.log_softmax(0)[label] for row, label in zip(logits, y, strict=True)]
    ).mean()


def plain_probabilities(z: list[Tensor], tau: float) -> tuple[Tensor, list[list[int]]]:
    """p[i, j] of row j among all rows but i, and the rows that show the image of row i."""
    n = len(z[0])
    rows = torch.cat([each / each.norm(dim=1, keepdim=True) for each in z])
    count = len(rows)
    p = torch.stack([
        torch.stack([
            (rows[i] @ rows[j] / tau).exp() if j != i else rows[i].sum() * 0 for j in range(count)
        ])
        for i in range(count)
    ])  # fmt: skip
    same = [[j for j in range(count) if j != i and j % n == i % n] for i in range(count)]
    return p / p.sum(1, keepdim=True), same


def plain_contrast(z: list[Tensor], tau: float, *, adversarial: bool = False) -> Tensor:
    p, same = plain_probabilities(z, tau)
    values = []
    for i, positives in enumerate(same):
        each = [-(1 - p[i, j]).log() if adversarial else -p[i, j].log() for j in positives]
        values.append(torch.stack(each).mean())
    return torch.stack(values).mean()


def plain_diversity(a: Tensor, b: Tensor, delta: float) -> Tensor:
    return torch.stack(
        [(x - y).abs().mean().clamp(max=delta) for x, y in zip(a, b, strict=True)]
    ).mean()


class PlainPDEN:
    """Networks, two optimizers and a list of finished generators: nothing of `peerdg.methods`."""

    def __init__(self, method: PDEN, *, lr: float, generator_lr: float) -> None:
        self.model, self.projection = (
            copy.deepcopy(each) for each in (method.model, method.projection)
        )
        self.generator, self.inverse = (
            copy.deepcopy(each) for each in (method.generator, method.inverse)
        )
        self.old: list[DomainGenerator] = []
        self.generator_lr = generator_lr
        network = [*self.model.parameters(), *self.projection.parameters()]
        self.main = torch.optim.SGD(network, lr=lr, momentum=0.5)
        self.new_optimizer()

    def new_optimizer(self) -> None:
        pair = [*self.generator.parameters(), *self.inverse.parameters()]
        self.pair = torch.optim.Adam(pair, lr=self.generator_lr)

    def see(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h = self.model.encoder((images - 0.4) / 0.3)
        return self.model.head(h), self.projection(h)

    def step(self, batch: Batch, *, learns: bool, in_turn: bool) -> None:
        draw = torch.Generator().manual_seed(batch.seed)
        x, y = batch.images / 255, batch.labels
        source = [x]
        if self.old:
            chosen = self.old[int(torch.randint(len(self.old), (), generator=draw))]
            with torch.no_grad():
                x2 = chosen(x, torch.randn(len(x), 10, generator=draw))
            r = torch.rand(len(x), generator=draw)[:, None, None, None]
            source += [x2, r * x + (1 - r) * x2]
        x_t = self.generator(x, torch.randn(len(x), 10, generator=draw))
        other = self.generator(x, torch.randn(len(x), 10, generator=draw))
        view = int(torch.randint(len(source), (), generator=draw))
        seen = [self.see(each) for each in [*source, x_t.detach()]]
        loss = sum(plain_ce(logits, y) for logits, _ in seen)
        loss = loss + plain_contrast([z for _, z in seen], 0.07)
        z_view = seen[view][1].detach()
        if in_turn:
            self._update(self.main, loss)
        logits, z_t = self.see(x_t)
        own = WEIGHTS["w_cls"] * plain_ce(logits, y)
        own = own - WEIGHTS["w_div"] * plain_diversity(x_t, other, WEIGHTS["delta"])
        own = own + WEIGHTS["w_cyc"] * (self.inverse(x_t) - x).square().mean()
        own = own + WEIGHTS["w_info"] * plain_contrast([z_t, z_view], 0.07, adversarial=True)
        # Both gradients, then both updates.
        gradients = torch.autograd.grad(own, self._of(self.pair), retain_graph=True)
        if not in_turn:
            self._update(self.main, loss)
        if learns:
            for parameter, gradient in zip(self._of(self.pair), gradients, strict=True):
                parameter.grad = gradient
            self.pair.step()

    def _update(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward(inputs=self._of(optimizer))
        optimizer.step()

    @staticmethod
    def _of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("gradients", ["together", "in-turn"])
def test_training_equals_a_plain_loop_with_one_generator_after_the_other(gradients: str):
    method = method_of(gradients=gradients, generator_lr=0.01, **WEIGHTS)
    plain = PlainPDEN(method, lr=PHASE.lr, generator_lr=0.01)
    state = TrainState("train", method, make_optimizers(method, PHASE))
    guard = Guard(state)
    number = 0
    for epoch in range(6):  # three domains of two epochs
        method.start_epoch(epoch)
        for _ in range(2 if epoch == 0 else 1):
            batch = batch_of(number, n=4)
            train_step(state, batch, torch.arange(4), guard=guard, seed=0, key=("t", number))
            plain.step(batch, learns=epoch % 2 == 0, in_turn=gradients == "in-turn")
            number += 1
        torch.manual_seed(epoch)
        for name in method.end_epoch(epoch).reset_optimizers:
            state.optimizers[name].state.clear()
        if epoch in (1, 3):
            plain.old.append(copy.deepcopy(plain.generator))
            plain.generator.load_state_dict(method.generator.state_dict())  # as initialized
            plain.inverse.load_state_dict(method.inverse.state_dict())
            plain.new_optimizer()
    pairs = [(method.model, plain.model), (method.projection, plain.projection)]
    pairs += [(method.generator, plain.generator), (method.inverse, plain.inverse)]
    pairs += zip(method.finished, plain.old, strict=True)
    for number, (ours, theirs) in enumerate(pairs):
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(
                value, theirs.state_dict()[name], rtol=1e-3, atol=1e-4, msg=f"{number} {name}"
            )


def terms_of(method: PDEN, batch: Batch) -> tuple[Views, dict[str, Tensor]]:
    views = method.views(batch, batch.generator())
    terms, z = method.network_loss(views, batch.labels)
    return views, terms | method.generator_loss(views, z, batch.labels)


@pytest.mark.parametrize(
    ("cap", "expected"),
    [("image", ((0.1 + 0.1 + 0.1 + 0.9) / 4 + 0.5) / 2), ("pixel", (3 * 0.1 + 5 * 0.5) / 8)],
)
def test_diversity_is_capped_at_delta(cap: str, expected: float):
    a = torch.zeros(2, 1, 2, 2)
    b = torch.tensor([[0.1, 0.1, 0.1, 0.9], [0.6, 0.6, 0.6, 1.0]]).view(2, 1, 2, 2)
    b.requires_grad_()
    found = capped_difference(a, b, delta=0.5, cap=cap)
    assert float(found.detach()) == pytest.approx(expected)
    found.backward()
    assert not b.grad[1].any()  # enough is enough
    assert b.grad[0].any()


def learn(method: PDEN, batches: list[Batch], *, names: set[str]) -> list[dict[str, float]]:
    """Train with the named optimizers only; the terms of each step."""
    optimizers, found = make_optimizers(method, PhaseSettings(optimizer="adam", lr=1e-3)), []

    def update(name: str, loss: Tensor, terms=None) -> None:
        if name in names:
            parameters = [p for g in optimizers[name].param_groups for p in g["params"]]
            loss.backward(inputs=parameters)
            optimizers[name].step()
            optimizers[name].zero_grad()

    for batch in batches:
        found.append({n: float(v.detach()) for n, v in method.step(batch, update).items()})
    return found


def test_each_update_changes_only_what_its_optimizer_trains():
    method = method_of()
    before = {n: p.clone() for n, p in method.named_parameters()}
    learn(method, [batch_of()], names={"generator"})
    changed = {n for n, p in method.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if n.startswith(("generator.", "inverse."))}
    before = {n: p.clone() for n, p in method.named_parameters()}
    learn(method, [batch_of()], names={"main"})
    changed = {n for n, p in method.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if n.startswith(("model.", "projection."))}


def test_after_the_first_epochs_of_a_domain_only_the_network_learns():
    method = method_of(k=4, generator_epochs=1)
    names: list[str] = []
    for epoch in range(4):
        assert method.start_epoch(epoch) == {"domain": 1, "generator_learns": epoch == 0}
        terms = method.step(batch_of(), lambda name, *_: names.append(name))
        assert ("generator_loss" in terms) == (epoch == 0)
    assert sorted(names) == ["generator", *["main"] * 4]


@pytest.mark.parametrize(("k", "half"), [(30, 15), (4, 2), (5, 3), (1, 1)])
def test_a_generator_learns_in_half_of_its_epochs(k: int, half: int):
    assert Settings(k=k).learning_epochs == half
    assert Settings(k=k, generator_epochs=2).learning_epochs == 2


def test_finished_generators_never_change_and_the_next_one_is_new():
    method, state = method_of(generator_lr=0.01), {}
    shape = {n: v.shape for n, v in method.state_dict().items()}
    finished: list[dict[str, Tensor]] = []
    resets = []
    for epoch in range(6):
        method.start_epoch(epoch)
        learn(method, [batch_of(epoch)], names={"main", "generator"})
        state = copy.deepcopy(method.generator.state_dict())
        resets.append(method.end_epoch(epoch).reset_optimizers)
        if epoch in (1, 3):
            finished.append(state)
            new = method.generator.state_dict()
            assert not any(torch.equal(new[name], value) for name, value in state.items())
        for ours, theirs in zip(method.finished, finished, strict=False):
            assert all(torch.equal(v, theirs[n]) for n, v in ours.state_dict().items())
        assert {n: v.shape for n, v in method.state_dict().items()} == shape
    assert resets == [(), ("generator",), (), ("generator",), (), ()]
    assert not any(p.requires_grad for p in method.finished.parameters())


def test_an_earlier_generator_is_chosen_among_all_finished_ones_at_random():
    method = method_of(domains=4, k=1)
    method.start_epoch(3)
    used: list[int] = []
    for number, generator in enumerate(method.finished):
        generator.norm.register_forward_pre_hook(lambda *_, number=number: used.append(number))
    for seed in range(30):
        method.views(batch_of(), torch.Generator().manual_seed(seed))
    counts = [used.count(number) for number in range(3)]
    assert sum(counts) == 30 and min(counts) > 3
    method.start_epoch(1)
    used.clear()
    for seed in range(6):
        method.views(batch_of(), torch.Generator().manual_seed(seed))
    assert used == [0] * 6


def test_noise_and_mix_are_drawn_for_each_image():
    method = method_of()
    method.start_epoch(2)
    same = Batch(batch_of().images[:1].expand(5, -1, -1, -1), torch.zeros(5).long(), seed=3)
    views = method.views(same, same.generator())
    for made in (*views.source[1:], views.x_t, views.other):
        assert all(not torch.allclose(made[0], other) for other in made[1:])
    assert not torch.allclose(views.x_t, views.other)
    x, x2, x3 = views.source
    shares = (x3 - x2) / (x - x2)
    spread = shares.flatten(1).std(1)
    assert spread.max() < 1e-2  # one share for all pixels of an image
    shares = shares.flatten(1).median(1).values
    assert 0 <= shares.min() and shares.max() <= 1 and shares.std() > 0.05


def test_batch_normalization_sees_each_view_for_itself():
    method, batch = method_of(batch_norm=True), batch_of()
    seen: list[int] = []
    method.model.encoder.norm.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
    method.start_epoch(2)
    learn(method, [batch], names={"main", "generator"})
    assert seen == [6] * 5


def test_the_contrasted_view_is_any_of_the_source_and_has_no_gradient():
    method, seen = method_of(), set()
    method.start_epoch(2)
    for seed in range(30):
        views = method.views(batch_of(), torch.Generator().manual_seed(seed))
        seen.add(views.contrasted)
    assert seen == {0, 1, 2}
    _, z = method.network_loss(views, batch_of().labels)
    assert len(z) == 3 and not any(each.requires_grad for each in z)


@pytest.mark.parametrize("moves", ["affine", "translation"])
def test_a_spatial_transformer_is_diverse_in_its_maps_and_needs_no_inverse(moves: str):
    method, batch = method_of(generator=moves, generator_lr=1e-3), batch_of()
    method.start_epoch(2)
    views, terms = terms_of(method, batch)
    assert views.code.shape == (6, 2, 3)
    assert terms["cycle"] == 0
    expected = plain_diversity(views.code, views.other, 0.5)
    torch.testing.assert_close(terms["diversity"], expected.detach())
    torch.testing.assert_close(views.x_t, method.generator.render(views.source[0], views.code))
    found = learn(method, [batch_of(i) for i in range(4)], names={"main", "generator"})
    assert all(math.isfinite(value) for terms in found for value in terms.values())
    assert not list(method.inverse.parameters())


def fit(out: Path, *, existing: str = "refuse", **options):
    return peerdg.fit(
        tiny_splits(), out=out, model=tiny_classifier(batch_norm=True, dropout=0.3),
        existing=existing, method="pden", pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 4, "batch_size": 8, "lr": 0.01}, evaluate_every=2,
        checkpoint_minutes=0.0,
        pden={**SMALL, "domains": 2, "generator_epochs": 1, "generator_lr": 0.01, **options},
    )  # fmt: skip


def test_records_name_the_domain_and_the_checkpoint_has_every_generator(tmp_path):
    out = fit(tmp_path / "run").path
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epochs = [r for r in records if r["kind"] == "epoch" and r["phase"] == "train"]
    assert [r["domain"] for r in epochs] == [1, 1, 2, 2]
    assert [r["generator_learns"] for r in epochs] == [True, False, True, False]
    assert {"loss", "ce_clean", "ce_new", "contrast", "generator_loss", "cycle"} <= set(epochs[0])
    assert "generator_loss" not in epochs[1]
    stored = {
        name
        for file in sorted((out / "checkpoint").glob("*/"))[-1].glob("*.safetensors")
        for name in load_file(file)
    }
    assert "method.finished.0.encode.0.weight" in stored
    model = load_file(out / "model/model.safetensors")
    assert not any("generator" in name or "projection" in name for name in model)


def test_a_run_is_inert_if_its_inverse_networks_stay_at_one_color():
    stuck = [{"domain": 1, "cycle_share": 1.4}, {"domain": 1, "cycle_share": 1.1}, {"domain": 1}]
    assert Settings().inert(stuck) == "cycle loss 1.10 of the variance of the images"
    assert Settings().inert([*stuck, {"domain": 2, "cycle_share": 0.04}]) == (
        "cycle loss 0.57 of the variance of the images"
    )
    assert (
        Settings().inert([{"domain": 1, "cycle_share": 1.2}, {"domain": 1, "cycle_share": 0.2}])
        is None
    )
    assert Settings().inert([{"domain": 1, "cycle": 0.108}]) is None  # of an earlier version
