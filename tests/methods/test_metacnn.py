"""MetaCNN (a reconstruction): its step written out, its dictionary, and a run to its export."""

import copy

import pytest
import torch
import torch.nn.functional as F

import peerdg
from peerdg.data.benchmarks import DigitsMiniSettings, benchmark
from peerdg.errors import ConfigError, NumericalError
from peerdg.methods.base import Batch
from peerdg.methods.metacnn import MIN_DROPPED, MetaCNN, Settings
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import load_stored
from peerdg.run.config import resolve
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

SMALL = Settings(atoms=8, addressed=3)
PHASE = PhaseSettings(optimizer="sgd", lr=0.05, momentum=0.0)


def images_of(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8)


def batch_of(seed: int = 0) -> Batch:
    images = images_of(4, seed)
    return Batch(images, torch.arange(4) % 3, seed=seed, augmented=images.flip(2))


def method_of(settings: Settings = SMALL, *, dtype: torch.dtype = torch.float64) -> MetaCNN:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build_classifier("digits-cnn-half", classes=("a", "b", "c")).to(dtype)
        method = MetaCNN(MetaCNN.adapt(model, settings, 32), settings).train()
        method.start_from(images_of(6, 9))
        return method


def plain_compose(f: torch.Tensor, atoms: torch.Tensor, s: int, rho: float) -> tuple:
    """β and f̂ of one feature, by autograd through the inverse."""
    cosine = (atoms @ f.detach()) / atoms.norm(dim=1) / f.detach().norm().clamp(min=1e-12)
    chosen = cosine.argsort(descending=True)[:s]
    m = atoms[chosen]
    beta = torch.linalg.inv(m @ m.T + rho * torch.eye(s, dtype=f.dtype)) @ (m @ f)
    code = torch.zeros(len(atoms), dtype=f.dtype)
    code[chosen] = beta.detach()
    return code, m.T @ beta


class Plain:
    """The Digits network with the layer in it, and its dictionary, without anything of ours."""

    def __init__(self, method: MetaCNN) -> None:
        self.model = copy.deepcopy(method.model)
        self.atoms = method.layer.atoms.clone()
        self.a = method.dictionary.products.clone()
        self.b = method.dictionary.targets.clone()
        weights = [*self.model.encoder.parameters(), *self.model.head.parameters()]
        self.optimizer = torch.optim.SGD(weights, lr=PHASE.lr)

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        encoder = self.model.encoder
        maps = F.relu(F.max_pool2d(encoder.conv1(images / 255), 2))
        rows = maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])
        composed = []
        for f in rows:
            code, f_hat = plain_compose(f, self.atoms, 3, 0.01)
            self.codes.append(code)
            self.features.append(f.detach())
            composed.append(f_hat)
        maps = torch.stack(composed).view(len(images), 14, 14, -1).permute(0, 3, 1, 2)
        conv2 = encoder.conv2[1]  # without the layer in front of it
        h = F.relu(F.max_pool2d(conv2(maps), 2)).flatten(1)
        logits = self.model.head(F.relu(encoder.fc2(F.relu(encoder.fc1(h)))))
        return -logits.log_softmax(1)[torch.arange(len(h)), labels].mean()

    def step(self, batch: Batch) -> float:
        self.codes, self.features = [], []
        views = (batch.images.double(), batch.augmented.double())
        loss = sum(self.loss(view, batch.labels) for view in views)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.a = 0.99 * self.a + sum(torch.outer(c, c) for c in self.codes)
        pairs = zip(self.codes, self.features, strict=True)
        self.b = 0.99 * self.b + sum(torch.outer(c, f) for c, f in pairs)
        for j in range(len(self.atoms)):
            if self.a[j, j] > 1e-8:
                u = self.atoms[j] + (self.b[j] - self.a[j] @ self.atoms) / self.a[j, j]
                self.atoms[j] = u / max(float(u.norm()), 1.0)
        return float(loss.detach())


def test_steps_are_those_of_the_equations():
    method = method_of()
    plain = Plain(method)
    state = TrainState("train", method, make_optimizers(method, PHASE))
    guard = Guard(state)
    for number in range(2):
        batch = batch_of(number)
        terms = train_step(state, batch, torch.arange(4), guard=guard, seed=0, key=("t", number))
        assert abs(float(terms["loss"]) - plain.step(batch)) < 1e-9
        torch.testing.assert_close(method.layer.atoms, plain.atoms, rtol=1e-6, atol=1e-8)
    for name, value in plain.model.encoder.named_parameters():
        found = method.model.encoder.get_parameter(name)
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-9, msg=name)


def test_the_dictionary_is_learnt_after_the_update_and_by_no_optimizer():
    method = method_of()
    (plan,) = method.optimizers().values()
    trained = {id(p) for group in plan.groups for p in group.parameters}
    assert id(method.layer.atoms) not in trained
    before, seen = method.layer.atoms.clone(), []

    def update(name: str, loss: torch.Tensor, terms=None) -> None:
        seen.append(torch.equal(method.layer.atoms, before))
        loss.backward()

    method.step(batch_of(), update)
    assert seen == [True]
    assert not torch.equal(method.layer.atoms, before)


def lost(method: MetaCNN, images: torch.Tensor) -> float:
    """Share of the features' squares that the dictionary does not compose."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hook = method.layer.register_forward_hook(lambda m, x, y: seen.append((x[0], y)))
    with torch.no_grad():
        method.model.eval()(images)
    hook.remove()
    ((f, f_hat),) = seen
    return float((f - f_hat).square().sum() / f.square().sum())


def test_the_first_dictionary_composes_better_than_a_random_one():
    settings = Settings(atoms=16, addressed=2)
    method, images = method_of(settings), images_of(6, 9)
    learnt = lost(method, images)
    torch.manual_seed(0)
    method.layer.atoms.copy_(F.normalize(torch.randn_like(method.layer.atoms), dim=1))
    assert learnt < 0.5 * lost(method, images)
    again = method_of(settings)
    with torch.random.fork_rng():
        again.start_from(images, afresh=False)
    assert lost(again, images) < learnt


@pytest.mark.parametrize("budget", ["quick", "standard"])
def test_on_digits_the_preset_drops_a_share_of_the_energy_that_the_old_one_kept(budget):
    preset = resolve({"benchmark": "digits-mini", "method": "metacnn", "budget": budget})
    images = (
        benchmark("digits-mini")
        .load(DigitsMiniSettings(train=100), root=None, targets=["uci"])
        .train.images
    )
    for settings, works in (
        (preset.method_settings, True),
        (Settings(atoms=64, addressed=8), False),
    ):
        torch.manual_seed(0)
        model = build_classifier("digits-cnn-half", classes=tuple("0123456789"))
        method = MetaCNN(MetaCNN.adapt(model, settings, 32), settings)
        method.start_from(images[:50])
        batch = Batch(images[50:], torch.arange(50) % 10, augmented=images[50:])
        terms = method.step(batch, lambda name, loss, terms: None)
        share = lost(method, images[50:])
        assert (share >= MIN_DROPPED) == works
        records = [{"dropped": float(terms["dropped"])}]
        assert (settings.inert(records) is None) == works


def test_the_recorded_share_is_that_of_the_features():
    method, batch = method_of(), batch_of()
    before = lost(method, torch.cat((batch.images, batch.augmented)))
    terms = method.step(batch, lambda name, loss, terms: None)
    assert float(terms["dropped"]) == pytest.approx(before, rel=1e-6)
    assert Settings().inert([{"dropped": 0.031}]) == "3.1% of the features' energy dropped"
    assert Settings().inert([{"reseeded": 0}]) is None  # records of an earlier version


def test_unused_atoms_are_seeded_anew_at_the_end_of_an_epoch():
    method = method_of()
    with torch.no_grad():
        method.layer.atoms[5] = -method.layer.atoms.mean(0)  # opposite to what ReLU gives
        method.layer.atoms[5] /= method.layer.atoms[5].norm()
    method.dictionary.used.zero_()
    method.dictionary.products[5] = method.dictionary.products[:, 5] = 0
    method.step(batch_of(), lambda name, loss, terms=None: loss.backward())
    assert method.dictionary.used[5] == 0
    opposite = method.layer.atoms[5].clone()
    result = method.end_epoch(0)
    assert result.records["reseeded"] >= 1
    assert method.layer.atoms[5] @ opposite < 0
    assert method.dictionary.used.sum() == 0


def test_a_dictionary_that_is_not_finite_is_an_error():
    method = method_of()
    method.layer.atoms[0, 0] = torch.nan
    with pytest.raises(NumericalError, match="dictionary diverged"):
        method.end_epoch(0)


def test_it_stands_behind_the_chosen_stage_or_module():
    model = build_classifier("digits-cnn-half", classes=("a", "b"))
    for options, place in (
        ({}, "before conv2"),
        ({"stage": 2}, "after conv2"),
        ({"layer": "conv1"}, "after conv1"),
    ):
        (layer,) = MetaCNN.adapt(model, Settings(**options), 32).added
        assert (layer["kind"], layer["place"]) == ("meta-features", place)
    with pytest.raises(ConfigError, match="any stage"):
        MetaCNN.adapt(model, Settings(stage=3), 32)


def test_options_that_do_not_go_together_and_a_plain_network_are_refused():
    with pytest.raises(ConfigError, match="addressed is 8"):
        Settings(atoms=4)
    with pytest.raises(ConfigError, match="exactly one meta-feature layer"):
        MetaCNN(tiny_classifier())


@pytest.mark.filterwarnings("ignore:CPU has no bfloat16")  # it is emulated there
@pytest.mark.parametrize("rule", ["clean", "trained"])
def test_a_run_with_batch_statistics_an_average_and_bfloat16(rule, tmp_path):
    found = peerdg.fit(
        tiny_splits(), out=tmp_path / "run", model=tiny_classifier(batch_norm=True), crafted="off",
        method="metacnn", metacnn={"atoms": 8, "addressed": 2, "k": 1}, average={"kind": ["ema"]},
        pretrain={"epochs": 1, "batch_size": 8}, train={"epochs": 2, "batch_size": 8},
        evaluate_every=1, batch_statistics=rule, precision="bf16",
    )  # fmt: skip
    assert set(found.accuracy) == {"model", "ema"}
    epochs = [r for r in found.records if r["kind"] == "epoch" and r["phase"] == "train"]
    assert all("reseeded" in record for record in epochs)
    loaded, _ = load_stored(found.path / "model", tiny_classifier(batch_norm=True))
    with torch.no_grad():
        images = tiny_domain().images
        assert torch.equal(loaded(images), found.model.classifier(images))
