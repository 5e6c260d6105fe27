"""The reference is torchvision's own network with the same weights."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from peerdg._vision import models
from peerdg.errors import ConfigError, DataError
from peerdg.models.backbones import CaffeNet, DigitsCNN, build_classifier
from peerdg.models.names import BACKBONES, IMAGENET, check_backbone, has_normalization
from peerdg.models.stored import load_stored, save_model
from tests.conftest import import_timm
from tests.models.files import build, photos

LARGE = {"vit_b_16", "regnet_y_16gf"}  # 86 and 84 million weights
TORCHVISION = {
    # name: (side of small images, features, the last layer)
    "alexnet": (70, 4096, "classifier.6"),
    "resnet18": (40, 512, "fc"),
    "resnet50": (40, 2048, "fc"),
    "vit_b_16": (224, 768, "heads.head"),
    "regnet_y_16gf": (40, 3024, "fc"),
}


def some(names, slow=LARGE) -> list:
    return [pytest.param(n, marks=[pytest.mark.slow] if n in slow else []) for n in names]


def normalized(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    return (images / 255 - mean) / std


def usual_order(net: DigitsCNN, x: torch.Tensor) -> torch.Tensor:
    """Convolution, ReLU, pooling: as the papers draw it."""
    x = F.max_pool2d(F.relu(net.conv1(x)), 2)
    x = F.max_pool2d(F.relu(net.conv2(x)), 2)
    return F.relu(net.fc2(F.relu(net.fc1(x.flatten(1)))))


def test_pooling_before_relu_is_the_same_function_and_gradient():
    torch.manual_seed(0)
    net = DigitsCNN()
    x = torch.randn(4, 3, 32, 32)
    ours, papers = net(x), usual_order(net, x)
    assert torch.equal(ours, papers)
    weights = list(net.parameters())
    ours = torch.autograd.grad(ours.square().sum(), weights)
    papers = torch.autograd.grad(usual_order(net, x).square().sum(), weights)
    for a, b in zip(ours, papers, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_has_the_layers_of_the_digits_papers():
    net = DigitsCNN()
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    assert shapes == [(64, 3, 5, 5), (128, 64, 5, 5), (1024, 3200), (1024, 1024)]


@pytest.mark.parametrize("name", some(TORCHVISION))
def test_features_are_what_torchvisions_last_layer_sees(name):
    size, dim, last = TORCHVISION[name]
    network = models.get_model(name).eval()
    seen = []
    network.get_submodule(last).register_forward_hook(lambda _, x, __: seen.append(x[0]))
    images = photos(2, size)
    model = build_classifier(name, classes=("a", "b", "c")).eval()
    missing, unused = model.encoder.load_state_dict(network.state_dict(), strict=False)
    assert missing == []
    assert unused == [f"{last}.weight", f"{last}.bias"]
    with torch.inference_mode():
        network(normalized(images))
        features = model.features(images)
        assert model(images).shape == (2, 3)
    assert features.shape == (2, dim)
    assert model.feature_dim == dim
    scale = seen[0].abs().max()
    torch.testing.assert_close(features / scale, seen[0] / scale, rtol=1e-4, atol=1e-5)


def test_squeezenets_features_are_the_mean_of_its_last_map():
    network = models.squeezenet1_1().eval()
    model = build_classifier("squeezenet1_1", classes=("a", "b")).eval()
    model.encoder.load_state_dict(network.state_dict(), strict=False)
    images = photos(3, 64)
    expected = network.features(normalized(images)).mean((2, 3))
    torch.testing.assert_close(model.features(images), expected, rtol=1e-4, atol=1e-5)
    # Where torchvision's ReLU after its last convolution does nothing, the logits are the same.
    convolution = network.classifier[1]
    nn.init.constant_(convolution.bias, 100.0)
    model.head = nn.Linear(512, 1000)
    model.head.load_state_dict({"weight": convolution.weight.flatten(1), "bias": convolution.bias})
    torch.testing.assert_close(model(images), network(normalized(images)), rtol=1e-4, atol=1e-4)


def test_caffenet_has_the_published_layers():
    net = CaffeNet()
    convolutions = [part for part in net.modules() if isinstance(part, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [96, 256, 384, 384, 256]
    assert [c.groups for c in convolutions] == [1, 2, 1, 2, 2]
    assert convolutions[0].stride == (4, 4)
    assert convolutions[0].padding == (0, 0)
    linears = [part for part in net.modules() if isinstance(part, nn.Linear)]
    assert [(c.in_features, c.out_features) for c in linears] == [(9216, 4096), (4096, 4096)]


def test_caffenet_sees_images_in_caffes_range():
    """With identity-like first weights the input arrives multiplied by 57.6."""
    model = build_classifier("caffenet", classes=("a", "b")).eval()
    seen = []
    model.encoder.features.conv1.register_forward_hook(lambda _, x, __: seen.append(x[0]))
    images = photos(1, 227)
    assert model(images).shape == (1, 2)
    torch.testing.assert_close(seen[0], normalized(images) * 57.6, rtol=1e-4, atol=1e-3)
    mean = torch.tensor(IMAGENET[0]).view(3, 1, 1)
    caffe = (images / 255 - mean) * 255  # Caffe's inputs: bytes minus their mean
    assert (seen[0] - caffe).abs().max() < 4  # one scale for three standard deviations


def test_caffenet_takes_224_and_227_pixels_and_names_them_otherwise():
    model = build_classifier("caffenet", classes=("a", "b")).eval()
    assert model(photos(1, 224)).shape == (1, 2)
    with pytest.raises(DataError, match=r"227 x 227 .* 128 x 128"):
        model(photos(1, 128))


def test_a_transformer_takes_its_own_size_only():
    model = build("vit_b_16", classes=2, device="meta")
    with pytest.raises(DataError, match=r"224 x 224 .* 32 x 48"):
        model(torch.zeros(1, 3, 32, 48, device="meta"))


@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in LARGE])
def test_normalization_is_the_backbones_by_default(name):
    usual = BACKBONES[name].normalization or ((0.0,) * 3, (1.0,) * 3)
    model = build(name, classes=2)
    assert model.mean.flatten().tolist() == pytest.approx(usual[0])
    assert model.std.flatten().tolist() == pytest.approx(usual[1])
    assert has_normalization(name) == (usual == IMAGENET)


@pytest.mark.parametrize("name", ["digits-cnn-half", "squeezenet1_1", "resnet18"])
def test_a_stored_model_gives_the_same_logits(name, tmp_path):
    size = TORCHVISION.get(name, (BACKBONES[name].image_size,))[0]
    model = build_classifier(name, classes=("cat", "dog")).eval()
    save_model(tmp_path / "model", model, backbone=name, image_size=size)
    loaded, description = load_stored(tmp_path / "model")
    images = photos(2, size)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=0)
    assert description["backbone"] == name
    weights = [p for p in model.parameters() if p.ndim == 4]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)


def test_missing_imagenet_weights_are_refused_early():
    with pytest.raises(ConfigError, match="no ImageNet weights"):
        check_backbone("caffenet", "imagenet")


def test_names_are_checked_without_torch():
    code = "import sys, peerdg.models.names; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-I", "-c", code]).returncode == 0


def test_the_digits_networks_do_without_torchvision_and_without_the_compiler():
    code = (
        "import sys, peerdg.models.stored; from peerdg.models.backbones import build_classifier\n"
        "build_classifier('digits-cnn', classes=('a', 'b'))\n"
        "assert not {'torchvision', 'torch._dynamo'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code]).returncode == 0


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("peerdg.models.names.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="not installed") as error:
        build_classifier("timm:resnet18", classes=("a", "b"))
    assert "peerdg[timm]" in str(error.value)


class TestTimm:
    @pytest.fixture(autouse=True)
    def timm(self):
        return import_timm()

    @pytest.mark.parametrize(
        ("name", "size", "dim"),
        [("mobilenetv3_small_050", 64, 1024), ("convnext_atto", 64, 320)],
    )
    def test_any_model_becomes_a_classifier_and_is_stored(self, tmp_path, name, size, dim):
        model = build_classifier(f"timm:{name}", classes=("a", "b", "c")).eval()
        images = photos(2, size)
        assert model.features(images).shape == (2, dim)
        save_model(tmp_path / "m", model, backbone=f"timm:{name}", image_size=size)
        loaded, _ = load_stored(tmp_path / "m")
        assert torch.equal(loaded(images), model(images))

    def test_features_are_those_of_the_same_network_of_torchvision(self):
        """timm and torchvision have the same ResNet-18 under the same names."""
        ours = build_classifier("timm:resnet18", classes=("a", "b")).eval()
        theirs = build_classifier("resnet18", classes=("a", "b")).eval()
        ours.load_state_dict(theirs.state_dict())
        images = photos(2, 64)
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)

    def test_normalization_and_fixed_size_are_the_models(self):
        model = build_classifier("timm:vit_tiny_patch16_224", classes=("a", "b"))
        assert model.mean.flatten().tolist() == [0.5] * 3
        with pytest.raises(DataError, match="224 x 224"):
            model(photos(1, 64))

    def test_a_misspelled_model_is_refused_with_a_suggestion(self):
        with pytest.raises(ConfigError, match="timm has no model 'resnet81'") as error:
            build_classifier("timm:resnet81", classes=("a", "b"))
        assert "Did you mean 'timm:resnet" in str(error.value)
