"""An ensemble returns the mean of its members, and is a classifier like any other."""

from pathlib import Path

import pytest
import torch
from torch import nn

from peerdg.errors import ConfigError, DamagedError
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.ensemble import ensemble
from peerdg.models.layers import KINDS
from peerdg.models.stored import OWN, load_stored, save_model
from tests.conftest import TinyEncoder, tiny_classifier, tiny_domain

IMAGES = tiny_domain(n=10).images


def members(count: int = 3, **options) -> list[Classifier]:
    return [tiny_classifier(seed=seed, **options).eval() for seed in range(count)]


def test_its_probabilities_are_the_mean_of_the_members_probabilities():
    several = members()
    for member in several:
        nn.init.normal_(member.head.weight, std=4.0)  # confident, so that both means differ
    expected = torch.stack([member(IMAGES).softmax(1) for member in several]).mean(0)
    logits = ensemble(several)(IMAGES)
    torch.testing.assert_close(logits.softmax(1), expected)
    torch.testing.assert_close(logits.exp(), expected)  # they are log-probabilities


def test_its_logits_are_the_mean_of_the_members_logits_with_outputs_logits():
    several = members()
    expected = torch.stack([member(IMAGES) for member in several]).mean(0)
    torch.testing.assert_close(ensemble(several, outputs="logits")(IMAGES), expected)


def test_a_confident_member_outvotes_two_doubtful_ones_by_logits_only():
    """Logits 20, 0 against twice 0, 1.5: the mean probability is with the two, the logit with one.

    Probabilities of the first class: about 1, 0.18 and 0.18; their mean is 0.45.
    """
    several = members(classes=2)
    for member, logits in zip(several, ([20.0, 0.0], [0.0, 1.5], [0.0, 1.5]), strict=True):
        nn.init.zeros_(member.head.weight)
        member.head.bias.data = torch.tensor(logits)
    assert ensemble(several)(IMAGES).argmax(1).unique().tolist() == [1]
    assert ensemble(several, outputs="logits")(IMAGES).argmax(1).unique().tolist() == [0]


def test_members_may_differ_in_width_and_lack_a_bias():
    several = members(2)
    wide = Classifier(TinyEncoder(dim=5), nn.Linear(5, 3, bias=False), classes=("a", "b", "c"))
    joined = ensemble([*several, wide.eval()], outputs="logits")
    assert joined.feature_dim == 21
    expected = torch.stack([m(IMAGES) for m in (*several, wide)]).mean(0)
    torch.testing.assert_close(joined(IMAGES), expected)


def test_normalization_is_that_of_the_members():
    options = {"classes": ("a", "b", "c"), "mean": (0.4, 0.5, 0.6), "std": (0.2,) * 3}
    several = [Classifier(m.encoder, m.head, **options).eval() for m in members(2)]
    expected = torch.stack([m(IMAGES).softmax(1) for m in several]).mean(0)
    torch.testing.assert_close(ensemble(several)(IMAGES).softmax(1), expected)


LAYERS = {
    "gaussian-bottleneck": {"place": "features", "inputs": 8, "outputs": 4, "noise": 0.5},
    "meta-features": {"place": "after conv", "channels": 4, "atoms": 6, "addressed": 3},
}


def test_every_kind_of_added_layer_is_part_of_its_member():
    assert set(LAYERS) == set(KINDS)
    for kind, options in LAYERS.items():
        layer = {"kind": kind, **options}
        several = [member.with_layers([layer]).eval() for member in members(2)]
        expected = torch.stack([m(IMAGES) for m in several]).mean(0)
        torch.testing.assert_close(ensemble(several, outputs="logits").eval()(IMAGES), expected)


def test_changing_the_ensembles_head_leaves_the_members_as_they_are():
    several = members(2)
    before = several[0](IMAGES)
    ensemble(several).head.weight.data.zero_()
    assert torch.equal(several[0](IMAGES), before)


def test_members_with_different_inputs_are_refused():
    first, second = members(2)
    other = Classifier(second.encoder, second.head, classes=second.classes, mean=(0.5,) * 3)
    for wrong in (other, tiny_classifier(classes=2)):
        with pytest.raises(ConfigError, match="same classes"):
            ensemble([first, wrong])


def stored(folder: Path, model: Classifier, backbone: str = OWN) -> Path:
    save_model(folder, model, backbone=backbone, image_size=12)
    return folder


def test_networks_of_one_run_are_stored_as_one_model(tmp_path: Path):
    members = [build_classifier("digits-cnn-half", classes=("a", "b")) for _ in range(2)]
    whole = ensemble(members).eval()
    model, about = load_stored(stored(tmp_path / "model", whole, "digits-cnn-half"))
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images), whole(images))
        expected = sum(member.eval()(images).softmax(1) for member in members) / 2
        torch.testing.assert_close(model(images).softmax(1), expected)
    assert [m["name"] for m in about["combined"]["members"]] == ["network 1", "network 2"]


def test_custom_networks_load_into_one_member_or_the_ensemble(tmp_path: Path):
    whole = ensemble([tiny_classifier(seed=seed) for seed in (1, 2)]).eval()
    folder, images = stored(tmp_path / "model", whole), torch.rand(4, 3, 12, 12)
    others = [tiny_classifier(seed=seed) for seed in (3, 4, 5)]
    for network in (others[0], ensemble(others[:2])):
        with torch.no_grad():
            torch.testing.assert_close(load_stored(folder, network)[0](images), whole(images))
    with pytest.raises(DamagedError, match="mismatch"):
        load_stored(folder, ensemble(others))
    with pytest.raises(DamagedError, match="averages probabilities"):
        load_stored(folder, ensemble(others[:2], outputs="logits"))
    with pytest.raises(DamagedError, match="damaged"):
        load_stored(stored(tmp_path / "one", others[0]), ensemble(others[:2]))


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_added_to_each_network_are_stored_once(kind: str, tmp_path: Path):
    layer = {"kind": kind, **LAYERS[kind]}
    whole = ensemble([member.with_layers([layer]) for member in members(2)]).eval()
    folder = stored(tmp_path / "model", whole)
    for network in (tiny_classifier(seed=9), whole):
        model, about = load_stored(folder, network)
        (stored_layer,) = about["added_layers"]
        assert stored_layer == layer
        with torch.no_grad():
            torch.testing.assert_close(model(IMAGES), whole(IMAGES))
