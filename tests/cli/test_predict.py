import csv
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import peerdg
from peerdg.cli.main import run
from peerdg.data.benchmarks.own_data import read_targets
from peerdg.data.settings import OwnDataSettings
from peerdg.data.walk import image_files
from peerdg.evaluate.predictions import answer
from peerdg.report.prediction_file import csv_line
from tests.cli.stored_models import CLASSES, save_photos, save_small_model
from tests.reliability.processes import environment
from tests.reliability.processes import peerdg as command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("stored") / "model")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos") / "all")


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_file_gets_the_bits_that_the_evaluation_of_its_folder_gives(model: Path, photos: Path):
    loaded = peerdg.load_model(model)
    settings = OwnDataSettings(size=loaded.stored_size)
    domain = read_targets([str(photos)], classes=loaded.classes, settings=settings)["all"]
    expected = answer(loaded.classifier, domain.images, size=loaded.image_size)
    streamed = list(loaded.predict_files(image_files(photos)))
    assert [str(p.path.relative_to(photos)) for p in streamed] == list(domain.paths or ())
    assert torch.equal(torch.stack([p.probabilities for p in streamed]), expected.probabilities)
    assert torch.equal(loaded.probabilities(image_files(photos)), expected.probabilities)
    labels = [loaded.classes[label] for label in expected.labels]
    assert [p.label for p in streamed] == labels
    assert [p.label for p in loaded.predict(list(image_files(photos)))] == labels


def test_the_stored_size_is_part_of_the_rule(tmp_path: Path, photos: Path, model: Path):
    other = save_small_model(tmp_path / "other", stored_size=90)
    paths = list(image_files(photos))
    rows = [peerdg.load_model(place).probabilities(paths) for place in (model, other)]
    assert not torch.equal(*rows)


def test_a_model_saved_before_there_was_a_stored_size_still_loads(tmp_path: Path):
    folder = save_small_model(tmp_path / "model", stored_size=32)
    described = json.loads((folder / "model.json").read_text())
    from peerdg.models.stored import _checksum

    for name in ("stored_size", "training", "sha256"):
        del described[name]
    described["sha256"] = _checksum(described)
    (folder / "model.json").write_text(json.dumps(described))
    assert peerdg.load_model(folder).stored_size == 32


def test_writes_path_label_and_probability_in_the_order_of_the_folder(
    tmp_path: Path, model: Path, photos: Path
):
    out = tmp_path / "deep/found.csv"
    assert run(["predict", str(model), str(photos), "-o", str(out)], debug=False) == 0
    rows = read_rows(out)
    expected = list(peerdg.load_model(model).predict_files(image_files(photos)))
    assert list(rows[0]) == ["path", "label", "probability", "error"]
    assert [row["path"] for row in rows] == [str(p.path) for p in expected]
    assert [row["label"] for row in rows] == [p.label for p in expected]
    for row, prediction in zip(rows, expected, strict=True):
        assert float(row["probability"]) == pytest.approx(prediction.probability, abs=1e-6)
    assert list(out.parent.iterdir()) == [out]


def test_all_classes_have_a_column_each_and_sum_to_one(tmp_path: Path, model: Path, photos: Path):
    out = tmp_path / "found.csv"
    assert run(["predict", str(model), str(photos), "-o", str(out), "--all"], debug=False) == 0
    for row in read_rows(out):
        shares = {name: float(row[f"p({name})"]) for name in CLASSES}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert max(shares, key=shares.__getitem__) == row["label"]


def test_json_lines_say_the_same(tmp_path: Path, model: Path, photos: Path):
    table, lines = tmp_path / "found.csv", tmp_path / "found.jsonl"
    for out in (table, lines):
        assert run(["predict", str(model), str(photos), "-o", str(out), "--all"], debug=False) == 0
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    for row, record in zip(read_rows(table), records, strict=True):
        assert (row["path"], row["label"]) == (record["path"], record["label"])
        assert float(row["probability"]) == record["probability"]
        assert record["probabilities"][record["label"]] == record["probability"]
        assert record["error"] is None


@pytest.fixture
def with_bad(tmp_path: Path) -> Path:
    folder = save_photos(tmp_path / "mixed", per_class=2)
    (folder / "cat/0a.png").write_bytes(b"not an image")
    (folder / "dog/1.png").write_bytes((folder / "dog/1.png").read_bytes()[:200])
    return folder


def test_bad_images_become_rows_with_the_reason_and_are_counted(
    tmp_path: Path, model: Path, with_bad: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "found.csv"
    assert run(["predict", str(model), str(with_bad), "-o", str(out), "--all"], debug=False) == 0
    rows = {Path(row["path"]).relative_to(with_bad).as_posix(): row for row in read_rows(out)}
    assert list(rows) == ["cat/0.png", "cat/0a.png", "cat/1.png", "dog/0.png", "dog/1.png",
                          "horse/0.png", "horse/1.png"]  # fmt: skip
    bad = {name: row["error"] for name, row in rows.items() if row["error"]}
    assert list(bad) == ["cat/0a.png", "dog/1.png"]
    assert "known format" in bad["cat/0a.png"]
    assert rows["dog/1.png"]["label"] == rows["dog/1.png"]["p(cat)"] == ""
    assert "2 of 7 images cannot be used" in capsys.readouterr().err


def test_strict_ends_with_code_5_but_writes_all_rows(tmp_path: Path, model: Path, with_bad: Path):
    out = tmp_path / "found.csv"
    arguments = ["predict", str(model), str(with_bad), "-o", str(out), "--strict"]
    assert run(arguments, debug=False) == 5
    assert len(read_rows(out)) == 7


def test_the_good_images_do_not_suffer_from_bad_neighbours(model: Path, with_bad: Path):
    loaded = peerdg.load_model(model)
    mixed = [p for p in loaded.predict_files(image_files(with_bad)) if p.error is None]
    alone = list(loaded.predict_files([p.path for p in mixed]))
    for one, other in zip(mixed, alone, strict=True):
        assert torch.equal(one.probabilities, other.probabilities)


def test_many_bad_files_in_a_row_do_not_hold_back_what_follows(tmp_path: Path, model: Path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"")
    good = tmp_path / "good.png"
    Image.new("RGB", (50, 20), "red").save(good)
    paths = [bad] * 1500 + [good] + [bad] * 10
    found = list(peerdg.load_model(model).predict_files(paths))
    assert [p.path for p in found] == paths
    assert [p.error is None for p in found] == [path is good for path in paths]


HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", '="x"', "\n=1"]


@pytest.mark.parametrize("cell", HOSTILE)
def test_no_cell_is_a_formula_for_a_spreadsheet(cell: str):
    (read,) = csv.reader(io.StringIO(csv_line([cell, "plain"]), newline=""))
    assert read[0][0] == "'"
    assert read[1] == "plain"


def test_hostile_names_of_files_and_classes_stay_data(tmp_path: Path):
    classes = ('=HYPERLINK("x")', "a,b\nc", "@dog")
    folder = save_small_model(tmp_path / "model", classes=classes)
    images = tmp_path / "images"
    images.mkdir()
    for name in ("=1.png", "a\nb.png", 'q"uote.png', "plain.png"):
        Image.new("RGB", (9, 9)).save(images / name)
    out = tmp_path / "found.csv"
    assert run(["predict", str(folder), str(images), "-o", str(out), "--all"], debug=False) == 0
    rows = read_rows(out)
    assert len(rows) == 4
    for row in rows:
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in (*row, *row.values()))
        assert row["label"].removeprefix("'") in classes
    names = {row["path"].rpartition("/")[2] for row in rows}
    assert names == {"=1.png", "a\nb.png", 'q"uote.png', "plain.png"}


def test_a_relative_path_that_looks_like_a_formula_is_quoted(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (9, 9)).save("=1.png")
    assert run(["predict", str(model), "=1.png", "-o", "found.csv"], debug=False) == 0
    assert read_rows(Path("found.csv"))[0]["path"] == "'=1.png"


def test_hidden_files_other_types_and_links_to_folders_are_passed_over(tmp_path: Path):
    folder = save_photos(tmp_path / "photos", per_class=1)
    (folder / ".hidden").mkdir()
    for name in (".hidden/x.png", "._cat.png", "notes.txt"):
        (folder / name).write_bytes(b"")
    (folder / "loop").symlink_to(folder)
    found = [path.relative_to(folder).as_posix() for path in image_files(folder)]
    assert found == ["cat/0.png", "dog/0.png", "horse/0.png"]


MEASURE = """
import resource, sys
from pathlib import Path
import torch
import peerdg
torch.set_num_threads(1)
model = peerdg.load_model(sys.argv[1])
image = Path(sys.argv[2])
peaks = []
for count in (600, 1800):
    for found in model.predict_files(image for _ in range(count)):
        assert found.error is None
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print((peaks[1] - peaks[0]) * 1024)
"""


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path):
    side = 192
    folder = save_small_model(tmp_path / "model", stored_size=side)
    image = tmp_path / "image.png"
    Image.new("RGB", (8, 8), "green").save(image)
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), str(image)],
        capture_output=True, text=True, env=environment(), check=True,
    )  # fmt: skip
    all_pixels = (1800 - 600) * 3 * side * side  # 133 MB, if they were kept
    assert int(result.stdout) < all_pixels / 4


def test_ctrl_c_keeps_the_rows_written_so_far(tmp_path: Path, model: Path):
    images = tmp_path / "images"
    images.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(images / "0.png", compress_level=0)
    for number in range(1, 8_000):
        (images / f"{number}.png").hardlink_to(images / "0.png")
    out = tmp_path / "found.csv"
    process = subprocess.Popen(
        command("predict", model, images, "-o", out),
        stderr=subprocess.PIPE, text=True, env=environment(),
        # A shell that runs the tests in the background has told them to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    partial = out.with_name("found.csv.partial")
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size > 20_000):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert str(partial) in said.replace("\n", "")
    assert not out.exists()
    rows = read_rows(partial)
    assert f"{len(rows):,} of 8,000" in said
    assert all(row["label"] in CLASSES and row["error"] == "" for row in rows)
