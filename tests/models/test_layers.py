"""Layers that are added to a network: their equations, and how the network gets them."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peerdg.errors import ConfigError
from peerdg.models import layers
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier, network_fingerprint
from peerdg.models.layers import GaussianBottleneck, inserted, projection_head
from tests.conftest import tiny_classifier, tiny_domain

IMAGES = tiny_domain().images
NECK = {
    "kind": "gaussian-bottleneck", "place": "features", "inputs": 8, "outputs": 5, "noise": 0.2,
}  # fmt: skip
META = {"kind": "meta-features", "place": "after conv", "channels": 4, "atoms": 6, "addressed": 3}


class Shift(nn.Module):
    """A layer whose effect is easy to see, in training or not."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x + self.by


@pytest.fixture
def shifting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layers.KINDS, "shift", Shift)


def shift(place: str) -> dict[str, Any]:
    return {"kind": "shift", "place": place}


def test_in_training_a_bottleneck_samples_the_gaussian_it_predicts():
    """Mean and standard deviation over many samples are μ and s·σ."""
    torch.manual_seed(0)
    layer = GaussianBottleneck(8, 3, noise=0.2).double().train()
    h = torch.randn(2, 8, dtype=torch.float64)
    samples = layer(h.repeat(20_000, 1)).view(20_000, 2, 3)
    linear = h @ layer.mean.weight.T + layer.mean.bias
    mu = torch.where(linear > 0, linear, 0.01 * linear)
    log_variance = (h @ layer.log_variance.weight.T + layer.log_variance.bias).clamp(min=0)
    sigma = log_variance.exp().sqrt()
    torch.testing.assert_close(samples.mean(0), mu, rtol=0, atol=0.01)
    torch.testing.assert_close(samples.std(0), 0.2 * sigma, rtol=0.03, atol=0)
    assert log_variance.max() > 0  # else every σ would be 1


def test_in_eval_mode_a_bottleneck_is_its_mean_and_nothing_is_random():
    layer = GaussianBottleneck(8, 3).eval()
    h = torch.randn(4, 8)
    assert torch.equal(layer(h), layer(h))
    assert torch.equal(layer(h), layer.gaussian(h)[0])
    torch.testing.assert_close(layer(h), F.leaky_relu(layer.mean(h), 0.01))


def test_an_adapted_classifier_is_head_of_neck_of_encoder():
    model = tiny_classifier().with_layers([NECK]).eval()
    h = model.encoder(IMAGES.float() / 255)
    torch.testing.assert_close(model(IMAGES), model.head(model.neck(h)))
    torch.testing.assert_close(model.features(IMAGES), model.neck(h))
    assert (model.encoder_dim, model.feature_dim) == (8, 5)
    assert model.added == (NECK,)
    assert list(dict(model.named_children())) == ["encoder", "neck", "head"]


def test_an_inserted_layer_transforms_the_map_at_its_place(shifting):
    model = tiny_classifier().eval()
    parts, x = model.encoder, IMAGES.float() / 255
    for place, expected in {
        "after conv": parts.fc(F.relu(2 * parts.conv(x) + 0.5).mean((2, 3))),
        "before conv": parts.fc(F.relu(parts.conv(2 * x + 0.5)).mean((2, 3))),
        "before fc": parts.fc(2 * F.relu(parts.conv(x)).mean((2, 3)) + 0.5),
    }.items():
        adapted = model.with_layers([shift(place)])
        torch.testing.assert_close(adapted.features(IMAGES), F.relu(expected), msg=place)
        with inserted(model.encoder, [(place, Shift())]):
            torch.testing.assert_close(model.features(IMAGES), F.relu(expected), msg=place)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_original_network_is_unchanged(shifting):
    model = tiny_classifier(batch_norm=True).eval()
    before, text = copy.deepcopy(model.state_dict()), repr(model)
    for layer in (NECK, shift("after norm")):
        adapted = model.with_layers([layer])
        assert not torch.equal(adapted(IMAGES), model(IMAGES))
        adapted.train()(IMAGES)  # moves the running statistics
        adapted.double()
        assert repr(model) == text and model.added == ()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_added_layer_keeps_normalization_size_type_layout_and_mode():
    model = Classifier(
        tiny_classifier().encoder, nn.Linear(8, 2), classes=("a", "b"),
        mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), image_size=12,
    ).double().eval()  # fmt: skip
    for layer in (NECK, META):
        more = model.with_layers([layer])
        assert torch.equal(more.mean, model.mean) and torch.equal(more.std, model.std)
        assert more.image_size == 12 and more.classes == ("a", "b")
        assert not any(part.training for part in more.modules())
        assert {p.dtype for p in (*more.parameters(), *more.buffers())} == {torch.float64}
    digits = build_classifier("digits-cnn-half", classes=("a", "b"))
    weight = digits.with_layers([{**NECK, "inputs": 512}]).encoder.conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_the_copy_of_a_compiled_encoder_is_compiled_with_its_layers(shifting, monkeypatch):
    model = tiny_classifier().eval()
    plain, expected = model(IMAGES), model.with_layers([shift("after conv")])(IMAGES)

    def compile_eagerly(module: nn.Module) -> None:  # without a C++ compiler
        module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", compile_eagerly)
    model.encoder.compile()
    torch.testing.assert_close(model(IMAGES), plain)
    adapted = model.with_layers([shift("after conv")])
    assert adapted.encoder._compiled_call_impl is not None
    torch.testing.assert_close(adapted(IMAGES), expected)
    torch.testing.assert_close(model(IMAGES), plain)
    with inserted(model.encoder, [("after conv", Shift())]):
        torch.testing.assert_close(model(IMAGES), expected)


def test_the_same_layer_is_not_added_twice_and_another_one_is_refused():
    model = tiny_classifier().with_layers([META, NECK])
    assert model.with_layers([META, NECK]) is model
    with pytest.raises(ConfigError, match="different added layers"):
        model.with_layers([{**NECK, "outputs": 6}])


def test_a_network_without_added_layers_has_the_fingerprint_and_weights_it_always_had():
    model = tiny_classifier()
    assert not any("neck" in name for name in model.state_dict())
    assert "neck" not in repr(model)
    prints = [network_fingerprint(model.with_layers([{**NECK, "noise": n}]))[0] for n in (0.1, 0.2)]
    assert len({network_fingerprint(model)[0], *prints}) == 3


def test_a_projection_head_has_the_requested_layers_and_norm():
    for count in (1, 2, 3):
        head = projection_head(1024, 128, layers=count)
        assert sum(isinstance(part, nn.Linear) for part in head) == count
        assert isinstance(head[-1], nn.Linear)
        assert head(torch.randn(4, 1024)).shape == (4, 128)
    assert [projection_head(10, dim)[0].out_features for dim in (128, 1024)] == [512, 1024]
    assert projection_head(10, 128, hidden_dim=32)[0].out_features == 32
    for norm, kind in (("bn", nn.BatchNorm1d), ("ln", nn.LayerNorm), ("none", nn.ReLU)):
        assert isinstance(projection_head(10, 4, norm=norm)[1], kind)
