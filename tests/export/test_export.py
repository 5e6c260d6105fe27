"""Every format: written, run the way a user would, and compared with the original."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peerdg.cli.main import run
from peerdg.errors import ConfigError, OutputError
from peerdg.export import export as exporting
from peerdg.export import require_packages
from peerdg.export.export import TOLERANCE, export_model, require_same_answers, sample_images
from peerdg.model import Model
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.names import BACKBONES
from tests.cli.stored_models import CLASSES, save_small_model
from tests.conftest import tiny_classifier
from tests.reliability.processes import environment

SLOW = [pytest.param(name, marks=pytest.mark.slow)
        for name in ("squeezenet1_1", "alexnet", "caffenet", "resnet18", "resnet50", "vit_b_16",
                     "regnet_y_16gf")]  # fmt: skip


def description(model: Classifier, backbone: str, size: int) -> dict[str, object]:
    return {
        "backbone": backbone,
        "classes": list(model.classes),
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "image_size": size,
        "stored_size": size + 3,
    }


def random_model(backbone: str) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = {} if BACKBONES[backbone].normalization else {"mean": (0.5,) * 3, "std": (0.2,) * 3}
        model = build_classifier(backbone, classes=CLASSES, **own)
        norms = [part for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d)]
        if norms:
            # Statistics of images, as after a training; without them a deep network multiplies
            # its own rounding until nothing else is left.
            for part in norms:
                part.momentum = 1.0
            with torch.no_grad():
                model.train()(torch.cat([*sample_images(BACKBONES[backbone].image_size)]))
    return model.eval()


def photos(size: int, n: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (n, 3, size, size), generator=random, dtype=torch.uint8)


@pytest.mark.parametrize("backbone", ["digits-cnn-half", *SLOW])
def test_onnx_answers_as_pytorch_does(backbone: str, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, size = random_model(backbone), BACKBONES[backbone].image_size
    about = description(model, backbone, size)
    path = tmp_path / "model.onnx"
    done = export_model(model, about, path, format="onnx")
    assert done.difference <= TOLERANCE
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for n in (1, 3):
        with torch.no_grad():
            expected = model(photos(size, n)).numpy()
        found = session.run(None, {"images": photos(size, n).numpy()})[0]
        assert np.abs(found - expected).max() <= 1e-4
        assert np.abs(expected[:, 0] - expected[:, 1]).max() > 1e-3  # there is something to compare
    (images,) = session.get_inputs()
    assert images.type == "tensor(uint8)"
    assert images.shape == ["batch", 3, size, size]
    stored = session.get_modelmeta().custom_metadata_map
    assert json.loads(stored["classes"]) == list(CLASSES)
    assert json.loads(stored["image_size"]) == size


@pytest.mark.parametrize(
    "backbone",
    ["digits-cnn-half", "squeezenet1_1", pytest.param("resnet18", marks=pytest.mark.slow)],
)
def test_weights_load_into_the_library_that_the_network_comes_from(backbone: str, tmp_path: Path):
    model, size = random_model(backbone), BACKBONES[backbone].image_size
    done = export_model(
        model, description(model, backbone, size), tmp_path / "out", format="safetensors"
    )
    about = json.loads((tmp_path / "out/about.json").read_text())
    images = photos(size, 2)
    with torch.no_grad():
        expected = model(images)
    if backbone == "digits-cnn-half":
        network = build_classifier(backbone, classes=CLASSES, mean=about["mean"], std=about["std"])
        network.load_state_dict(load_file(done.path))
        found = network.eval()(images)
    else:
        from peerdg import _vision

        names = {"torchvision": type("m", (), {"models": _vision.models}), "torch": torch}
        code = "\n".join(about["network"])
        exec(code, names)  # what the description tells the user to write
        network = names["net"]
        network.load_state_dict(load_file(done.path))
        mean, std = (torch.tensor(about[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
        found = network.eval()((images / 255 - mean) / std)
    assert (found - expected).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("format", "backbone", "inside"),
    [
        ("onnx", "digits-cnn-half", True),
        ("torch-export", "digits-cnn-half", True),
        ("safetensors", "digits-cnn-half", True),
        ("safetensors", "squeezenet1_1", False),
    ],
)
def test_the_card_has_code_that_runs_and_says_where_the_normalization_is(
    format: str, backbone: str, inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other tests show that images go in as the card says here."""
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    model, size = random_model(backbone), BACKBONES[backbone].image_size
    export_model(model, description(model, backbone, size), tmp_path / "out", format=format)
    about = json.loads((tmp_path / "out/about.json").read_text())
    card = (tmp_path / "out/MODEL_CARD.md").read_text()
    constants = "0.5, 0.5, 0.5" if backbone == "digits-cnn-half" else "0.485, 0.456, 0.406"
    assert constants in card
    if format in ("onnx", "torch-export"):
        monkeypatch.chdir(tmp_path / "out")
        exec(card.split("```python\n")[1].split("```")[0], scope := {})
        assert scope["logits"].shape == (1, len(CLASSES))
    assert ("Normalization is inside the model" in card) == inside
    assert ("give it (value / 255 - mean) / std" in card) == (not inside)
    assert about["normalization"] == ("inside the model" if inside else "to be done before")
    assert about["input"].startswith("uint8") == inside


def test_the_lines_that_load_weights_of_peerdg_name_their_normalization(tmp_path: Path):
    """Without it the same weights would see images of another scale, and say nothing."""
    model = random_model("digits-cnn-half")
    about = description(model, "digits-cnn-half", 32)
    export_model(model, about, tmp_path / "out", format="safetensors")
    lines = (tmp_path / "out/MODEL_CARD.md").read_text().split("```python\n")[1].split("```")[0]
    call = lines[lines.index("peerdg.build_classifier(") : lines.index(")\n") + 1]
    call = call.replace("\n#", "").replace("classes=...", f"classes={CLASSES!r}")
    import peerdg

    network = eval(call, {"peerdg": peerdg})  # what the card tells the user to write
    network.load_state_dict(load_file(tmp_path / "out/weights.safetensors"))
    with torch.no_grad():
        assert torch.equal(network.eval()(photos(32, 2)), model(photos(32, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["alexnet", "caffenet", "resnet50", "vit_b_16",
                                      "regnet_y_16gf"])  # fmt: skip
@pytest.mark.parametrize("format", ["torch-export", "safetensors"])
def test_every_backbone_goes_into_every_format(backbone: str, format: str, tmp_path: Path):
    model, size = random_model(backbone), BACKBONES[backbone].image_size
    about = description(model, backbone, size)
    assert export_model(model, about, tmp_path / "out", format=format).difference <= TOLERANCE


def test_a_program_runs_without_peerdg(tmp_path: Path):
    model = random_model("digits-cnn-half")
    done = export_model(
        model, description(model, "digits-cnn-half", 32), tmp_path / "out", format="torch-export"
    )
    images = photos(32, 4)
    code = (
        "import sys, torch\n"
        "net = torch.export.load(sys.argv[1]).module()\n"
        "random = torch.Generator().manual_seed(7)\n"
        "images = torch.randint(0, 256, (4, 3, 32, 32), generator=random, dtype=torch.uint8)\n"
        "print(net(images).tolist())\n"
        "assert 'peerdg' not in sys.modules\n"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", code, str(done.path)],
        capture_output=True, text=True, check=True, env=environment(),
    ).stdout  # fmt: skip
    with torch.no_grad():
        expected = model(images)
    assert (torch.tensor(json.loads(said)) - expected).abs().max() <= 1e-4


def test_a_network_of_ones_own_is_exported_from_python(tmp_path: Path):
    own = Model(tiny_classifier(), 12)
    for format in ("torch-export", "safetensors"):
        done = own.export(tmp_path / format, format=format)
        assert done.difference <= TOLERANCE
        assert all(path.is_file() for path in done.files)


def test_an_export_that_answers_differently_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = tiny_classifier()
    honest = exporting.write_weights

    def wrong(*arguments, **options):
        answers = honest(*arguments, **options)
        return lambda images: answers(images) + 2e-4

    monkeypatch.setattr(exporting, "write_weights", wrong)
    about = description(model, "own", 12)
    for output in (tmp_path / "out", tmp_path / "w.safetensors"):
        with pytest.raises(OutputError, match=r"differ from the original by 0\.0002"):
            export_model(model, about, output, format="safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [float("nan"), 1e-3])
def test_the_check_sees_small_differences_and_what_is_no_number(answer: float):
    model = tiny_classifier().eval()
    with pytest.raises(OutputError):
        require_same_answers(model, lambda images: model(images) + answer, size=12)
    with pytest.raises(OutputError, match="differ from"):
        require_same_answers(model, lambda images: model(images)[:1], size=12)
    assert require_same_answers(model, model, size=12) == 0


def test_the_check_uses_different_images_and_batch_sizes():
    batches = list(sample_images(16))
    assert len({len(batch) for batch in batches}) > 1
    flat = torch.cat(batches).flatten(1).float()
    assert len(flat.unique(dim=0)) == len(flat)
    assert flat.min() == 0
    assert flat.max() == 255


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path):
    model = tiny_classifier()
    about = description(model, "own", 12)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious.txt").write_text("keep")
    with pytest.raises(OutputError, match="not empty"):
        export_model(model, about, tmp_path / "full", format="safetensors", overwrite=True)
    assert (tmp_path / "full/precious.txt").read_text() == "keep"
    file = tmp_path / "w.safetensors"
    file.write_text("old")
    with pytest.raises(OutputError, match="already exists"):
        export_model(model, about, file, format="safetensors")
    assert file.read_text() == "old"
    export_model(model, about, file, format="safetensors", overwrite=True)
    assert load_file(file)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"full", "w.safetensors", "w.json", "w.MODEL_CARD.md"}


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("peerdg.export.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs onnx, onnxscript, onnxruntime") as caught:
        require_packages("onnx")
    assert "peerdg[onnx]" in caught.value.hint
    folder = save_small_model(tmp_path / "model")
    assert run(["export", str(folder), "--format", "onnx"], debug=False) == 2


def test_export_leaves_the_model_as_it_was(tmp_path: Path):
    model = random_model("digits-cnn-half").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    about = description(model, "digits-cnn-half", 32)
    export_model(model, about, tmp_path / "out", format="torch-export")
    assert model.training
    assert model.encoder.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
