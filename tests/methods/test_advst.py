import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import peerdg
from peerdg.augment.semantic import Chain, semantic_transformations
from peerdg.errors import ConfigError, NumericalError
from peerdg.methods.advst import AdvST, Settings
from peerdg.methods.base import Batch
from peerdg.methods.pool import TrainingPool
from peerdg.models.classifier import Classifier
from tests.conftest import TinyEncoder, tiny_classifier, tiny_domain

N = 24
OPERATIONS = {each.name: each for each in semantic_transformations()}


def make(model: Classifier | None = None, *, n: int = N, **settings: Any) -> AdvST:
    domain = tiny_domain(n=n)
    settings = {"steps": 5, "batch_size": 10, "head_dim": 6, **settings}
    pool = TrainingPool(domain.images, domain.labels)
    return AdvST(model or tiny_classifier(), Settings(**settings), pool=pool)


def floats(advst: AdvST, n: int | None = None) -> tuple[Tensor, Tensor]:
    return advst.pool.images[:n] / 255, advst.pool.labels[:n]


def fixed_chain(*names: str, images: int, seed: int = 0) -> Chain:
    """One with known operations; drawn again, it is the same."""
    generator = torch.Generator().manual_seed(seed)
    return Chain.draw([OPERATIONS[name] for name in names], images, generator=generator)


# The minimization


@torch.no_grad()
def written_out(advst: AdvST, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Each term of the loss as a plain loop over images."""
    s, n = advst.settings, len(images)
    h = advst.model.encoder(images / 255)
    logits, z = advst.model.head(h).double(), advst.projection(h).double()
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    ce = -sum(math.log(p[i, labels[i]]) for i in range(n)) / n
    entropy = -sum(float((row * row.log()).sum()) for row in p) / n
    z = z / z.norm(dim=1, keepdim=True)
    anchors = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        total = sum(math.exp(float(z[i] @ z[j]) / s.tau) for j in others)
        own = [
            float(z[i] @ z[j]) / s.tau - math.log(total) for j in others if labels[i] == labels[j]
        ]
        if own:
            anchors.append(-sum(own) / len(own))
    contrast = sum(anchors) / len(anchors)
    loss = ce + s.beta * contrast - s.eta_min * entropy
    return {"loss": loss, "ce": ce, "contrast": contrast, "entropy": entropy}


def test_the_loss_is_its_equation():
    advst = make(beta=0.7, eta_min=0.3, tau=0.2)
    images, labels = advst.pool.images[:9], advst.pool.labels[:9].clone()
    labels[0] = 2  # unequal numbers of positives
    terms = advst.loss(Batch(images, labels))
    expected = written_out(advst, images, labels)
    assert {name: float(value.detach()) for name, value in terms.items()} == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize(("features", "layers"), [(4096, 2), (512, 1), (2048, 1)])
def test_wide_features_of_fully_connected_layers_have_an_mlp(features: int, layers: int):
    head = torch.nn.Linear(features, 3)
    model = Classifier(TinyEncoder(dim=features), head, classes=("a", "b", "c"))
    linear = [part for part in make(model).projection if isinstance(part, torch.nn.Linear)]
    assert len(linear) == layers
    chosen = make(model, head_layers=3).projection
    assert sum(isinstance(part, torch.nn.Linear) for part in chosen) == 3


def test_a_batch_without_two_images_of_a_class_has_no_contrastive_loss():
    advst = make()
    terms = advst.loss(Batch(advst.pool.images[:3], torch.tensor([0, 1, 2])))
    assert float(terms["contrast"]) == 0
    torch.testing.assert_close(
        terms["loss"].detach(), terms["ce"] - advst.settings.eta_min * terms["entropy"]
    )
    terms["loss"].backward()
    assert advst.projection[0].weight.grad is None


# The maximization


def written_objective(advst: AdvST, x: Tensor, images: Tensor, y: Tensor) -> Tensor:
    s, model = advst.settings, advst.model
    h = model.encoder(images)
    p = model.head(h).softmax(1)
    ce = -p[torch.arange(len(y)), y].log().mean()
    distance = ((h - model.encoder(x).detach()) ** 2).sum() / h.numel()
    return ce - s.lam * distance - s.eta * (p * p.log()).sum(1).mean()


def test_the_objective_is_its_equation():
    advst = make(lam=3.0, eta=0.4)
    x, y = floats(advst)
    features = advst.model.features(x).detach()
    got = advst.objective(1 - x, features, y)
    torch.testing.assert_close(got, written_objective(advst, x, 1 - x, y))


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_the_ascent_equals_rmsprop_written_out(tolerance: float):
    advst = make(lam=1.0, eta=0.2, rate=0.01, steps=8, tolerance=tolerance)
    advst.model.eval()
    x, y = floats(advst)
    names = ("hsv", "translate", "invert")
    chain, own = (fixed_chain(*names, images=N) for _ in range(2))
    record = advst.ascend(chain, x, y)
    parameters = list(own.parameters)
    squares = [torch.zeros_like(p) for p in parameters]
    values: list[float] = []
    for _ in range(8):
        parameters = [p.detach().requires_grad_() for p in parameters]
        images = Chain(own.transformations, parameters, own.drawn)(x)
        objective = written_objective(advst, x, images, y)
        gradients = torch.autograd.grad(objective, parameters)
        squares = [0.99 * v + 0.01 * g**2 for v, g in zip(squares, gradients, strict=True)]
        parameters = [
            p + 0.01 * g / (v.sqrt() + 1e-8)
            for p, g, v in zip(parameters, gradients, squares, strict=True)
        ]
        values.append(float(objective.detach()))
        if len(values) > 1 and abs(values[-1] - values[-2]) <= tolerance:
            break
    assert record.steps == len(values)
    assert (record.steps < 8) == (tolerance > 0)
    assert record.rise == pytest.approx(values[-1] - values[0], abs=1e-5)
    for got, expected in zip(chain.parameters, parameters, strict=True):
        torch.testing.assert_close(got.detach(), expected.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_maximization_raises_the_objective(seed: int):
    """With steps that are small for the ranges, whatever chain is drawn."""
    advst = make(lam=1.0, eta=0.1, rate=0.002, steps=10, tolerance=0.0)
    advst.model.eval()
    x, y = floats(advst)
    chain = advst.chains.draw(N, generator=torch.Generator().manual_seed(seed))
    features = advst.model.features(x).detach()
    with torch.no_grad():
        before = float(advst.objective(chain(x), features, y))
    advst.ascend(chain, x, y)
    with torch.no_grad():
        after = float(advst.objective(chain(x), features, y))
    assert after > before if chain.learnable else after == before


def test_what_is_stored_is_the_chain_after_the_ascent_in_8_bits(monkeypatch: pytest.MonkeyPatch):
    advst = make()
    x, y = floats(advst)
    chain = fixed_chain("rotate", "contrast", images=N)
    monkeypatch.setattr(advst.chains, "draw", lambda *args, **kwargs: chain)
    made, record = advst.maximize(advst.pool.images, y)
    assert record.steps > 1
    with torch.no_grad():
        assert torch.equal(made, (chain(x) * 255).round().byte())
    start = (fixed_chain("rotate", "contrast", images=N)(x) * 255).round().byte()
    assert not torch.equal(made, start)


def test_numbers_that_are_not_finite_are_an_error():
    advst = make()
    with torch.no_grad():
        advst.model.head.bias.fill_(torch.nan)
    with pytest.raises(NumericalError, match="maximization") as caught:
        advst.ascend(fixed_chain("hsv", images=N), *floats(advst))
    assert caught.value.exit_code == 6
    assert "--advst.rate" in (caught.value.hint or "")


# Domains


def untouched(images: int, **_: Any) -> Chain:
    """A chain that leaves images as they are."""
    empty = torch.zeros(images, 0)
    return Chain([OPERATIONS["contrast"]], [torch.ones(images, 1)], [empty])


def test_a_domain_has_each_image_of_the_source_once_with_its_label(
    monkeypatch: pytest.MonkeyPatch,
):
    advst = make(rate=1e-9)
    monkeypatch.setattr(advst.chains, "draw", untouched)
    add = advst.end_epoch(0).new_images
    rows = [
        next(i for i in range(N) if torch.equal(image, advst.pool.images[i]))
        for image in add.images
    ]
    assert sorted(rows) == list(range(N))
    assert rows != sorted(rows)
    assert torch.equal(add.labels, advst.pool.labels[rows])


def test_domains_are_made_of_the_source_alone(monkeypatch: pytest.MonkeyPatch):
    """Not of domains that were made before."""
    advst = make(k=2, rate=1e-9)
    monkeypatch.setattr(advst.chains, "draw", untouched)
    for epoch in range(3):
        result = advst.end_epoch(epoch)
        assert len(result.new_images) == N
        black = peerdg.methods.pool.PoolImages(
            torch.zeros_like(result.new_images.images), result.new_images.labels
        )
        assert result.new_images.images.sum() == advst.pool.images.sum()
        advst.pool.change(black, drop=result.drop_oldest)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"k": 2}, [6, 12, 18, 18, 18, 18]),
        ({"k": 1}, [6, 12, 12, 12, 12, 12]),
        ({"k": 9}, [6, 12, 18, 24, 30, 36]),
        ({"k": 1, "every": 2}, [6, 6, 12, 12, 12, 12]),
    ],
)
def test_the_pool_is_a_ring_of_k_domains_with_the_source_pinned(
    settings: dict[str, int], expected: list[int]
):
    advst = make(steps=1, n=6, **settings)
    source, sizes, made = advst.pool.images.clone(), [], []
    for epoch in range(6):
        sizes.append(len(advst.pool))
        result = advst.end_epoch(epoch)
        if result.new_images is not None:
            made.append(result.new_images)
        advst.pool.change(result.new_images, drop=result.drop_oldest)
        if result.new_images is not None:
            assert result.records["pool_images"] == len(advst.pool)
        assert advst.pool.additions == tuple(made[-settings["k"] :])
        assert torch.equal(advst.pool.clean(torch.arange(6))[0], source)
    assert sizes == expected


def test_records_are_means_over_chains_that_learn(monkeypatch: pytest.MonkeyPatch):
    advst = make(tolerance=0.0, rate=0.001)
    names = iter([("equalize",), ("hsv",), ("contrast",)])
    monkeypatch.setattr(
        advst.chains, "draw", lambda images, **rest: fixed_chain(*next(names), images=images)
    )
    rises = []
    ascend = advst.ascend
    monkeypatch.setattr(advst, "ascend", lambda *args: rises.append(ascend(*args)) or rises[-1])
    records = advst.end_epoch(0).records
    assert records["ascent_steps"] == 5
    assert records["objective_rise"] == pytest.approx((rises[1].rise + rises[2].rise) / 2)


def test_the_network_is_left_as_it_was():
    model = tiny_classifier(batch_norm=True, dropout=0.5)
    advst = make(model, frozen_statistics=False).train()
    before = {name: value.clone() for name, value in advst.state_dict().items()}
    advst.end_epoch(0)
    assert all(part.training for part in model.modules())
    assert all(p.grad is None for p in advst.parameters())
    assert all(torch.equal(before[name], value) for name, value in advst.state_dict().items())


def test_dropout_and_batch_statistics_are_off_while_images_are_made():
    model = tiny_classifier(batch_norm=True, dropout=0.5)
    advst, made = make(model, frozen_statistics=False).train(), []
    seen: list[bool] = []
    handle = model.encoder.register_forward_pre_hook(
        lambda *_: seen.append(any(part.training for part in model.modules()))
    )
    for _ in range(2):
        torch.manual_seed(5)
        made.append(advst.end_epoch(0).new_images.images)
    handle.remove()
    assert torch.equal(*made)
    assert seen and not any(seen)


@pytest.mark.parametrize("frozen", [True, False])
def test_batch_statistics_follow_the_images_unless_they_are_frozen(frozen: bool):
    model = tiny_classifier(batch_norm=True)
    advst = make(model, frozen_statistics=frozen).train()
    before = model.encoder.norm.running_mean.clone()
    advst.loss(Batch(advst.pool.images, advst.pool.labels))["loss"].backward()
    assert torch.equal(model.encoder.norm.running_mean, before) == frozen
    assert model.encoder.norm.weight.grad.abs().sum() > 0
    assert model.encoder.drop.training
    assert [*advst.needs_clean_statistics] == ([] if frozen else ["model"])
    assert advst.frozen_statistics == frozen
    assert not make(frozen_statistics=frozen).frozen_statistics  # nothing to freeze


# Options


def test_holes_as_large_as_the_image_are_refused():
    Settings(cutout="absolute").check_images(17)
    Settings().check_images(12)
    with pytest.raises(ConfigError, match="too large"):
        Settings(cutout="absolute").check_images(16)


def test_switches_reach_the_operations():
    x = tiny_domain(n=1).images / 255

    def made(name: str, **settings: Any) -> Tensor:
        chains = make(**settings).chains
        (each,) = next(c for c in chains.by_length[0] if c[0].name == name)
        chain = Chain.draw([each], 1, generator=torch.Generator().manual_seed(0))
        return chain(F.interpolate(x, size=32))

    assert not torch.equal(made("contrast"), made("contrast", contrast="mean"))
    changed = [made("cutout", cutout=kind) for kind in ("scaled", "absolute")]
    plain = F.interpolate(x, size=32)
    scaled, absolute = (float((image != plain).any(1).float().mean()) for image in changed)
    assert 36 / 1024 <= scaled <= 8 * 36 / 1024
    assert absolute > 256 / 1024
    assert len(make(length=2).chains.by_length) == 2


def test_a_run_is_inert_if_its_searches_end_at_once():
    assert Settings().inert([{"ascent_steps": 2.0}, {}, {"ascent_steps": 2.4}]) == (
        "search of 2.2 steps"
    )
    assert Settings().inert([{"ascent_steps": 2.0}, {"ascent_steps": 5.0}]) is None
    assert Settings().inert([{}]) is None
