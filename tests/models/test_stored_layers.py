"""Models with added layers on disk: loaded without their method, forged ones refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from peerdg.api import load_model
from peerdg.cli.main import run
from peerdg.errors import ConfigError, DamagedError
from peerdg.export.formats import FORMATS
from peerdg.files import sha256
from peerdg.models.added import LARGEST_WIDTH, AddedLayer
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.description import checksum
from peerdg.models.ensemble import ensemble
from peerdg.models.names import OWN
from peerdg.models.stored import load_stored, save_model
from tests.cli.stored_models import CLASSES, save_photos, save_small_model
from tests.conftest import tiny_classifier, tiny_domain

PLAIN: dict[str, Any] = {
    "kind": "gaussian-bottleneck", "place": "features", "inputs": 1024, "outputs": 16,
    "noise": 0.2,
}  # fmt: skip


def small_adapted() -> Any:
    torch.manual_seed(0)
    model = build_classifier("digits-cnn-half", classes=CLASSES, mean=(0.5,) * 3, std=(0.2,) * 3)
    return model.with_layers([AddedLayer(**{**PLAIN, "inputs": model.feature_dim})])


INSIDE: dict[str, Any] = {
    "kind": "style-mixing", "place": "before conv2", "inputs": 32, "outputs": 32, "channel": 1,
    "p": 0.5, "alpha": 0.1,
}  # fmt: skip


META: dict[str, Any] = {
    "kind": "meta-features", "place": "before conv2", "inputs": 32, "outputs": 32, "channel": 1,
    "atoms": 16, "addressed": 4, "ridge": 0.01, "threshold": -1.0, "gradient": "closed-form",
}  # fmt: skip


def small_with(*layers: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = build_classifier("digits-cnn-half", classes=CLASSES, mean=(0.5,) * 3, std=(0.2,) * 3)
    return model.with_layers([AddedLayer(**layer) for layer in layers])


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    save_model(tmp_path / "i", small_with(INSIDE), backbone="digits-cnn-half", image_size=32)
    return tmp_path / "i"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "m", small_adapted(), backbone="digits-cnn-half", image_size=32)
    return tmp_path / "m"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos") / "photos", per_class=1)


def edit(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "model.json"
    values = {**json.loads(path.read_text()), **change}
    values = {key: value for key, value in values.items() if value is not ...}
    path.write_text(json.dumps({**values, "sha256": checksum(values)}))


def stored_layer(folder: Path) -> dict[str, Any]:
    (layer,) = json.loads((folder / "model.json").read_text())["added_layers"]
    return layer


def test_a_stored_model_with_a_layer_is_the_model_that_was_saved(folder: Path):
    loaded, description = load_stored(folder)
    model = small_adapted().eval()
    assert loaded.added == model.added
    assert description["added_layers"] == [{**PLAIN, "inputs": model.encoder_dim}]
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(loaded(images), model(images))
    assert torch.equal(loaded(images), loaded(images))


def test_only_models_with_added_layers_have_the_newer_format(folder: Path, tmp_path: Path):
    assert json.loads((folder / "model.json").read_text())["format"] == 2
    plain = save_small_model(tmp_path / "plain")
    text = json.loads((plain / "model.json").read_text())
    assert text["format"] == 1 and "added_layers" not in text


WRONG: list[Any] = [
    {"kind": "torch.nn.Linear"}, {"kind": "os.system"}, {"kind": ["gaussian-bottleneck"]},
    {"kind": ...}, {"place": "encoder"}, {"place": 0}, {"inputs": 0}, {"inputs": 7},
    {"inputs": "1024"}, {"inputs": LARGEST_WIDTH + 1}, {"outputs": -1}, {"outputs": 17},
    {"outputs": 16.0}, {"outputs": True}, {"outputs": 10**30}, {"outputs": ...},
    {"noise": -0.1}, {"noise": 1e9}, {"noise": "0.2"}, {"noise": None},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_a_forged_layer_is_refused(
    folder: Path, photos: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
):
    forged = {**stored_layer(folder), **change}
    edit(folder, {"added_layers": [{k: v for k, v in forged.items() if v is not ...}]})
    with pytest.raises(DamagedError):
        load_stored(folder)
    assert run(["predict", str(folder), str(photos)], debug=False) == 7
    message = capsys.readouterr().err
    assert "Traceback" not in message and "model" in message


@pytest.mark.parametrize(
    "layers", [5, "x", {}, [], [5], [None], [PLAIN, PLAIN], [[PLAIN]], [{}], ...], ids=str
)
def test_a_forged_list_of_layers_is_refused(folder: Path, layers: Any):
    edit(folder, {"added_layers": layers})
    with pytest.raises(DamagedError):
        load_stored(folder)


def test_two_layers_at_one_place_are_refused(folder: Path):
    edit(folder, {"added_layers": [stored_layer(folder)] * 2})
    with pytest.raises(DamagedError, match="two at one place"):
        load_stored(folder)


def test_layers_are_refused_in_the_older_format_and_a_layer_the_weights_lack(tmp_path: Path):
    plain = save_small_model(tmp_path / "plain")
    edit(plain, {"added_layers": [PLAIN]})
    with pytest.raises(DamagedError, match="format"):
        load_stored(plain)
    edit(plain, {"format": 2})
    with pytest.raises(DamagedError, match="is damaged"):
        load_stored(plain)


def test_a_forged_width_takes_no_memory_even_for_a_network_of_ones_own(tmp_path: Path):
    model = tiny_classifier().with_layers([AddedLayer(**{**PLAIN, "inputs": 8})])
    save_model(tmp_path / "m", model, backbone=OWN, image_size=12)
    edit(tmp_path / "m", {"added_layers": [{**PLAIN, "inputs": 8, "outputs": LARGEST_WIDTH}]})
    with pytest.raises(DamagedError, match=r"has the shape \[16, 8\] for 8 inputs and 65536"):
        load_stored(tmp_path / "m", tiny_classifier())


def test_a_network_of_ones_own_gets_the_layer_back(tmp_path: Path):
    model = tiny_classifier(seed=3).with_layers([AddedLayer(**{**PLAIN, "inputs": 8})]).eval()
    save_model(tmp_path / "m", model, backbone=OWN, image_size=12)
    images = tiny_domain().images
    plain = tiny_classifier(seed=4)
    for given in (plain, tiny_classifier().with_layers(model.added)):
        assert torch.equal(load_stored(tmp_path / "m", given)[0](images), model(images))
    assert plain.added == ()
    other = AddedLayer(**{**PLAIN, "inputs": 8, "outputs": 4})
    with pytest.raises(ConfigError, match="Another layer"):
        load_stored(tmp_path / "m", tiny_classifier().with_layers([other]))


def test_a_plain_module_gets_the_layer_back(tmp_path: Path):
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(432, 8), torch.nn.Linear(8, 3)
        )

    model = Classifier.from_module(network(), classes=CLASSES, image_size=12)
    model = model.with_layers([AddedLayer(**{**PLAIN, "inputs": 8})]).eval()
    save_model(tmp_path / "m", model, backbone=OWN, image_size=12)
    images = tiny_domain().images
    assert torch.equal(load_stored(tmp_path / "m", network())[0](images), model(images))


def test_swapped_weights_of_a_layer_are_refused(folder: Path):
    tensors = load_file(folder / "model.safetensors")
    tensors["neck.log_variance.weight"] = tensors["neck.log_variance.weight"][:3].clone()
    save_file(tensors, folder / "model.safetensors")
    edit(folder, {"weights_sha256": sha256(folder / "model.safetensors")})
    with pytest.raises(DamagedError, match=r"neck\.log_variance\.weight"):
        load_stored(folder)


@pytest.mark.parametrize("format", FORMATS)
def test_every_export_of_a_model_with_a_layer_answers_like_it(
    folder: Path, tmp_path: Path, format: str
):
    """The command compares the written file with the model and fails if they differ."""
    out = tmp_path / "out"
    assert run(["export", str(folder), "--format", format, "-o", str(out)], debug=False) == 0
    about = json.loads((out / "about.json").read_text())
    assert about["added_layers"] == [stored_layer(folder)]


def test_the_code_on_the_card_of_exported_weights_makes_the_network(folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert run(["export", str(folder), "--format", "safetensors", "-o", str(out)], debug=False) == 0
    code = (out / "MODEL_CARD.md").read_text().split("```python\n")[1].split("```")[0]
    model = small_adapted()
    net = build_classifier("digits-cnn-half", classes=CLASSES, mean=(0.5,) * 3, std=(0.2,) * 3)
    names: dict[str, Any] = {"net": net}
    exec(code.replace('"weights.safetensors"', repr(str(out / "weights.safetensors"))), names)
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(names["net"](images), model.eval()(images))


def test_the_commands_use_a_model_with_a_layer(folder: Path, photos: Path):
    assert run(["predict", str(folder), str(photos)], debug=False) == 0
    assert run(["evaluate", str(folder), str(photos)], debug=False) == 0
    paths = sorted(photos.rglob("*.png"))
    first, again = (load_model(folder).predict(paths) for _ in range(2))
    assert [p.probability for p in first] == [p.probability for p in again]


def test_a_model_with_a_layer_inside_is_the_model_that_was_saved(inside: Path):
    loaded, description = load_stored(inside)
    assert description["added_layers"] == [INSIDE] and description["format"] == 2
    model = small_with(INSIDE).eval()
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(loaded(images), model(images))
    assert loaded.added == model.added


WRONG_INSIDE: list[Any] = [
    {"kind": "gaussian-bottleneck"}, {"place": "features"}, {"place": "before nothing"},
    {"place": "after "}, {"place": "before " + "x" * 201}, {"place": "before conv2\x00"},
    {"place": "after fc1"}, {"place": "before __class__"}, {"inputs": 31}, {"inputs": 0},
    {"channel": 2}, {"channel": 0}, {"channel": None}, {"channel": ...}, {"p": 1.5}, {"p": ...},
    {"p": "0.5"}, {"alpha": 0}, {"alpha": None}, {"noise": 0.2},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG_INSIDE, ids=str)
def test_a_forged_layer_inside_is_refused(inside: Path, change: dict[str, Any]):
    forged = {**INSIDE, **change}
    edit(inside, {"added_layers": [{k: v for k, v in forged.items() if v is not ...}]})
    with pytest.raises(DamagedError):
        load_stored(inside)


def test_two_layers_at_one_place_inside_are_refused(inside: Path):
    edit(inside, {"added_layers": [INSIDE, {**INSIDE, "p": 0.1}]})
    with pytest.raises(DamagedError, match="two at one place"):
        load_stored(inside)


@pytest.mark.parametrize("format", FORMATS)
def test_every_export_of_a_model_with_a_layer_inside_answers_like_it(
    inside: Path, tmp_path: Path, format: str
):
    out = tmp_path / "out"
    assert run(["export", str(inside), "--format", format, "-o", str(out)], debug=False) == 0
    assert json.loads((out / "about.json").read_text())["added_layers"] == [INSIDE]


NECK = {**PLAIN, "inputs": 512}


@pytest.mark.parametrize("layers", [[INSIDE], [NECK, INSIDE]], ids=["inside", "both"])
def test_an_ensemble_of_networks_with_layers_inside_answers_with_their_mean(
    layers: list[dict[str, Any]], tmp_path: Path
):
    members = [small_with(*layers), small_with(*layers)]
    for number, member in enumerate(members):
        torch.manual_seed(number)
        torch.nn.init.normal_(member.head.weight)
        torch.nn.init.normal_(member.encoder.conv1.weight)
    model = ensemble(members).eval()
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    expected = sum(member.eval()(images).softmax(1) for member in members) / 2
    torch.testing.assert_close(model(images).softmax(1), expected)
    copies = ensemble([copy.deepcopy(member).train() for member in members]).eval()
    assert torch.equal(copies(images), model(images))  # the mode reaches the layers


def test_a_layer_with_weights_of_its_own_is_stored_and_forged_sizes_are_refused(tmp_path: Path):
    model = small_with(META).eval()
    save_model(tmp_path / "m", model, backbone="digits-cnn-half", image_size=32)
    loaded, description = load_stored(tmp_path / "m")
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    assert description["added_layers"] == [META]
    assert torch.equal(loaded.inside[0].atoms, model.inside[0].atoms)
    assert torch.equal(loaded(images), model(images))
    wrong: list[dict[str, Any]] = [
        {"atoms": 17}, {"atoms": 4096}, {"atoms": 4097}, {"atoms": 3}, {"addressed": 17},
        {"addressed": 0}, {"addressed": 257}, {"ridge": 0.0}, {"ridge": None}, {"threshold": 2.0},
        {"gradient": "os.system"}, {"gradient": None}, {"inputs": 16, "outputs": 16},
        {"outputs": 16}, {"place": "after conv2"}, {"p": 0.5},
    ]  # fmt: skip
    for change in wrong:
        edit(tmp_path / "m", {"added_layers": [{**META, **change}]})
        with pytest.raises(DamagedError):
            load_stored(tmp_path / "m")


def test_a_forged_dictionary_takes_no_memory_even_for_a_network_of_ones_own(tmp_path: Path):
    layer = {**META, "place": "after conv", "inputs": 4, "outputs": 4}
    model = tiny_classifier().with_layers([AddedLayer(**layer)])
    save_model(tmp_path / "m", model, backbone=OWN, image_size=12)
    edit(tmp_path / "m", {"added_layers": [{**layer, "atoms": 4000}]})
    with pytest.raises(DamagedError, match=r"has the shape \[16, 4\] where it needs \[4000, 4\]"):
        load_stored(tmp_path / "m", tiny_classifier())
