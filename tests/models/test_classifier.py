import pytest
import torch
from torch import nn

from peerdg._vision import models
from peerdg.errors import ConfigError, PeerdgWarning
from peerdg.models.classifier import Classifier, in_eval_mode
from tests.conftest import import_timm, tiny_classifier, tiny_domain


def test_uint8_and_unit_range_images_give_the_same_logits():
    model = tiny_classifier().eval()
    images = tiny_domain().images
    torch.testing.assert_close(model(images), model(images.float() / 255))


def test_normalization_is_part_of_the_model():
    torch.manual_seed(0)
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x.mean((2, 3))

    model = Classifier(
        Spy(), nn.Linear(3, 2), classes=("a", "b"), mean=(0.5, 0.25, 0.0), std=(0.5, 0.5, 2.0)
    )
    model(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    assert seen[0][0, :, 0, 0].tolist() == [1.0, 1.5, 0.5]


def test_any_network_with_a_last_linear_layer_becomes_a_classifier():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 2))
    model = Classifier.from_module(body, classes=("cat", "dog"), image_size=2)
    x = torch.rand(5, 3, 2, 2)
    assert model.feature_dim == 6
    torch.testing.assert_close(model(x), body(x))
    torch.testing.assert_close(model.features(x), body[:3](x))


def test_a_network_without_linear_head_is_refused():
    with pytest.raises(ConfigError, match="no linear layer"):
        Classifier.from_module(nn.Conv2d(3, 2, 1), classes=("a", "b"))


class Odd(nn.Module):
    """Layers declared in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(6, 2)
        self.body = nn.Linear(12, 6)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.logits(self.body(x.flatten(1)).relu())


def test_the_head_is_the_layer_that_gives_the_output_not_the_one_declared_last():
    network = Odd()
    model = Classifier.from_module(network, classes=("a", "b"), image_size=2)
    assert torch.equal(model.head.weight, network.logits.weight)
    x = torch.rand(5, 3, 2, 2)
    torch.testing.assert_close(model(x), network(x))


@pytest.mark.parametrize(
    "last", [nn.Softmax(1), nn.ReLU(), nn.ReLU(inplace=True), nn.Linear(2, 2).requires_grad_(False)]
)
def test_a_network_with_something_after_its_last_layer_is_refused(last):
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 2), last)
    if isinstance(last, nn.Linear):
        body.append(nn.LogSoftmax(1))
    with pytest.raises(ConfigError, match="something follows") as error:
        Classifier.from_module(body, classes=("a", "b"), image_size=2)
    assert "logits" in str(error.value)


def test_usual_image_sizes_are_tried_by_default():
    body = nn.Sequential(nn.Conv2d(3, 4, 28), nn.Flatten(), nn.Linear(4, 2))
    assert Classifier.from_module(body, classes=("a", "b")).feature_dim == 4


def test_a_network_of_another_image_size_asks_for_it():
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(ConfigError, match="image_size="):
        Classifier.from_module(body, classes=("a", "b"))


def test_looking_at_a_network_leaves_it_as_it_was():
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 2))
    body[1].eval()
    before = {name: value.clone() for name, value in body.state_dict().items()}
    model = Classifier.from_module(body, classes=("a", "b"))
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())
    assert [part.training for part in model.encoder] == [True, False, True, True]
    assert not any(part._forward_hooks for part in model.modules())


def trained_network():
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 2))
    body(torch.rand(4, 3, 32, 32))  # train mode updates the statistics
    return body


def test_a_trained_network_without_normalization_warns():
    with pytest.warns(PeerdgWarning, match=r"seems to be trained.*mean=\(0\.485"):
        model = Classifier.from_module(trained_network(), classes=("a", "b"))
    assert not model._normalize


@pytest.mark.parametrize("normalization", [{"mean": (0.0, 0.0, 0.0)}, {"std": (0.2, 0.2, 0.2)}])
def test_a_trained_network_with_normalization_does_not_warn(normalization):
    Classifier.from_module(trained_network(), classes=("a", "b"), **normalization)


def test_a_head_that_does_not_fit_the_classes_is_refused():
    with pytest.raises(ConfigError, match="5 outputs, but there are 2 classes"):
        Classifier(nn.Identity(), nn.Linear(3, 5), classes=("a", "b"))


def test_classes_may_be_given_as_their_number():
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    model = Classifier.from_module(body, classes=3, image_size=2)
    assert model.classes == ("0", "1", "2")
    with pytest.raises(ConfigError, match="4 classes"):
        Classifier.from_module(body, classes=4, image_size=2)


def resnet(library):
    if library == "timm":
        return import_timm().create_model("resnet18", num_classes=3)
    return models.resnet18(num_classes=3)


@pytest.mark.parametrize("make", [Odd, lambda: resnet("torchvision"), lambda: resnet("timm")])
def test_weights_go_back_into_the_network_they_came_from(make):
    network = make()
    size, outputs = (2, 2) if isinstance(network, Odd) else (32, 3)
    model = Classifier.from_module(network, classes=outputs, image_size=size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand_like(parameter) / 10)  # as if trained
    x = torch.rand(4, 3, size, size)
    assert not torch.equal(network.eval()(x), model.eval()(x))  # a copy is trained
    network.load_state_dict(model.network_state_dict())
    assert torch.equal(network(x), model(x))


def test_a_classifier_that_is_not_a_copy_of_a_network_has_no_names_to_restore():
    with pytest.raises(ConfigError, match="from_module"):
        tiny_classifier().network_state_dict()


def test_eval_mode_ends_with_each_part_as_it_was():
    model = tiny_classifier(batch_norm=True, dropout=0.5).train()
    model.encoder.norm.eval()  # frozen by the user
    before = {name: part.training for name, part in model.named_modules()}
    with pytest.raises(RuntimeError), in_eval_mode(model):
        assert not any(part.training for part in model.modules())
        raise RuntimeError
    assert {name: part.training for name, part in model.named_modules()} == before
