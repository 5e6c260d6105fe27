"""SimDE: both losses written out, who guides whom, and a deployed ensemble of two networks."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import peerdg
from peerdg.cli.main import run
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.methods.base import Batch
from peerdg.methods.simde import Settings, SimDE
from peerdg.models.classifier import Classifier
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

PHASE = PhaseSettings(optimizer="sgd", lr=0.05, momentum=0.5)


def method_of(*, batch_norm: bool = False, **options) -> SimDE:
    """SimDE on a tiny network that normalises its images, from a fixed start."""
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

    def __init__(self, method: SimDE, *, lr: float, generator_lr: float, beta: float) -> None:
        self.f1, self.f2 = copy.deepcopy(method.first), copy.deepcopy(method.second)
        self.g1, self.g2 = (copy.deepcopy(g) for g in method.generators)
        self.beta = beta
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
            losses.append(plain_ce(logits, y) - self.beta * plain_entropy(logits))
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
    method = method_of(beta=0.7, generator_lr=0.01)
    plain = PlainSimDE(method, lr=PHASE.lr, generator_lr=0.01, beta=0.7)
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
    _, made = made_by(method, batch)
    loss = method.generator_loss(made, batch.labels)["generator_loss"]
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


def test_a_classifier_learns_from_both_generators_and_not_from_the_other_classifier():
    method, batch = method_of(), batch_of()
    x, made = made_by(method, batch)

    def gradients(made: list[Tensor]) -> list[Tensor]:
        loss = method.classifier_loss(x, made, batch.labels)["loss"]
        return list(torch.autograd.grad(loss, list(method.first.parameters())))

    before = gradients(made)
    for view in (0, 1):
        changed = [images.flip(0) if n == view else images for n, images in enumerate(made)]
        assert not all(torch.equal(a, b) for a, b in zip(before, gradients(changed), strict=True))
    other_weights(method.second)
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(made), strict=True))


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


def test_the_loss_is_the_weighted_sum_of_its_recorded_terms():
    method, batch = method_of(beta=0.3), batch_of()
    x, made = made_by(method, batch)
    terms = method.classifier_loss(x, made, batch.labels)
    torch.testing.assert_close(terms["loss"].detach(), terms["ce_first"] + terms["ce_second"])
    own = method.generator_loss(made, batch.labels)
    expected = own["generator_ce"] - 0.3 * own["entropy"]
    torch.testing.assert_close(own["generator_loss"].detach(), expected)


def test_a_generator_finds_images_that_its_guide_gets_right_but_is_unsure_of():
    images = torch.zeros(9, 3, 12, 12, dtype=torch.uint8)
    y = torch.arange(9) % 3
    images[y == 0, :, ::2] = 255
    images[y == 1, :, :, ::2] = 255
    images[y == 2, :, 3:9, 3:9] = 255
    method = method_of(beta=0.5)
    for model in method.classifiers:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(120):
            loss = torch.nn.functional.cross_entropy(model(images), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    x = images / 255
    entropies, parameters = {}, [p for g in method.generators for p in g.parameters()]
    for beta in (0.0, 0.9):
        trained = copy.deepcopy(method)
        trained.settings = Settings(width=4, beta=beta)
        parameters = [p for g in trained.generators for p in g.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=1e-2)
        for seed in range(60):
            made = trained.generate(x, torch.Generator().manual_seed(seed))
            loss = trained.generator_loss(made, y)["generator_loss"]
            optimizer.zero_grad()
            loss.backward(inputs=parameters)
            optimizer.step()
        with torch.no_grad():
            made = trained.generate(x, torch.Generator().manual_seed(99))
            logits = [guide(each) for guide, each in zip(trained.guides, made, strict=True)]
        right = [float((each.argmax(1) == y).float().mean()) for each in logits]
        assert min(right) > 0.7
        entropies[beta] = sum(float(plain_entropy(each)) for each in logits)
    assert entropies[0.9] > 2 * entropies[0.0]


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


def test_generators_see_pixels_and_classifiers_normalise_after_them():
    method, batch = method_of(), batch_of()
    seen: list[Tensor] = []
    method.first.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x, made = made_by(method, batch)
    assert all(0 <= each.min() and each.max() <= 1 for each in (e.detach() for e in made))
    method.classifier_loss(x, made, batch.labels)
    torch.testing.assert_close(seen[0], (torch.cat([x, *made]).detach() - 0.4) / 0.3)


def test_images_of_both_generators_and_of_each_row_have_noise_of_their_own():
    method = method_of()
    method.second_generator.load_state_dict(method.first_generator.state_dict())
    x = (batch_of().images[:1] / 255).expand(4, -1, -1, -1)
    with torch.no_grad():
        rows = torch.cat(method.generate(x, torch.Generator().manual_seed(0)))
    assert all(not torch.allclose(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :])


def test_batch_normalisation_sees_each_view_for_itself():
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
    names = {"loss", "ce_first", "ce_second", "generator_loss", "generator_ce", "entropy"}
    assert all(names <= set(record) for record in epochs)
    evaluated = {r["model"] for r in records if r["kind"] == "evaluation" and r["epoch"] == 2}
    assert evaluated == {"first", "second", "ensemble"}
    assert json.loads((out / "done.json").read_text())["deployed"] == "ensemble"


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a named network and images of 32 pixels, as a user would have it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    images = torch.randint(0, 256, (24, 3, 32, 32), generator=generator, dtype=torch.uint8)
    domain = Domain("source", ("a", "b", "c"), images, labels)
    out = tmp_path_factory.mktemp("simde") / "run"
    peerdg.fit(
        Splits(domain, domain, {"one": domain}), out=out, method="simde",
        backbone="digits-cnn-half", pretrain={"epochs": 1, "batch_size": 8}, crafted="off",
        train={"epochs": 1, "batch_size": 8}, evaluate_every=1, simde={"width": 4},
    )  # fmt: skip
    return out


def test_the_stored_model_is_the_ensemble_that_was_evaluated(digits_run: Path):
    model = peerdg.load_model(digits_run).classifier
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 3, 32, 32), generator=generator, dtype=torch.uint8)
    with torch.no_grad():
        right = (model(images).argmax(1) == torch.arange(24) % 3).sum()
    records = map(json.loads, (digits_run / "metrics.jsonl").read_text().splitlines())
    last = [r for r in records if r["kind"] == "evaluation" and r["epoch"] == 1]
    (own,) = (r for r in last if r["model"] == "ensemble" and r["domain"] == "one")
    assert int(right) == own["correct"]


def test_onnx_answers_like_torch(digits_run: Path, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    assert run(["export", str(digits_run), "--format", "onnx", "-o", str(file)], debug=False) == 0
    images = np.random.default_rng(0).integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)
    found = onnxruntime.InferenceSession(file).run(None, {"images": images})[0]
    with torch.no_grad():
        expected = peerdg.load_model(digits_run).classifier(torch.from_numpy(images))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_an_average_that_the_run_asks_for_is_deployed_in_its_place(tmp_path: Path):
    out = peerdg.fit(
        tiny_splits(), out=tmp_path / "run", model=tiny_classifier(), method="simde",
        pretrain={"epochs": 0}, train={"epochs": 2, "batch_size": 8}, evaluate_every=2,
        simde={"width": 4}, average={"kind": ["ema"]},
    ).path  # fmt: skip
    done = json.loads((out / "done.json").read_text())
    assert done["deployed"] == "ema"
    assert set(done["accuracy"]) == {"first", "second", "ensemble", "ema"}
    assert "| deployed | ema |" in (out / "model/MODEL_CARD.md").read_text()
