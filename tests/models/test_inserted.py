"""Layers inside an encoder: called at their places, while the encoder they came from stays."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peerdg.errors import ConfigError
from peerdg.models import classifier
from peerdg.models.added import AddedLayer
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.stages import check_layers
from tests.conftest import tiny_classifier, tiny_domain

IMAGES = tiny_domain().images


def layer_at(place: str, channels: int = 4, **options) -> AddedLayer:
    given = {"channel": 1, "p": 0.5, "alpha": 0.1, **options}
    return AddedLayer(kind="style-mixing", place=place, inputs=channels, outputs=channels, **given)


class Shift(nn.Module):
    """A layer whose effect is easy to see, in training or not."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x + self.by


@pytest.fixture
def shifting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "make_layer", lambda layer: Shift())


def test_a_layer_sees_what_passes_its_place_and_what_follows_sees_its_output(shifting):
    model = tiny_classifier().eval()
    parts, x = model.encoder, IMAGES.float() / 255
    for place, expected in {
        "after conv": parts.fc(F.relu(2 * parts.conv(x) + 0.5).mean((2, 3))),
        "before conv": parts.fc(F.relu(parts.conv(2 * x + 0.5)).mean((2, 3))),
        "before fc": parts.fc(2 * F.relu(parts.conv(x)).mean((2, 3)) + 0.5),
    }.items():
        adapted = model.with_layers([layer_at(place)])
        torch.testing.assert_close(adapted.features(IMAGES), F.relu(expected), msg=place)


def test_the_network_it_came_from_stays_as_it_is_and_shares_the_weights(shifting):
    model = tiny_classifier(batch_norm=True).eval()
    before, text = model(IMAGES), repr(model)
    adapted = model.with_layers([layer_at("after norm")])
    assert torch.equal(model(IMAGES), before) and repr(model) == text
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not torch.equal(adapted(IMAGES), before)
    own = dict(model.named_parameters())
    theirs = dict(adapted.named_parameters())
    assert {name for name in theirs if name not in own} == {"inside.0.by"}
    assert all(theirs[name] is parameter for name, parameter in own.items())
    adapted.train()(IMAGES)  # moves the running statistics of both
    assert torch.equal(model.encoder.norm.running_mean, adapted.encoder.norm.running_mean)
    assert not torch.equal(model.encoder.norm.running_mean, torch.zeros(4))
    adapted.double()
    assert model.encoder.norm.running_mean.dtype == torch.float64


def test_a_copy_has_layers_of_its_own(shifting):
    adapted = tiny_classifier().with_layers([layer_at("after conv"), layer_at("before fc")]).eval()
    twin = copy.deepcopy(adapted)
    before = adapted(IMAGES)
    assert torch.equal(twin(IMAGES), before)
    with torch.no_grad():
        twin.inside[0].by.fill_(-9.0)
    assert torch.equal(adapted(IMAGES), before)
    assert not torch.equal(twin(IMAGES), before)
    assert twin.added == adapted.added


def test_a_module_with_two_names_stays_one(shifting):
    encoder = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(432, 8))
    encoder.append(nn.ReLU())
    encoder.add_module("again", encoder[0])
    model = Classifier(Twice(encoder), nn.Linear(8, 2), classes=("a", "b")).eval()
    adapted = model.with_layers([layer_at("before net.2")])
    assert adapted.encoder.net[0] is adapted.encoder.net.again
    expected = model.encoder.rest(2 * model.encoder.maps(IMAGES / 255) + 0.5)
    torch.testing.assert_close(adapted.features(IMAGES), expected)


class Twice(nn.Module):
    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net = net

    def maps(self, x: torch.Tensor) -> torch.Tensor:
        return self.net[1](self.net.again(self.net[0](x)))

    def rest(self, x: torch.Tensor) -> torch.Tensor:
        return self.net[3](self.net[2](x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.maps(x))


def test_the_result_of_a_compiled_encoder_is_compiled_with_its_layers(shifting, monkeypatch):
    model = tiny_classifier().eval()
    plain, expected = model(IMAGES), model.with_layers([layer_at("after conv")])(IMAGES)

    def compile_eagerly(module: nn.Module) -> None:  # without a C++ compiler
        module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", compile_eagerly)
    model.encoder.compile()
    torch.testing.assert_close(model(IMAGES), plain)
    adapted = model.with_layers([layer_at("after conv")])
    assert adapted.encoder._compiled_call_impl is not None
    torch.testing.assert_close(adapted(IMAGES), expected)
    torch.testing.assert_close(model(IMAGES), plain)


def test_layers_behind_and_inside_the_encoder_go_together():
    neck = AddedLayer(kind="gaussian-bottleneck", place="features", inputs=8, outputs=5, noise=0.2)
    inside = layer_at("after conv")
    model = tiny_classifier().with_layers([inside, neck])
    assert model.added == (neck, inside)
    assert model.with_layers([inside, neck]) is model
    assert model(IMAGES).shape == (24, 3)


def test_layers_in_the_wrong_place_are_refused():
    model = tiny_classifier()
    with pytest.raises(ValueError, match="no module 'cnv'"):
        model.with_layers([layer_at("after cnv")])
    with pytest.raises(ConfigError, match="at one place"):
        model.with_layers([layer_at("after conv"), layer_at("after conv", p=0.1)])
    with pytest.raises(ConfigError, match="Another layer"):
        model.with_layers([layer_at("after conv")]).with_layers([layer_at("after norm")])
    for place in ("features", "conv", "after", "after ", "inside conv", "after\nconv"):
        with pytest.raises(ConfigError, match="'place' is"):
            layer_at(place)
    with pytest.raises(ConfigError, match="'p' is missing"):
        layer_at("after conv", p=None)
    with pytest.raises(ConfigError, match="'noise' has no meaning"):
        layer_at("after conv", noise=0.1)


def test_a_layer_made_for_other_maps_is_found():
    check_layers(tiny_classifier(), 12)
    check_layers(tiny_classifier().with_layers([layer_at("after conv")]), 12)
    wrong = (layer_at("after conv", 5), layer_at("after conv", channel=3), layer_at("after fc", 8))
    for layer in wrong:
        with pytest.raises(ValueError, match="no maps of"):
            check_layers(tiny_classifier().with_layers([layer]), 12)


def test_a_network_laid_out_channels_last_stays_so():
    model = build_classifier("digits-cnn-half", classes=("a", "b"))
    adapted = model.with_layers([layer_at("before conv2", 32, p=1.0)])
    weight = adapted.encoder.conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    assert adapted.train()(images).shape == (4, 2)
    assert torch.equal(adapted.eval()(images), model.eval()(images))


def test_its_text_makes_it_again():
    layer = layer_at("after conv")
    assert eval(repr(layer), {"AddedLayer": AddedLayer}) == layer
    assert "noise" not in repr(layer)
