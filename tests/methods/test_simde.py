"""SimDE: both losses written out, who guides whom, and a deployed ensemble of two networks."""

import copy
import json
import math

import pytest
import torch
from torch import Tensor

import peerdg
from peerdg.methods.base import Batch
from peerdg.methods.simde import Settings, SimDE, best_entropy
from peerdg.models.classifier import Classifier
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

PHASE = PhaseSettings(optimizer="sgd", lr=0.05, momentum=0.5)


def method_of(*, batch_norm: bool = False, **options) -> SimDE:
    """SimDE on a tiny network that normalizes its images, from a fixed start."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = tiny_classifier(batch_norm=batch_norm)
        model = Classifier(
            model.encoder, model.head, classes=model.classes, mean=(0.4,) * 3, std=(0.3,) * 3
        )
        return SimDE(model, Settings(**{"width": 4, **options})).train()


def batch_of(number: int = 0, *, n: int = 6) -> Batch:
    domain = tiny_domain(n=n, seed=number)
    return Batch(domain.images, domain.labels, seed=100 + number)


def made_by(method: SimDE, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    x = batch.images / 255
    return x, method.generate(x, batch.generator())


def plain_ce(logits: Tensor, y: Tensor) -> Tensor:
    rows = [-(row - row.logsumexp(0))[label] for row, label in zip(logits, y, strict=True)]
    return torch.stack(rows).mean()


def plain_entropy(logits: Tensor) -> Tensor:
    p = logits.softmax(1)
    return torch.stack([-(row * row.log()).sum() for row in p]).mean()


class PlainSimDE:
    """Two networks, two generators, an optimizer for each: nothing of `peerdg.methods`."""

    def __init__(self, method: SimDE, *, lr: float, generator_lr: float) -> None:
        self.f1, self.f2 = copy.deepcopy(method.first), copy.deepcopy(method.second)
        self.g1, self.g2 = (copy.deepcopy(g) for g in method.generators)
        self.beta, self.w_contrast = method.settings.beta, method.settings.w_contrast
        self.classifiers = [
            torch.optim.SGD(f.parameters(), lr=lr, momentum=0.5) for f in (self.f1, self.f2)
        ]
        self.generators = [
            torch.optim.Adam(g.parameters(), lr=generator_lr) for g in (self.g1, self.g2)
        ]

    def see(self, model: Classifier, images: Tensor) -> Tensor:
        return model.head(model.encoder((images - 0.4) / 0.3))

    def step(self, batch: Batch) -> None:
        draw = torch.Generator().manual_seed(batch.seed)
        x, y = batch.images / 255, batch.labels
        x1 = self.g1(x, torch.randn(len(x), 10, generator=draw))
        x2 = self.g2(x, torch.randn(len(x), 10, generator=draw))
        losses = []
        for model in (self.f1, self.f2):
            views = [x, x1.detach(), x2.detach()]
            losses.append(sum(plain_ce(self.see(model, view), y) for view in views))
        for guide, images in ((self.f2, x1), (self.f1, x2)):  # switched
            logits = self.see(guide, images)
            faded = sum(
                max(0.0, 1 - a.std() / b.std()) ** 2 for a, b in zip(images, x, strict=True)
            )
            faded = self.w_contrast * faded / len(x)
            losses.append(plain_ce(logits, y) - self.beta * plain_entropy(logits) + faded)
        optimizers = [*self.classifiers, *self.generators]
        parameters = [[p for g in o.param_groups for p in g["params"]] for o in optimizers]
        gradients = [
            torch.autograd.grad(loss, own, retain_graph=True)
            for loss, own in zip(losses, parameters, strict=True)
        ]
        for optimizer, own, found in zip(optimizers, parameters, gradients, strict=True):
            for parameter, gradient in zip(own, found, strict=True):
                parameter.grad = gradient
            optimizer.step()


def test_training_equals_a_plain_loop_of_four_optimizers():
    method = method_of(beta=0.7, w_contrast=3.0, generator_lr=0.01)
    plain = PlainSimDE(method, lr=PHASE.lr, generator_lr=0.01)
    state = TrainState("train", method, make_optimizers(method, PHASE))
    guard = Guard(state)
    for number in range(4):
        batch = batch_of(number)
        train_step(state, batch, torch.arange(6), guard=guard, seed=0, key=("t", number))
        plain.step(batch)
    ours = (method.first, method.second, *method.generators)
    theirs = (plain.f1, plain.f2, plain.g1, plain.g2)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for name, value in a.state_dict().items():
            torch.testing.assert_close(
                value, b.state_dict()[name], rtol=1e-3, atol=1e-4, msg=f"{number} {name}"
            )


def generator_gradients(method: SimDE, batch: Batch, which: int) -> list[Tensor]:
    loss = method.generator_loss(*made_by(method, batch), batch.labels)["generator_loss"]
    return list(torch.autograd.grad(loss, list(method.generators[which].parameters())))


def other_weights(model: Classifier) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape))


@pytest.mark.parametrize(
    ("guidance", "epoch", "crossed"),
    [
        ("switched", 0, True),
        ("switched", 1, True),
        ("own", 0, False),
        ("alternating", 0, True),
        ("alternating", 1, False),
    ],
)
def test_the_gradient_of_a_generator_depends_on_its_guide_only(guidance, epoch, crossed):
    batch = batch_of()
    for which in (0, 1):
        method = method_of(guidance=guidance)
        method.start_epoch(epoch)
        before = generator_gradients(method, batch, which)
        guide, other = (method.second, method.first) if which == 0 else method.classifiers
        if not crossed:
            guide, other = other, guide
        other_weights(other)
        same = generator_gradients(method, batch, which)
        assert all(torch.equal(a, b) for a, b in zip(before, same, strict=True))
        other_weights(guide)
        changed = generator_gradients(method, batch, which)
        assert not any(torch.equal(a, b) for a, b in zip(before, changed, strict=True))


def test_each_update_changes_only_what_its_optimizer_trains():
    method = method_of()
    optimizers, seen = make_optimizers(method, PHASE), {}

    def update(name: str, loss: Tensor, terms=None) -> None:
        before = {n: p.clone() for n, p in method.named_parameters()}
        loss.backward(inputs=[p for g in optimizers[name].param_groups for p in g["params"]])
        optimizers[name].step()
        seen[name] = {n for n, p in method.named_parameters() if not torch.equal(p, before[n])}

    method.step(batch_of(), update)
    generators = {n for n, _ in method.named_parameters() if "_generator." in n}
    assert seen["generators"] == generators
    assert seen["main"] == {n for n, _ in method.named_parameters()} - generators


def test_the_second_classifier_is_a_copy_with_a_head_of_its_own():
    method = method_of()
    first, second = (model.state_dict() for model in method.classifiers)
    different = {name for name, value in first.items() if not torch.equal(value, second[name])}
    assert different == {"head.weight", "head.bias"}
    pointers = [{p.data_ptr() for p in model.parameters()} for model in method.classifiers]
    assert not pointers[0] & pointers[1]


def test_the_ensemble_is_the_mean_of_both_probabilities_and_follows_them():
    method, images = method_of(batch_norm=True).eval(), tiny_domain().images
    for _ in range(2):
        with torch.no_grad():
            expected = (method.first(images).softmax(1) + method.second(images).softmax(1)) / 2
            assert method.deployed_name == "ensemble"
            torch.testing.assert_close(method.deployed(images).softmax(1), expected)
        for model in method.classifiers:  # learn a little
            other_weights(model)
    assert list(method.evaluated_networks) == ["first", "second", "ensemble"]
    assert not any("ensemble" in name for name in method.state_dict())


def test_batch_normalization_sees_each_view_for_itself():
    method, seen = method_of(batch_norm=True), []
    method.second.encoder.norm.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
    method.step(batch_of(), lambda *_: None)
    assert seen == [6] * 4  # three views, and that of the generator it guides


def test_records_have_both_classifiers_the_ensemble_and_who_guides(tmp_path):
    out = peerdg.fit(
        tiny_splits(), out=tmp_path / "run", model=tiny_classifier(batch_norm=True),
        method="simde", pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 2, "batch_size": 8}, evaluate_every=1,
        simde={"width": 4, "guidance": "alternating"},
    ).path  # fmt: skip
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epochs = [r for r in records if r["kind"] == "epoch" and r["phase"] == "train"]
    assert [r["switched"] for r in epochs] == [True, False]
    names = {
        "loss",
        "ce_first",
        "ce_second",
        "generator_loss",
        "generator_ce",
        "entropy",
        "entropy_share",
        "image_contrast",
    }
    assert all(names <= set(record) for record in epochs)
    evaluated = {r["model"] for r in records if r["kind"] == "evaluation" and r["epoch"] == 2}
    assert evaluated == {"first", "second", "ensemble"}
    assert json.loads((out / "done.json").read_text())["deployed"] == "ensemble"


def last_terms(method: SimDE, x: Tensor, y: Tensor) -> dict[str, float]:
    """Let images that start as x descend on the generators' loss, with fixed guides."""
    made = [x.clone().requires_grad_() for _ in method.generators]
    optimizer = torch.optim.Adam(made, lr=0.02)
    for _ in range(60):
        terms = method.generator_loss(x, made, y)
        optimizer.zero_grad()
        terms["generator_loss"].backward(inputs=made)
        optimizer.step()
    return {name: float(value.detach()) for name, value in terms.items()}


def test_images_keep_the_contrast_that_the_old_objective_lost():
    left = torch.full((3, 8, 8), -1.0)
    left[:, :, :4] = 1.0
    x, y = 0.5 + 0.4 * torch.stack((left, -left)), torch.tensor([0, 1])
    head = torch.nn.Linear(192, 2, bias=False)
    head.weight.data = torch.stack((left, -left)).flatten(1) / 24  # sure of x
    model = Classifier(torch.nn.Flatten(), head, classes=("left", "right"))
    found = []
    for weight in (0.0, Settings().w_contrast):
        method = SimDE(model, Settings(w_contrast=weight, width=4))
        method.second.load_state_dict(model.state_dict())
        found.append(last_terms(method, x, y))
    faded, kept = found
    assert (
        faded["generator_ce"] < 1 and faded["image_contrast"] < 0.5 < 0.8 < kept["image_contrast"]
    )
    reason = f"images with {faded['image_contrast']:.2f} of the contrast of the source"
    assert Settings().inert([faded]) == reason
    assert Settings().inert([{**kept, "entropy_share": 0.9}]) is None


def test_the_best_entropy_is_that_of_an_image_that_is_right_but_unsure():
    p = 0.68  # of ten classes with β = 0.5, see the card
    h = -p * math.log(p) - (1 - p) * math.log((1 - p) / 9)
    assert best_entropy(0.5, 10) == pytest.approx(h, abs=5e-3)
    assert best_entropy(0.0, 10) < 0.01 < best_entropy(2.0, 10) < math.log(10) + 1e-9


def test_a_run_is_inert_if_its_guides_are_sure_of_all_images():
    records = [{"entropy_share": 0.9, "image_contrast": 1.0}]
    assert Settings().inert(records) is None
    records = [{"entropy_share": share, "image_contrast": 1.0} for share in (0.3, 0.1, 0.05)]
    assert Settings().inert(records) == "entropy 0.15 of its optimum"
    assert Settings().inert([{"entropy": 0.2}]) is None  # records of an earlier version
    assert Settings().inert([]) is None
