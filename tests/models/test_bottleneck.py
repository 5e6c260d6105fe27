"""Layers that are added to a network: what they compute, and how the network gets them."""

import copy

import pytest
import torch
import torch.nn.functional as F

from peerdg.errors import ConfigError
from peerdg.models.added import AddedLayer
from peerdg.models.bottleneck import GaussianBottleneck
from peerdg.models.classifier import Classifier, network_fingerprint
from tests.conftest import tiny_classifier, tiny_domain

LAYER = AddedLayer(kind="gaussian-bottleneck", place="features", inputs=8, outputs=5, noise=0.2)


def adapted(**options) -> Classifier:
    torch.manual_seed(1)
    return tiny_classifier(**options).with_layers([LAYER])


def test_in_training_it_samples_the_gaussian_it_predicts():
    """Mean and standard deviation over many samples are μ and s·σ."""
    torch.manual_seed(0)
    layer = GaussianBottleneck(8, 3, noise=0.2).double().train()
    h = torch.randn(2, 8, dtype=torch.float64)
    samples = layer(h.repeat(20_000, 1)).view(20_000, 2, 3)
    w, b = layer.mean.weight, layer.mean.bias
    linear = h @ w.T + b
    mu = torch.where(linear > 0, linear, 0.01 * linear)
    log_variance = (h @ layer.log_variance.weight.T + layer.log_variance.bias).clamp(min=0)
    sigma = log_variance.exp().sqrt()
    torch.testing.assert_close(samples.mean(0), mu, rtol=0, atol=0.01)
    torch.testing.assert_close(samples.std(0), 0.2 * sigma, rtol=0.03, atol=0)
    assert log_variance.max() > 0  # else every σ would be 1


def test_in_eval_mode_it_is_the_mean_and_nothing_is_random():
    layer = GaussianBottleneck(8, 3).eval()
    h = torch.randn(4, 8)
    assert torch.equal(layer(h), layer(h))
    assert torch.equal(layer(h), layer.gaussian(h)[0])
    torch.testing.assert_close(layer(h), F.leaky_relu(layer.mean(h), 0.01))


def test_an_adapted_classifier_is_head_of_neck_of_encoder():
    model, images = adapted().eval(), tiny_domain().images
    h = model.encoder(images.float() / 255)
    torch.testing.assert_close(model(images), model.head(model.neck(h)))
    torch.testing.assert_close(model.features(images), model.neck(h))
    assert (model.encoder_dim, model.feature_dim) == (8, 5)
    assert model.added == (LAYER,)


def test_adding_a_layer_leaves_the_network_it_was_added_to_as_it_was():
    model = tiny_classifier()
    before, text = copy.deepcopy(model.state_dict()), repr(model)
    more = model.with_layers([LAYER])
    assert more.encoder is model.encoder
    assert repr(model) == text and model.added == ()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert more.classes == model.classes


def test_an_added_layer_keeps_normalisation_size_type_and_mode():
    encoder = tiny_classifier().encoder
    model = Classifier(
        encoder, torch.nn.Linear(8, 2), classes=("a", "b"),
        mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), image_size=12,
    ).double().eval()  # fmt: skip
    more = model.with_layers([LAYER])
    assert torch.equal(more.mean, model.mean) and torch.equal(more.std, model.std)
    assert (more.image_size, more.training) == (12, False)
    assert more.neck.training is False
    assert {p.dtype for p in more.parameters()} == {torch.float64}


def test_the_same_layer_is_not_added_twice_and_another_one_is_refused():
    model = adapted()
    assert model.with_layers([LAYER]) is model
    other = AddedLayer(kind="gaussian-bottleneck", place="features", inputs=8, outputs=6, noise=0.2)
    with pytest.raises(ConfigError, match="Another layer"):
        model.with_layers([other])
    with pytest.raises(ValueError, match="takes 8 features, the encoder has 4"):
        Classifier(torch.nn.Identity(), torch.nn.Linear(4, 2), classes=("a", "b")).with_layers(
            [LAYER]
        )


def test_a_network_without_added_layers_has_the_fingerprint_and_weights_it_always_had():
    model = tiny_classifier()
    assert not any("neck" in name for name in model.state_dict())
    assert "neck" not in repr(model)
    assert network_fingerprint(model) != network_fingerprint(model.with_layers([LAYER]))
