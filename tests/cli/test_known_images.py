"""An evaluation on images that the run was trained on says so."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
from PIL import Image

import peerdg
from peerdg.cli.main import run as command
from peerdg.errors import PeerdgWarning
from tests.cli.stored_models import save_photos
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.photo_run import photo_run

CLASSES = ("cat", "dog", "horse")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 photos, of which one is held out."""
    return photo_run(tmp_path_factory.mktemp("seen"))


@pytest.fixture(scope="module")
def photos(run: Path) -> Path:
    return run.parent / "photos"


@pytest.fixture(scope="module")
def trained(run: Path) -> set[str]:
    return set(json.loads((run / "files.json").read_text())["files"]["train"])


def evaluate(run: Path, data: Path, out: Path, *options: str) -> dict:
    arguments = ["evaluate", str(run), str(data), "--json", str(out / "r.json"), *options]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", PeerdgWarning)
        assert command(arguments, debug=False) == 0
    (result,) = json.loads((out / "r.json").read_text())["domains"]
    result["warnings"] = [str(w.message) for w in warned]
    return result


def test_the_training_folder_is_recognized(run: Path, photos: Path, tmp_path: Path):
    found = evaluate(run, photos, tmp_path)
    assert (found["n"], found["trained_on"], found["validated_on"]) == (9, 8, 1)
    (warning,) = found["warnings"]
    assert "'photos': 8 of 9 images were trained on, 1 used for validation" in warning


def test_other_names_and_lossless_formats_do_not_hide_an_image(
    run: Path, photos: Path, trained: set[str], tmp_path: Path
):
    """Each class: its first photo as another file, and one that nobody has seen."""
    new = save_photos(tmp_path / "new", per_class=1, seed=9)
    for name in CLASSES:
        (tmp_path / "mixed" / name).mkdir(parents=True)
        with Image.open(photos / name / "0.png") as picture:
            picture.save(tmp_path / "mixed" / name / "other.bmp")
        shutil.copy(new / name / "0.png", tmp_path / "mixed" / name / "0.png")
    found = evaluate(run, tmp_path / "mixed", tmp_path)
    expected = sum(f"{name}/0.png" in trained for name in CLASSES)
    assert expected >= 2
    assert (found["n"], found["trained_on"], found["validated_on"]) == (6, expected, 3 - expected)


def test_images_that_nobody_has_seen_give_no_warning(run: Path, tmp_path: Path):
    new = save_photos(tmp_path / "new", seed=9)
    found = evaluate(run, new, tmp_path)
    assert (found["trained_on"], found["validated_on"], found["warnings"]) == (0, 0, [])


def test_a_model_folder_alone_does_not_know(run: Path, photos: Path, tmp_path: Path):
    shutil.copytree(run / "model", tmp_path / "copy")
    found = evaluate(tmp_path / "copy", photos, tmp_path)
    assert (found["trained_on"], found["validated_on"], found["warnings"]) == (None, None, [])


def test_a_damaged_record_is_refused(run: Path, photos: Path, tmp_path: Path):
    shutil.copytree(run, tmp_path / "bad")
    for content in ("{", '{"format": 1, "pixels": {}}', '{"format": 2}', "[]"):
        (tmp_path / "bad/files.json").write_text(content)
        assert command(["evaluate", str(tmp_path / "bad"), str(photos)], debug=False) == 7


def test_data_in_memory_is_recognized_too(tmp_path: Path):
    splits = tiny_splits()
    run = peerdg.fit(
        splits, out=tmp_path / "run", model=tiny_classifier(), method="erm", crafted="off",
        pretrain={"epochs": 0}, train={"epochs": 1, "batch_size": 8},
    )  # fmt: skip
    message = "images were trained on"
    with pytest.warns(PeerdgWarning, match=message):
        run.model.evaluate(splits.train)
    for model in (run.model, peerdg.load_model(run.path, network=tiny_classifier())):
        with pytest.warns(PeerdgWarning, match=message):
            assert model.evaluate_in_detail(splits.train).overlap.trained == 24
        for target in splits.targets.values():
            assert model.evaluate_in_detail(target).overlap.trained == 0
        assert model.evaluate_in_detail(splits.validation).overlap.validated == 9


def test_a_renewed_run_forgets_the_images_of_the_old_one(run: Path, tmp_path: Path):
    out = Path(shutil.copytree(run, tmp_path / "run"))
    new = save_photos(tmp_path / "photos", seed=5)
    options = ["--backbone", "digits-cnn-half", "--weights", "none", "--transform.size", "32",
               "--epochs", "1", "--pretrain.epochs", "0", "--peer.k", "1", "--quiet"]  # fmt: skip
    assert (
        command(["train", str(new), "--out", str(out), "--overwrite", *options], debug=False) == 0
    )
    assert evaluate(out, new, tmp_path)["trained_on"] == 8
    assert evaluate(out, run.parent / "photos", tmp_path)["trained_on"] == 0
