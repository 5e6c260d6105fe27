"""Places inside networks: the ends of stages, and layers that stand there."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peerdg.errors import ConfigError
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.stages import choose_places, named_places, stage_places
from tests.conftest import import_timm, tiny_classifier


@pytest.mark.parametrize(
    ("backbone", "size", "first"),
    [
        ("digits-cnn-half", 32, {"before conv2": (32, 14, 14), "after conv2": (64, 10, 10)}),
        ("alexnet", 224, {"after features.2": (64, 27, 27), "after features.5": (192, 13, 13)}),
        (
            "caffenet",
            227,
            {"after features.pool1": (96, 27, 27), "after features.pool2": (256, 13, 13)},
        ),
        (
            "squeezenet1_1",
            224,
            {"after features.5": (128, 27, 27), "after features.8": (256, 13, 13)},
        ),
        ("resnet18", 64, {"after layer1": (64, 16, 16), "after layer2": (128, 8, 8)}),
    ],
)
def test_the_first_places_of_the_usual_networks(backbone, size, first):
    with torch.device("meta"):  # shapes are all that matters
        model = build_classifier(backbone, classes=("a", "b"))
    found = list(stage_places(model, size).items())[:2]
    assert {place: each.shape for place, each in found} == first


@pytest.mark.parametrize(
    ("name", "size", "first"),
    [
        ("convnext_atto", 64, ["after stages.0", "after stages.1"]),
        ("vit_tiny_patch16_224", 224, ["after blocks.2", "after blocks.5"]),
    ],
)
def test_the_first_places_of_networks_of_timm(name, size, first):
    import_timm()
    with torch.device("meta"):
        model = build_classifier(f"timm:{name}", classes=("a", "b"))
    assert list(stage_places(model, size))[:2] == first


class Residual(nn.Module):
    """Something first, pooling that is no module, and two blocks with shortcuts."""

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.one = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
            self.two = nn.Conv2d(outputs, outputs, 3, padding=1)
            self.short = nn.Conv2d(inputs, outputs, 1, stride=stride)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.two(F.relu(self.one(x))) + self.short(x))

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.body = nn.ModuleList([self.Block(4, 6, 2), self.Block(6, 8, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        for block in self.body:
            x = block(x)
        return x.mean((2, 3))


def test_a_stem_is_no_stage():
    model = Classifier(Residual(nn.Conv2d(3, 4, 3)), nn.Linear(8, 2), classes=("a", "b"))
    assert list(stage_places(model, 16)) == ["after body.0", "after body.1"]


def test_a_shortcut_sees_what_the_rest_of_its_block_sees():
    first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
    model = Classifier(Residual(first), nn.Linear(8, 2), classes=("a", "b"))
    found = stage_places(model, 16)
    assert list(found) == ["before body.0", "after body.0", "after body.1"]
    assert found["before body.0"].shape == (4, 8, 8)


def test_modules_can_be_named_instead():
    model = tiny_classifier()
    assert list(named_places(model, 12, ["conv"])) == ["after conv"]
    chosen = choose_places(model, 12, names=("conv",), stages=(1,), option="--x.layers")
    assert {place: each.shape for place, each in chosen.items()} == {"after conv": (4, 5, 5)}


def test_stages_that_a_network_does_not_have_are_left_out():
    chosen = choose_places(tiny_classifier(), 12, names=None, stages=(1, 2, 3), option="--x.layers")
    assert list(chosen) == ["after norm"]


def test_a_network_without_maps_and_a_module_that_gives_none_are_refused():
    model = Classifier(
        nn.Sequential(nn.Flatten(), nn.Linear(432, 8)), nn.Linear(8, 2), classes=("a", "b")
    )
    with pytest.raises(ConfigError, match="No stage of this network") as error:
        choose_places(model, 12, names=None, stages=(1,), option="--x.layers")
    assert "--x.layers" in error.value.hint
    with pytest.raises(ConfigError, match=r"after fc \(8\) is no map"):
        choose_places(tiny_classifier(), 12, names=("fc",), stages=(1,), option="--x.layers")
    with pytest.raises(ConfigError, match="no module 'cnv'") as error:
        choose_places(tiny_classifier(), 12, names=("cnv",), stages=(1,), option="--x.layers")
    assert "'conv'" in error.value.hint
