"""Models with added layers on disk: loaded, exported and used without their method."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from peerdg.cli.main import run
from peerdg.errors import ConfigError
from peerdg.export import SUFFIXES as FORMATS
from peerdg.model import load_model
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.ensemble import ensemble
from peerdg.models.names import OWN
from peerdg.models.stored import load_stored, save_model
from tests.cli.stored_models import CLASSES, save_photos
from tests.conftest import tiny_domain

NECK: dict[str, Any] = {
    "kind": "gaussian-bottleneck", "place": "features", "inputs": 512, "outputs": 16, "noise": 0.2,
}  # fmt: skip
META: dict[str, Any] = {
    "kind": "meta-features", "place": "before conv2", "channels": 32, "channel": 1, "atoms": 16,
    "addressed": 4, "ridge": 0.01, "threshold": -1.0, "gradient": "closed-form",
}  # fmt: skip
IMAGES = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)


def small_with(*layers: dict[str, Any], seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    model = build_classifier("digits-cnn-half", classes=CLASSES, mean=(0.5,) * 3, std=(0.2,) * 3)
    return model.with_layers(layers).eval()


@pytest.fixture(params=[NECK, META], ids=lambda layer: layer["kind"])
def layer(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture
def folder(tmp_path: Path, layer: dict[str, Any]) -> Path:
    save_model(tmp_path / "m", small_with(layer), backbone="digits-cnn-half", image_size=32)
    return tmp_path / "m"


def test_a_stored_model_with_a_layer_is_the_model_that_was_saved(folder: Path, layer):
    loaded, description = load_stored(folder)
    model = small_with(layer)
    assert description["added_layers"] == [layer]
    assert loaded.added == model.added
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    assert torch.equal(loaded(IMAGES), loaded(IMAGES))


def test_a_custom_network_gets_the_stored_layer(tmp_path: Path):
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(432, 8), torch.nn.Linear(8, 3)
        )

    neck, images = {**NECK, "inputs": 8}, tiny_domain().images
    model = Classifier.from_module(network(), classes=CLASSES, image_size=12)
    model = model.with_layers([neck]).eval()
    save_model(tmp_path / "m", model, backbone=OWN, image_size=12)
    plain = Classifier.from_module(network(), classes=CLASSES, image_size=12)
    for target in (network(), plain, plain.with_layers([neck])):
        assert torch.equal(load_stored(tmp_path / "m", target)[0](images), model(images))
    assert plain.added == ()
    with pytest.raises(ConfigError, match="different added layers"):
        load_stored(tmp_path / "m", plain.with_layers([{**neck, "outputs": 4}]))


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "onnx"])
def test_every_export_of_a_model_with_a_layer_answers_like_it(folder, layer, tmp_path, format):
    """The command compares the written file with the model and fails if they differ.

    MetaCNN's tests export to ONNX.
    """
    out = tmp_path / "out"
    assert run(["export", str(folder), "--format", format, "-o", str(out)], debug=False) == 0
    assert json.loads((out / "about.json").read_text())["added_layers"] == [layer]


def test_the_code_on_the_card_of_exported_weights_makes_the_network(folder, layer, tmp_path):
    out = tmp_path / "out"
    assert run(["export", str(folder), "--format", "safetensors", "-o", str(out)], debug=False) == 0
    code = (out / "MODEL_CARD.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"net": small_with(seed=1)}
    exec(code.replace("'weights.safetensors'", repr(str(out / "weights.safetensors"))), names)
    assert torch.equal(names["net"](IMAGES), small_with(layer)(IMAGES))


def test_the_commands_use_a_model_with_a_layer(folder: Path, tmp_path: Path):
    photos = save_photos(tmp_path / "photos", per_class=1)
    assert run(["predict", str(folder), str(photos)], debug=False) == 0
    assert run(["evaluate", str(folder), str(photos)], debug=False) == 0
    paths = sorted(photos.rglob("*.png"))
    first, again = (load_model(folder).predict(paths) for _ in range(2))
    assert [p.probability for p in first] == [p.probability for p in again]


@pytest.mark.parametrize("layers", [[META], [META, NECK]], ids=["inside", "both"])
def test_an_ensemble_of_networks_with_layers_answers_with_their_mean(layers):
    members = [small_with(*layers, seed=seed) for seed in (0, 1)]
    model = ensemble(members).eval()
    expected = sum(member(IMAGES).softmax(1) for member in members) / 2
    torch.testing.assert_close(model(IMAGES).softmax(1), expected)
    copies = ensemble([copy.deepcopy(member).train() for member in members]).eval()
    assert torch.equal(copies(IMAGES), model(IMAGES))  # the mode reaches the layers
