"""Stages of networks, places for layers, and the outputs that are recorded there."""

import copy

import pytest
import torch
from torch import nn

from peerdg.errors import ConfigError
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.layers import OUTPUT
from peerdg.models.names import BACKBONES
from peerdg.models.stages import (
    FeatureMap,
    choose_places,
    find_stages,
    named_maps,
    recorded,
    stage_places,
)
from tests.conftest import import_timm, tiny_classifier

FOUR = ("layer1", "layer2", "layer3", "layer4")
BLOCKS = [f"trunk_output.block{n}" for n in (1, 2, 3)]
TRANSFORMER = [f"encoder.layers.encoder_layer_{n}" for n in (2, 5, 8, 11)]
STAGES = {
    "digits-cnn": ["conv1", "conv2", OUTPUT],
    "digits-cnn-half": ["conv1", "conv2", OUTPUT],
    "alexnet": ["features.1", "features.4", "features.11", "avgpool"],
    "caffenet": ["features.relu1", "features.relu2", "features.relu5", "features"],
    "squeezenet1_1": ["features.1", "features.4", "features.7", "features"],
    "resnet18": ["relu", *FOUR],
    "resnet50": ["relu", *FOUR],
    "vit_b_16": ["conv_proj", *TRANSFORMER, OUTPUT],
    "regnet_y_16gf": ["stem", *BLOCKS, "trunk_output"],
}
PLACES = {
    "digits-cnn": ["before conv2", "after conv2"],
    "digits-cnn-half": ["before conv2", "after conv2"],
    "alexnet": [f"after {n}" for n in ("features.2", "features.5", "features.12", "avgpool")],
    "caffenet": [*(f"after features.pool{n}" for n in (1, 2, 5)), "after features"],
    "squeezenet1_1": ["after features.5", "after features.8", "after features"],
    "resnet18": [f"after {name}" for name in FOUR],
    "resnet50": [f"after {name}" for name in FOUR],
    "vit_b_16": [f"after {name}" for name in TRANSFORMER],
    "regnet_y_16gf": [f"after {name}" for name in (*BLOCKS, "trunk_output")],
}


@pytest.mark.parametrize(
    "backbone",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "regnet_y_16gf" else [])
        for name in BACKBONES
    ],
)
def test_stages_and_places_of_every_backbone(backbone):
    # Shapes are all that matters, but RegNet cannot be built without values.
    with torch.device("cpu" if backbone == "regnet_y_16gf" else "meta"):
        model = build_classifier(backbone, classes=("a", "b"))
    size = 64 if backbone == "regnet_y_16gf" else BACKBONES[backbone].image_size
    assert [each.name for each in find_stages(model, size)] == STAGES[backbone]
    assert list(stage_places(model, size)) == PLACES[backbone]


def test_maps_of_the_digits_network_have_the_shapes_at_their_places():
    model = build_classifier("digits-cnn-half", classes=("a", "b"))
    shapes = {place: each.shape for place, each in stage_places(model, 32).items()}
    assert shapes == {"before conv2": (32, 14, 14), "after conv2": (64, 10, 10)}
    assert find_stages(model, 32)[2] == FeatureMap(OUTPUT, (512,), channel=0)


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_stages_end_where_timm_says_they_do(name):
    import_timm()
    with torch.device("meta"):
        model = build_classifier(f"timm:{name}", classes=("a", "b"))
    theirs = [about["module"] for about in model.encoder.feature_info]
    stages = [each.name for each in find_stages(model, 64)]
    assert stages == (theirs if name == "resnet18" else [*theirs, OUTPUT])
    stem = 1 if name == "resnet18" else 0
    assert list(stage_places(model, 64)) == [f"after {name}" for name in theirs[stem:]]


def test_a_transformer_is_cut_into_four_groups_of_blocks():
    import_timm()
    with torch.device("meta"):
        model = build_classifier("timm:vit_tiny_patch16_224", classes=("a", "b"))
    stages = find_stages(model, 224)
    assert [each.name for each in stages] == [*(f"blocks.{n}" for n in (2, 5, 8, 11)), OUTPUT]
    assert stages[0] == FeatureMap("blocks.2", (197, 192), channel=1)


def test_other_networks_are_cut_by_the_resolution_of_their_children():
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2))
    encoder.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    model = Classifier(encoder, nn.Linear(6, 2), classes=("a", "b"))
    assert [each.name for each in find_stages(model, 16)] == ["1", "2"]
    assert list(stage_places(model, 16)) == ["after 1", "after 2"]


@pytest.mark.parametrize(("dropout", "last"), [(0.0, OUTPUT), (0.5, "norm")])
def test_features_after_dropout_are_not_a_stage(dropout, last):
    assert find_stages(tiny_classifier(dropout=dropout), 12)[-1].name == last


def test_the_channels_of_a_map_are_found_in_both_layouts():
    class ChannelsLast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3)
            self.norm = nn.LayerNorm(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.conv(x).permute(0, 2, 3, 1)).mean((1, 2))

    model = Classifier(ChannelsLast(), nn.Linear(5, 2), classes=("a", "b"))
    first, last = named_maps(model, 12, ["conv", "norm"])
    assert (first.shape, first.channels, first.broadcast_shape) == ((5, 10, 10), 5, (1, 5, 1, 1))
    assert (last.shape, last.channels, last.broadcast_shape) == ((10, 10, 5), 5, (1, 1, 1, 5))


def test_finding_stages_leaves_the_network_as_it_is():
    model = tiny_classifier(batch_norm=True).train()
    model.encoder.drop.eval()
    before = copy.deepcopy(model.state_dict())
    find_stages(model, 12)
    assert model.training and not model.encoder.drop.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())


def test_recorded_outputs_are_those_of_the_modules_pass_by_pass():
    model = tiny_classifier(batch_norm=True).eval()
    x, y = torch.rand(2, 4, 3, 12, 12)
    with recorded(model, ["norm", OUTPUT]) as maps:
        model(x)
        model(y)
    model(y)  # not recorded any more
    for images, norm, output in zip((x, y), maps["norm"], maps[OUTPUT], strict=True):
        torch.testing.assert_close(norm, model.encoder.norm(model.encoder.conv(images)))
        torch.testing.assert_close(output, model.features(images))
    assert not any(part._forward_hooks for part in model.modules())


def test_outputs_of_a_compiled_encoder_are_recorded():
    model = tiny_classifier()
    model.encoder.compile(backend="eager")
    x = torch.rand(4, 3, 12, 12)
    model(x)  # compiled without the hooks
    assert [each.name for each in find_stages(model, 12)] == ["norm", OUTPUT]
    with recorded(model, ["conv"]) as maps:
        model(x)
    torch.testing.assert_close(maps["conv"], [model.encoder.conv(x)])


def test_a_missing_module_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="no module 'nrom'") as error:
        named_maps(tiny_classifier(), 12, ["conv", "nrom"])
    assert "'norm'" in error.value.hint


def test_a_module_that_is_called_twice_or_named_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x.mean((2, 3))))

    model = Classifier(Twice(), nn.Linear(3, 2), classes=("a", "b"))
    with pytest.raises(ConfigError, match="one tensor"):
        named_maps(model, 12, ["layer"])
    with pytest.raises(ConfigError, match="unique"):
        named_maps(tiny_classifier(), 12, ["conv", "conv"])


def test_modules_can_be_named_and_missing_stages_are_skipped():
    model = tiny_classifier()
    chosen = choose_places(model, 12, names=("conv",), stages=(1,), option="--x.layers")
    assert {place: each.shape for place, each in chosen.items()} == {"after conv": (4, 5, 5)}
    chosen = choose_places(model, 12, names=None, stages=(1, 2, 3), option="--x.layers")
    assert list(chosen) == ["after norm"]


def test_a_network_without_maps_and_a_module_that_gives_none_are_refused():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(432, 8))
    flat = Classifier(encoder, nn.Linear(8, 2), classes=("a", "b"))
    for model, names in ((flat, None), (tiny_classifier(), ("fc",))):
        with pytest.raises(ConfigError, match="more than one pixel") as error:
            choose_places(model, 12, names=names, stages=(1,), option="--x.layers")
        assert "--x.layers" in error.value.hint
