import pytest
import torch
from torch import nn

from peerdg.errors import ConfigError
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier, has_batch_statistics
from tests.conftest import tiny_classifier, tiny_domain


def test_uint8_and_unit_range_images_give_the_same_logits():
    model = tiny_classifier().eval()
    images = tiny_domain().images
    torch.testing.assert_close(model(images), model(images.float() / 255))


def test_normalisation_is_part_of_the_model():
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
    model = Classifier.from_module(body, classes=("cat", "dog"))
    x = torch.rand(5, 3, 2, 2)
    assert model.feature_dim == 6
    torch.testing.assert_close(model(x), body(x))
    torch.testing.assert_close(model.features(x), body[:3](x))


def test_a_network_without_linear_head_is_refused():
    with pytest.raises(ConfigError, match="no linear layer"):
        Classifier.from_module(nn.Conv2d(3, 2, 1), classes=("a", "b"))


def test_a_head_that_does_not_fit_the_classes_is_refused():
    with pytest.raises(ConfigError, match="5 outputs, but there are 2 classes"):
        Classifier(nn.Identity(), nn.Linear(3, 5), classes=("a", "b"))


def test_an_unknown_backbone_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError) as error:
        build_classifier("digit_cnn", classes=("a", "b"))
    assert "digits-cnn" in str(error.value)


def test_batch_statistics_are_recognised():
    assert has_batch_statistics(tiny_classifier(batch_norm=True))
    assert not has_batch_statistics(tiny_classifier())
