"""Folders for the Hugging Face Hub: loaded by timm without peerdg, and as their cards say."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import peerdg
from peerdg.cli.main import run
from peerdg.errors import OutputError
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.stored import save_model
from tests.cli.stored_models import CLASSES
from tests.conftest import import_timm, tiny_classifier, tiny_splits
from tests.reliability.processes import environment

pytestmark = pytest.mark.runs

TRAINING: dict[str, Any] = {
    "data": "own-data", "source": "photos", "images": {"train": 5}, "fingerprint": "f",
    "method": "peer", "weights": "none", "budget": "quick", "seed": 0, "settings": {},
    "selection": "last", "calibration": None,
    "accuracy": {
        "validation": {"accuracy": 90.0, "n": 10},
        "crafted:blur": {"accuracy": 60.0, "n": 10},
        'evil: "]}\n# x': {"accuracy": 50.0, "n": 2},
    },
}  # fmt: skip


def stored(folder: Path, backbone: str, size: int, **training: Any) -> Classifier:
    torch.manual_seed(0)
    options = {} if backbone.startswith("timm:") else {"mean": (0.5,) * 3, "std": (0.2,) * 3}
    model = build_classifier(backbone, classes=CLASSES, **options).eval()
    torch.nn.init.normal_(model.head.weight)  # so that classes differ
    save_model(folder, model, backbone=backbone, image_size=size, training=TRAINING | training)
    return model


def exported(tmp_path: Path, backbone: str, size: int, **training: Any) -> tuple[Path, Classifier]:
    model = stored(tmp_path / "model", backbone, size, **training)
    out = tmp_path / "hub"
    command = ["export", str(tmp_path / "model"), "--format", "hub", "-o", str(out)]
    assert run(command, debug=False) == 0
    assert {file.name for file in out.iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
    }
    return out, model


def photos(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)


TIMM = [
    "mobilenetv3_small_050",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "resnet18",
            "vit_tiny_patch16_224",
            "convnext_atto",
            "swin_tiny_patch4_window7_224",
        )
    ),
]


@pytest.mark.parametrize("name", TIMM)
def test_timm_loads_the_folder_with_classes_and_normalization(name: str, tmp_path: Path):
    timm = import_timm()
    out, model = exported(tmp_path, f"timm:{name}", 224)
    network = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    images = photos(224)
    options = timm.data.resolve_model_data_config(network)
    mean, std = (torch.tensor(options[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(network((images / 255 - mean) / std), model(images))
    assert network.pretrained_cfg["label_names"] == list(CLASSES)


def test_timm_prepares_an_image_as_peerdg_does(tmp_path: Path):
    timm = import_timm()
    out, _ = exported(tmp_path, "timm:mobilenetv3_small_050", 160)
    network = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
    photo = Image.linear_gradient("L").resize((300, 170)).convert("RGB")
    photo.save(tmp_path / "photo.png")
    with torch.no_grad():
        found = network(transform(photo)[None]).softmax(1)
    expected = peerdg.load_model(tmp_path / "model").probabilities(tmp_path / "photo.png")
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


# A CPU build of torch lacks the operators that torchvision's wheel for CUDA needs.
WITHOUT_PEERDG = """
import sys, torch
try:
    import torchvision
except RuntimeError:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import timm
net = timm.create_model("local-dir:" + sys.argv[1], pretrained=True).eval()
print(net(torch.zeros(1, 3, 224, 224)).tolist())
assert "peerdg" not in sys.modules
"""


def test_timm_loads_the_folder_without_peerdg(tmp_path: Path):
    import_timm()
    out, model = exported(tmp_path, "timm:mobilenetv3_small_050", 224)
    printed = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", WITHOUT_PEERDG, str(out)],
        capture_output=True, text=True, check=True, env=environment(),
    ).stdout  # fmt: skip
    with torch.no_grad():
        gray = model.mean.expand(1, 3, 224, 224)  # zero after normalization
        torch.testing.assert_close(
            torch.tensor(json.loads(printed)), model(gray), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize(("backbone", "size"), [("digits-cnn-half", 32), ("squeezenet1_1", 64)])
def test_the_card_of_another_network_has_code_that_loads_it(
    backbone: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, model = exported(tmp_path, backbone, size)
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    images, config = photos(size), json.loads((out / "config.json").read_text())
    scope: dict[str, Any] = {"images": images}
    monkeypatch.chdir(out)
    if config["library"] == "peerdg":
        call = code[code.index("peerdg.build_classifier(") : code.index(")\n") + 1]
        call = call.replace("\n#", "").replace("classes=...", f"classes={config['label_names']!r}")
        scope["net"] = eval(call, {"peerdg": peerdg})
        exec(code, scope)
        found = scope["net"](images)
    else:
        exec(code, scope)  # it makes images
        scope["images"] = images
        exec(code.splitlines()[-1], scope)
        found = scope["logits"]
    with torch.no_grad():
        torch.testing.assert_close(found, model(images), atol=1e-4, rtol=1e-4)


def metadata(card: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    front = re.match(r"---\n(.*?)\n---\n", card.read_text("utf-8"), re.DOTALL)
    return yaml.safe_load(front[1])


def test_the_metadata_names_the_library_and_all_accuracies(tmp_path: Path):
    out, _ = exported(tmp_path, "digits-cnn-half", 32)
    found = metadata(out / "README.md")
    assert (found["library_name"], found["pipeline_tag"]) == ("peerdg", "image-classification")
    (entry,) = found["model-index"]
    values = {each["dataset"]["name"]: each["metrics"][0]["value"] for each in entry["results"]}
    assert values.pop("validation") == 0.9
    assert values.pop("crafted:blur") == 0.6
    (hostile,) = values
    assert hostile.startswith("evil") and "\n" not in hostile
    assert len(load_file(out / "model.safetensors")) > 4


def test_the_hub_library_reads_the_card(tmp_path: Path):
    hub = pytest.importorskip("huggingface_hub")
    out, _ = exported(tmp_path, "digits-cnn-half", 32)
    results = hub.ModelCard.load(out / "README.md").data.eval_results
    assert {result.dataset_name for result in results} >= {"validation", "crafted:blur"}
    assert all(result.metric_type == "accuracy" for result in results)


def test_an_oracle_states_no_accuracies_in_its_metadata(tmp_path: Path):
    out, _ = exported(tmp_path, "digits-cnn-half", 32, oracle=True)
    assert "model-index" not in metadata(out / "README.md")


def test_a_network_of_ones_own_is_exported_and_a_full_folder_is_refused(tmp_path: Path):
    options = {"pretrain": {"epochs": 0}, "train": {"epochs": 1, "batch_size": 8}, "peer": {"k": 1}}
    own = peerdg.fit(tiny_splits(), out=tmp_path / "run", model=tiny_classifier(), **options)
    done = own.model.export(tmp_path / "hub", format="hub")
    assert metadata(tmp_path / "hub/README.md")["model-index"]
    assert done.path.name == "model.safetensors"
    with pytest.raises(OutputError):
        own.model.export(tmp_path / "hub", format="hub", overwrite=True)
