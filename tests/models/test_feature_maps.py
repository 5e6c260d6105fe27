import copy

import pytest
import torch
from torch import nn

from peerdg.errors import ConfigError
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.stages import OUTPUT, FeatureMap, find_stages, named_maps, recorded
from tests.conftest import import_timm, tiny_classifier


def stages(backbone: str, size: int) -> list[str]:
    model = build_classifier(backbone, classes=("a", "b"))
    return [found.name for found in find_stages(model, size)]


@pytest.mark.parametrize(
    ("backbone", "size", "names"),
    [
        ("digits-cnn-half", 32, ["conv1", "conv2", OUTPUT]),
        ("alexnet", 224, ["features.1", "features.4", "features.11", "avgpool"]),
        ("caffenet", 227, ["features.relu1", "features.relu2", "features.relu5", "features"]),
        ("squeezenet1_1", 224, ["features.1", "features.4", "features.7", "features"]),
        ("resnet18", 64, ["relu", "layer1", "layer2", "layer3", "layer4"]),
        ("resnet50", 64, ["relu", "layer1", "layer2", "layer3", "layer4"]),
    ],
)
def test_stages_of_the_usual_networks(backbone, size, names):
    assert stages(backbone, size) == names


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "efficientnet_b0"])
def test_stages_end_where_timm_says_they_do(name):
    import_timm()
    # Its list has the last map of each resolution too, but for layers after the last stage.
    model = build_classifier(f"timm:{name}", classes=("a", "b"))
    theirs = [about["module"] for about in model.encoder.feature_info]
    ours = [found.name for found in find_stages(model, 64) if found.name != OUTPUT]
    assert ours[:-1] == theirs[:-1]
    assert len(ours) == len(theirs)


def test_a_transformer_is_cut_into_four_groups_of_blocks():
    import_timm()
    expected = ["patch_embed.proj", "blocks.2", "blocks.5", "blocks.8", "blocks.11", OUTPUT]
    model = build_classifier("timm:vit_tiny_patch16_224", classes=("a", "b"))
    found = find_stages(model, 224)
    assert [each.name for each in found] == expected
    assert found[1] == FeatureMap("blocks.2", (197, 192), channel=1)


@pytest.mark.parametrize(("dropout", "last"), [(0.0, OUTPUT), (0.5, "norm")])
def test_features_behind_dropout_are_no_stage(dropout, last):
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
    for given, norm, output in zip((x, y), maps["norm"], maps[OUTPUT], strict=True):
        torch.testing.assert_close(norm, model.encoder.norm(model.encoder.conv(given)))
        torch.testing.assert_close(output, model.features(given))
    assert not any(part._forward_hooks for part in model.modules())


def test_outputs_of_a_compiled_encoder_are_recorded():
    model = tiny_classifier()
    model.encoder.compile(backend="eager")
    x = torch.rand(4, 3, 12, 12)
    model(x)  # compiled without the hooks
    assert [found.name for found in find_stages(model, 12)] == ["norm", OUTPUT]
    with recorded(model, ["conv"]) as maps:
        model(x)
    torch.testing.assert_close(maps["conv"], [model.encoder.conv(x)])


def test_a_module_that_is_not_there_is_refused_with_the_nearest_name():
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
    with pytest.raises(ConfigError, match="does not give one tensor"):
        named_maps(model, 12, ["layer"])
    with pytest.raises(ConfigError, match="named twice"):
        named_maps(tiny_classifier(), 12, ["conv", "conv"])
