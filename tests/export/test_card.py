import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.run.model import CARD, model_card
from tests.cli.stored_models import CLASSES, save_small_model
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits
from tests.reliability.processes import environment

SHORT = {
    "pretrain": {"epochs": 1, "batch_size": 8},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "peer": {"k": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("runs") / "one"
    return peerdg.fit(tiny_splits(), out=out, model=tiny_classifier(), seed=3, **SHORT)


def test_a_run_leaves_a_card_with_its_own_numbers(run):
    card = (run.path / "model" / CARD).read_text()
    for domain, accuracy in run.accuracy["task"].items():
        assert f"| {domain} | {accuracy:.1f} (" in card
    facts = ["| method | peer |", "| seed | 3 |", "| training images | 24 |", "a, b, c."]
    for fact in (*facts, tiny_splits().train.fingerprint, "| train.lr | 0.01 |"):
        assert fact in card
    validation = run.model.evaluate_in_detail(tiny_splits().validation)
    assert f"{100 * validation.calibration.error:.2f} %" in card
    assert "No training record" not in card and "No accuracy" not in card


def test_the_record_holds_no_path_of_the_machine(run):
    stored = (run.path / "model/model.json").read_text()
    assert str(run.path.parent) not in stored
    assert "/" not in "".join(map(str, json.loads(stored)["training"]["settings"].values()))


def test_the_stored_size_is_that_of_the_training_images(tmp_path: Path):
    images = torch.randint(0, 256, (16, 3, 40, 40), dtype=torch.uint8)
    source = peerdg.Domain("source", ("a", "b"), images, torch.arange(16) % 2)
    splits = peerdg.Splits(train=source, validation=None, targets={})
    done = peerdg.fit(
        splits, out=tmp_path / "run", backbone="digits-cnn-half", transform={"size": 32}, **SHORT
    )
    assert (done.model.image_size, done.model.stored_size) == (32, 40)
    assert "40 x 40" in (done.path / "model" / CARD).read_text()


HOSTILE = ("<script>", "[x](javascript:alert(1))", "a|b", "line\nbreak", "\u202egnp", "`code`",
           "# no heading", "https://evil.example", '"quote"')  # fmt: skip


def test_hostile_names_are_text_in_a_card(tmp_path: Path):
    folder = save_small_model(tmp_path / "model", classes=HOSTILE)
    described = json.loads((folder / "model.json").read_text())
    described["training"] = {
        "data": "own-data", "source": "<b>", "images": {"train": 5}, "fingerprint": "f|f",
        "method": "peer", "weights": "`rm`", "budget": "quick", "seed": 0,
        "settings": {"x|y": "<i>"}, "selection": "[a](http://b)",
        "accuracy": {"evil|\n# x": {"accuracy": 50.0, "n": 2}}, "calibration": None,
    }  # fmt: skip
    card = model_card(described)
    assert "<" not in card.replace("&lt;", "")
    assert "\u202e" not in card
    assert "://" not in card
    headings = [line for line in card.splitlines() if line.startswith("#")]
    assert [h.lstrip("# ").split(":")[0] for h in headings] == [
        "Model card", "Classes", "Training", "Accuracy", "Limits", "Use", "License",
    ]  # fmt: skip


LOAD = """
import sys
from pathlib import Path
import peerdg
model = peerdg.load_model(sys.argv[1])
found = model.predict(sys.argv[2])
print(found.label, repr(found.probability))
"""


def test_a_model_folder_alone_is_enough_on_another_machine(tmp_path: Path):
    """No run folder, no training data, no cache: only the folder, copied elsewhere."""
    domain = tiny_domain(n=16, classes=3)
    images = torch.nn.functional.interpolate(domain.images.float(), 40).to(torch.uint8)
    source = peerdg.Domain("source", CLASSES, images, domain.labels)
    splits = peerdg.Splits(train=source, validation=None, targets={})
    run = peerdg.fit(
        splits, out=tmp_path / "run", backbone="digits-cnn-half", transform={"size": 32}, **SHORT
    )
    photo = tmp_path / "photo.png"
    from PIL import Image

    Image.linear_gradient("L").resize((77, 51)).save(photo)
    expected = run.model.predict(photo)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run.path / "model", elsewhere)
    shutil.rmtree(run.path)
    said = subprocess.run(
        [sys.executable, "-c", LOAD, str(elsewhere), str(photo)], text=True, check=True,
        capture_output=True, cwd=tmp_path, env=environment(PEERDG_CACHE=str(tmp_path / "empty")),
    ).stdout.split()  # fmt: skip
    assert said == [expected.label, repr(expected.probability)]
    assert not (tmp_path / "empty").exists()
