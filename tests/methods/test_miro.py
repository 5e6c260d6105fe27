import copy
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from torch.distributions import Normal

import peerdg
from peerdg.augment.policy import Policy
from peerdg.errors import ConfigError
from peerdg.methods import randaugment
from peerdg.methods.base import Batch
from peerdg.methods.erm import ERM
from peerdg.methods.miro import MIRO, Settings, Variance, gaussian_term
from peerdg.methods.randaugment import AugmentedERM
from peerdg.models.backbones import build_classifier
from peerdg.models.stages import FeatureMap, recorded
from peerdg.models.stored import save_model
from peerdg.train.optim import make_optimizers, set_learning_rate
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

SOURCE = tiny_domain()
SIZE = 12


def batches(count: int = 3) -> list[Batch]:
    rows = [torch.arange(8) + 8 * (step % 3) for step in range(count)]
    return [Batch(SOURCE.images[r], SOURCE.labels[r], seed=s) for s, r in enumerate(rows)]


def train(method, data: list[Batch], phase: PhaseSettings | None = None) -> TrainState:
    phase = phase or PhaseSettings(lr=0.01)
    state = TrainState("train", method, make_optimizers(method, phase))
    guard = Guard(state)
    method.train()
    set_learning_rate(method, state.optimizers, phase.lr)
    for step, batch in enumerate(data):
        train_step(state, batch, torch.arange(8), guard=guard, seed=0, key=("train", 0, step))
    return state


def moved(method: MIRO) -> MIRO:
    """Make a method whose network differs from the oracle, with unequal variances."""
    with torch.no_grad():
        for number, parameter in enumerate(method.model.parameters()):
            parameter.add_(0.05 * math.cos(number))
        for number, variance in enumerate(method.variances):
            variance.b.add_(torch.linspace(-1, 1, variance.b.numel()).view_as(variance.b) + number)
    return method


def test_the_term_is_a_gaussian_log_likelihood_less_its_constant():
    f, target = torch.randn(2, 5, 4, 3, 3, dtype=torch.float64)
    v = torch.rand(1, 4, 1, 1, dtype=torch.float64) + 0.1
    likelihood = Normal(f, v.sqrt().expand_as(f)).log_prob(target)
    expected = -likelihood.mean() - math.log(2 * math.pi) / 2
    torch.testing.assert_close(gaussian_term(f, target, v), expected)


def test_every_variance_starts_at_a_tenth_and_stays_above_its_floor():
    of = FeatureMap("conv", (4, 5, 5), channel=0)
    variance = Variance(of, 0.1)
    torch.testing.assert_close(variance(), torch.full((1, 4, 1, 1), 0.1))
    variance.b.data.fill_(-100.0)
    torch.testing.assert_close(variance(), torch.full((1, 4, 1, 1), 1e-5))
    method = MIRO(tiny_classifier(), size=SIZE)
    assert [v.b.shape for v in method.variances] == [(1, 4, 1, 1), (1, 8)]
    for each in method.variances:
        torch.testing.assert_close(each(), torch.full_like(each.b, 0.1))


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("views", ["clean", "both"])
def test_the_loss_is_its_equation_written_out(views, batch_norm):
    policy = Policy(seed=3)
    settings = Settings(lam=0.3, views=views)
    model = tiny_classifier(batch_norm=batch_norm)
    method = moved(MIRO(model, settings, size=SIZE, augment=policy)).train()
    batch = batches()[0]
    terms = copy.deepcopy(method).loss(batch)

    x = batch.images
    ce, total = [], torch.zeros(())
    for view in [x] if views == "clean" else [x, policy(x, batch.generator())]:
        layers = stages(method.model.encoder, view / 255)
        with torch.no_grad():
            targets = stages(method.oracle.encoder, view / 255)
        ce.append(F.cross_entropy(method.model.head(layers[-1]), batch.labels))
        for f, target, variance in zip(layers, targets, method.variances, strict=True):
            v = torch.log1p(variance.b.exp()) + 1e-5
            total = total + 0.5 * ((f - target) ** 2 / v + v.log()).mean()
    torch.testing.assert_close(terms["regularizer"], total.detach())
    torch.testing.assert_close(terms["loss"], sum(ce) + 0.3 * total)
    names = ("ce_clean", "ce_augmented")[: len(ce)]
    assert list(terms) == ["loss", *names, "regularizer"]
    for name, value in zip(names, ce, strict=True):
        torch.testing.assert_close(terms[name], value.detach())


def stages(encoder, x: Tensor) -> list[Tensor]:
    """Compute the map and the features of the tiny network by hand."""
    map_ = encoder.norm(encoder.conv(x))
    return [map_, torch.relu(encoder.fc(encoder.drop(torch.relu(map_).mean((2, 3)))))]


def test_the_oracle_is_in_eval_mode_and_its_statistics_do_not_move():
    method = MIRO(tiny_classifier(batch_norm=True, dropout=0.5), size=SIZE)
    method.train()
    assert method.model.training and not any(m.training for m in method.oracle.modules())
    before = copy.deepcopy(method.oracle.state_dict())
    train(method, batches(4))
    for name, value in method.oracle.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not torch.equal(
        method.model.encoder.norm.running_mean, before["encoder.norm.running_mean"]
    )
    assert not any(p.requires_grad for p in method.oracle.parameters())


@pytest.mark.parametrize("backbone", ["alexnet", "digits-cnn-half"])
def test_where_the_network_is_its_oracle_nothing_differs_even_in_train_mode(backbone):
    torch.manual_seed(0)
    size = 64 if backbone == "alexnet" else 32
    method = MIRO(build_classifier(backbone, classes=("a", "b")), size=size).train()
    x = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    with torch.no_grad(), recorded(method.model, method.layers) as ours:
        method.model.features(x)
    with torch.no_grad(), recorded(method.oracle, method.layers) as theirs:
        method.oracle.features(x)
    for name in method.layers:
        assert torch.equal(ours[name][0], theirs[name][0]), name


def test_variances_learn_at_ten_times_the_rate_of_the_schedule():
    method = MIRO(tiny_classifier(), size=SIZE)
    optimizers = make_optimizers(method, PhaseSettings(lr=0.1))
    set_learning_rate(method, optimizers, 0.02)
    network, variances = optimizers["main"].param_groups
    assert [network["lr"], variances["lr"]] == pytest.approx([0.02, 0.2])
    assert {id(p) for p in network["params"]} == {id(p) for p in method.model.parameters()}
    assert {id(p) for p in variances["params"]} == {id(v.b) for v in method.variances}


@pytest.mark.parametrize("batch_norm", [False, True])
def test_without_its_weight_it_is_erm_bit_for_bit(batch_norm):
    model = tiny_classifier(batch_norm=batch_norm, dropout=0.3)
    ours = MIRO(copy.deepcopy(model), Settings(lam=0.0), size=SIZE)
    erm = ERM(model)
    train(ours, batches(4))
    train(erm, batches(4))
    assert same(ours.model.state_dict(), erm.model.state_dict())


@pytest.mark.parametrize("batch_norm", [False, True])
def test_both_views_without_its_weight_are_randaugment_bit_for_bit(batch_norm):
    model = tiny_classifier(batch_norm=batch_norm, dropout=0.3)
    settings = Settings(lam=0.0, views="both", k=2)
    ours = MIRO(copy.deepcopy(model), settings, size=SIZE, augment=Policy(seed=5))
    theirs = AugmentedERM(model, randaugment.Settings(k=2), augment=Policy(seed=5))
    for epoch in range(3):
        assert ours.start_epoch(epoch) == theirs.start_epoch(epoch)
        train(ours, ours.prepare(batches(3)))
        train(theirs, theirs.prepare(batches(3)))
    assert same(ours.model.state_dict(), theirs.model.state_dict())


def test_training_equals_a_plain_loop():
    model = tiny_classifier()
    method = MIRO(copy.deepcopy(model), Settings(lam=0.5), size=SIZE)
    phase = PhaseSettings(optimizer="sgd", lr=0.05, momentum=0.5)
    train(method, batches(6), phase)

    oracle = copy.deepcopy(model)
    b = [torch.full(s, math.log(math.exp(0.1 - 1e-5) - 1)) for s in ((1, 4, 1, 1), (1, 8))]
    parameters = [*model.parameters(), *(each.requires_grad_() for each in b)]
    rates = [0.05] * (len(parameters) - 2) + [0.5] * 2
    velocity = [torch.zeros_like(p) for p in parameters]
    for batch in batches(6):
        layers, targets = (stages(m.encoder, batch.images / 255) for m in (model, oracle))
        loss = F.cross_entropy(model.head(layers[-1]), batch.labels)
        for f, target, each in zip(layers, targets, b, strict=True):
            v = F.softplus(each) + 1e-5
            loss = loss + 0.5 * ((f - target.detach()) ** 2 / v + v.log()).mean() / 2
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for i, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
                velocity[i] = 0.5 * velocity[i] + g
                p -= rates[i] * velocity[i]
    trained = [*method.model.parameters(), *(v.b for v in method.variances)]
    for ours, theirs in zip(trained, parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_restored_state_has_its_oracle_and_continues_equal():
    first = MIRO(tiny_classifier(), Settings(lam=0.5), size=SIZE)
    state = train(first, batches(3))
    tensors = {name: value.clone() for name, value in state.tensors().items()}
    fresh = MIRO(tiny_classifier(seed=9), Settings(lam=0.5), size=SIZE)
    again = TrainState("train", fresh, make_optimizers(fresh, PhaseSettings(lr=0.01)))
    again.restore(tensors, state.metadata())
    assert same(fresh.oracle.state_dict(), first.oracle.state_dict())
    assert same(again.tensors(), state.tensors())


def test_named_layers_replace_the_stages():
    method = moved(MIRO(tiny_classifier(), Settings(layers=("conv",)), size=SIZE))
    batch = batches()[0]
    x = batch.images / 255
    with torch.no_grad():
        f, target = (m.encoder.conv(x) for m in (method.model, method.oracle))
        expected = gaussian_term(f, target, method.variances[0]())
    torch.testing.assert_close(method.loss(batch)["regularizer"], expected)
    with pytest.raises(ConfigError, match="no module 'cnov'"):
        MIRO(tiny_classifier(), Settings(layers=("cnov",)), size=SIZE)


def test_an_oracle_of_another_shape_is_rejected():
    other = tiny_classifier()
    other.encoder.conv = torch.nn.Conv2d(3, 4, 5)
    with pytest.raises(ConfigError, match="layers of the oracle"):
        MIRO(tiny_classifier(), size=SIZE, oracle=other)


def run(tmp_path, name: str, **options):
    return peerdg.fit(
        tiny_splits(),
        out=tmp_path / name,
        backbone="digits-cnn-half",
        transform={"size": 32},
        pretrain={"epochs": 1, "batch_size": 8, "lr": 0.01},
        **{"method": "miro", "train": {"epochs": 2, "batch_size": 8, "lr": 0.001}, **options},
    )


def stored(done) -> dict[str, Tensor]:
    return load_file(done.path / "model/model.safetensors")


def test_in_a_run_the_oracle_is_the_pretrained_network_or_the_named_one(tmp_path):
    pretrained = run(tmp_path, "erm", method="erm", train={"epochs": 0, "batch_size": 8})
    other = build_classifier("digits-cnn-half", classes=("a", "b", "c"))
    save_model(tmp_path / "other", other, backbone="digits-cnn-half", image_size=32)
    default = run(tmp_path, "default", miro={"lam": 5.0})
    same_oracle = run(tmp_path, "same", miro={"lam": 5.0, "oracle": str(pretrained.path)})
    another = run(tmp_path, "another", miro={"lam": 5.0, "oracle": str(tmp_path / "other")})
    assert same(stored(default), stored(same_oracle))
    assert not same(stored(default), stored(another))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_bfloat16_features_are_compared_in_float32():
    f, target = torch.randn(2, 4, 3).bfloat16()
    v = torch.full((1, 3), 0.1)
    assert gaussian_term(f, target, v).dtype == torch.float32
    torch.testing.assert_close(
        gaussian_term(f, target, v), gaussian_term(f.float(), target.float(), v)
    )
