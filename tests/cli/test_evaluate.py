import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import peerdg
from peerdg.cli.main import run
from peerdg.data.folder import image_files
from tests.cli.stored_models import CLASSES, save_photos, save_small_model
from tests.report.test_pages import addresses, page_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("stored") / "model")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos") / "sketches", per_class=4)


def evaluate(*arguments: object) -> int:
    return run(["evaluate", *map(str, arguments)], debug=False)


def test_says_what_predict_says_about_each_file(model: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "result.json"
    assert evaluate(model, photos, "--json", out, "--worst", 100) == 0
    (found,) = json.loads(out.read_text())["domains"]
    predicted = {
        p.path.relative_to(photos).as_posix(): p
        for p in peerdg.load_model(model).predict_files(image_files(photos))
    }
    wrong = {name for name, p in predicted.items() if p.label != Path(name).parent.name}
    assert {mistake["path"] for mistake in found["worst"]} == wrong
    for mistake in found["worst"]:
        prediction = predicted[mistake["path"]]
        assert mistake["predicted"] == prediction.label
        assert mistake["probability"] == prediction.probability  # to the last bit
        assert mistake["true"] == Path(mistake["path"]).parent.name
    assert found["accuracy"] == 100 * (1 - len(wrong) / len(predicted))
    matrix = torch.tensor(found["confusion"])
    for name, prediction in predicted.items():
        true, answer = CLASSES.index(Path(name).parent.name), CLASSES.index(prediction.label)
        matrix[true, answer] -= 1
    assert not matrix.any()


def test_prints_every_number_a_person_asks_for(
    model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
):
    assert evaluate(model, photos) == 0
    said = capsys.readouterr().out
    for word in ("sketches", "accuracy %", "class mean %", "calibration error %", *CLASSES,
                 "most confused with", "true \\ predicted", "worst mistakes"):  # fmt: skip
        assert word in said


def test_the_page_has_a_matrix_and_the_images_of_the_mistakes(
    model: Path, photos: Path, tmp_path: Path
):
    file, record = tmp_path / "page.html", tmp_path / "result.json"
    assert evaluate(model, photos, "--report", file, "--json", record, "--worst", 8) == 0
    page = page_of(file)
    (found,) = json.loads(record.read_text())["domains"]
    captions = sum(tag == "figcaption" for tag, _ in page.elements)
    assert captions == len(found["worst"]) > 0
    assert "horse" in page.text and "sketches" in page.text


HOSTILE = ("<script>x</script>", "$\\frac{", "a|b", "[x](http://evil.example)", "\u202egnp", "😀")


def test_hostile_class_names_stay_text_in_the_report(tmp_path: Path):
    model = save_small_model(tmp_path / "model", classes=HOSTILE)
    table = tmp_path / "list.csv"
    lines = ["path,label"]
    for number, name in enumerate(HOSTILE):
        Image.new("RGB", (30, 20), (9 * number, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{name}")
    table.write_text("\n".join(lines), "utf-8")
    assert evaluate(model, table, "--report", tmp_path / "page.html") == 0
    page = page_of(tmp_path / "page.html")
    assert sum(tag == "script" for tag, _ in page.elements) == 3
    assert all(address.startswith("data:image/") for address in addresses(page))
    assert "\u202e" not in page.text and "<script>x</script>" in page.text


def test_bad_images_are_refused_unless_they_may_be_skipped(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = save_photos(tmp_path / "photos", per_class=2)
    (folder / "dog/0.png").write_bytes(b"no image")
    assert evaluate(model, folder) == 5
    assert "dog/0.png" in capsys.readouterr().err
    assert evaluate(model, folder, "--skip-bad-images") == 0
    said = capsys.readouterr().out
    assert "1 files" in said


def test_options_of_named_data_sets_do_not_go_with_folders(model: Path, photos: Path):
    assert evaluate(model, photos, "--root", "x") == 2
    assert evaluate(model) == 2  # a model folder has no data of its own
    assert evaluate(model, "no-such-folder") == 5
