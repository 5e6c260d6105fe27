"""A test folder with missing, extra or renamed classes, matched by name through the model."""

import json
from pathlib import Path

import pytest

import peerdg
from peerdg.cli.main import run
from tests.cli.stored_models import save_photos, save_small_model

CLASSES = ("zebra", "cat", "horse", "dog")  # not in alphabetical order


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("stored") / "model", classes=CLASSES)


def by_hand(model: Path, folder: Path) -> tuple[int, int]:
    """Count correct predictions and images file by file, with the folder as the class."""
    loaded = peerdg.load_model(model)
    files = sorted(folder.rglob("*.png"))
    right = sum(loaded.predict(path).label == path.parent.name for path in files)
    return right, len(files)


def evaluated(model: Path, folder: Path, tmp_path: Path) -> dict:
    out = tmp_path / "result.json"
    assert run(["evaluate", str(model), str(folder), "--json", str(out)], debug=False) == 0
    (domain,) = json.loads(out.read_text())["domains"]
    return domain


def test_all_classes_in_another_order_than_the_folders(model: Path, tmp_path: Path):
    folder = save_photos(tmp_path / "photos", classes=sorted(CLASSES), per_class=6, seed=2)
    right, n = by_hand(model, folder)
    assert 0 < right < n
    report = evaluated(model, folder, tmp_path)
    assert (report["correct"], report["n"]) == (right, n)
    assert report["accuracy"] == 100 * right / n
    assert [c["name"] for c in report["classes"]] == list(CLASSES)


def test_missing_classes_are_allowed_and_shown(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = save_photos(tmp_path / "photos", classes=("dog", "zebra"), per_class=8, seed=4)
    right, n = by_hand(model, folder)
    report = evaluated(model, folder, tmp_path)
    assert (report["correct"], report["n"]) == (right, n)
    assert report["missing"] == ["cat", "horse"]
    counts = {c["name"]: (c["n"], c["accuracy"]) for c in report["classes"]}
    assert counts["cat"] == counts["horse"] == (0, None)
    known = [share for count, share in counts.values() if count]
    assert report["mean_class_accuracy"] == pytest.approx(sum(known) / 2)
    assert "No images of: cat, horse" in capsys.readouterr().out


def test_extra_classes_are_refused_with_the_nearest_names(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = save_photos(tmp_path / "photos", classes=("cat", "dogs", "Zebra", "violin"))
    assert run(["evaluate", str(model), str(folder)], debug=False) == 5
    output = capsys.readouterr()
    assert "'dogs' (did you mean 'dog'?)" in output.err
    assert "'Zebra' (did you mean 'zebra'?)" in output.err
    assert "'violin'" in output.err
    assert output.out == ""
