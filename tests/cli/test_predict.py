import csv
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
from peerdg.data.benchmarks import OwnDataSettings
from peerdg.data.folder import image_files
from peerdg.data.own_data import read_targets
from peerdg.errors import ConfigError
from peerdg.evaluate.predictions import most_probable, predict_batch
from peerdg.report.predictions import (
    partial_path,
    prediction_file,
)
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
    expected = predict_batch(loaded.classifier, domain.images, size=loaded.image_size)
    streamed = list(loaded.predict_files(image_files(photos)))
    assert [str(p.path.relative_to(photos)) for p in streamed] == list(domain.paths or ())
    assert torch.equal(torch.stack([p.probabilities for p in streamed]), expected.probabilities)
    assert torch.equal(loaded.probabilities(image_files(photos)), expected.probabilities)
    labels = [loaded.classes[label] for label in expected.labels]
    assert [p.label for p in streamed] == labels
    assert [p.label for p in loaded.predict(list(image_files(photos)))] == labels


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
    said = capsys.readouterr().err.replace("\n", "")
    assert f"5 predictions in {out}" in said and "2 of 7 images cannot be used" in said
    arguments = ["predict", str(model), str(with_bad), "-o", str(out), "--strict"]
    assert run(arguments, debug=False) == 5
    assert len(read_rows(out)) == 7


def test_many_bad_files_in_a_row_do_not_hold_back_what_follows(tmp_path: Path, model: Path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"")
    good = tmp_path / "good.png"
    Image.new("RGB", (50, 20), "red").save(good)
    paths = [bad] * 1500 + [good] + [bad] * 10
    found = list(peerdg.load_model(model).predict_files(paths))
    assert [p.path for p in found] == paths
    assert [p.error is None for p in found] == [path is good for path in paths]


def test_a_json_file_is_one_list_of_the_same_records(tmp_path: Path, model: Path, with_bad: Path):
    whole, lines = tmp_path / "found.json", tmp_path / "found.JSONL"
    for out in (whole, lines):
        assert (
            run(["predict", str(model), str(with_bad), "-o", str(out), "--all"], debug=False) == 0
        )
    found = json.loads(whole.read_text())
    assert found == [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(found) == 7
    assert [record["label"] is None for record in found].count(True) == 2


def test_the_json_list_of_a_stopped_command_is_closed(tmp_path: Path, model: Path, photos: Path):
    out = tmp_path / "found.json"
    found = list(peerdg.load_model(model).predict_files(image_files(photos)))
    with pytest.raises(KeyboardInterrupt), prediction_file(out, CLASSES) as writer:
        for prediction in found[:4]:
            writer.write(prediction)
        raise KeyboardInterrupt
    assert not out.exists()
    rows = json.loads(partial_path(out).read_text())
    assert [row["label"] for row in rows] == [p.label for p in found[:4]]


@pytest.mark.parametrize("option", [("-o", "found.xlsx"), ("--top", "0"), ("--top", "1.5")])
def test_another_format_or_no_count_is_refused(
    option, tmp_path: Path, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert run(["predict", str(model), str(photos), *option], debug=False) == 2
    assert not list(tmp_path.iterdir())


def test_the_most_probable_classes_stand_in_falling_order(
    tmp_path: Path, model: Path, with_bad: Path
):
    table, whole = tmp_path / "found.csv", tmp_path / "found.json"
    for out in (table, whole):
        given = ["predict", str(model), str(with_bad), "-o", str(out), "--top", "2", "--all"]
        assert run(given, debug=False) == 0
    records = json.loads(whole.read_text())
    for row, record in zip(read_rows(table), records, strict=True):
        shares = record["probabilities"]
        expected = sorted(CLASSES, key=lambda name: -(shares[name] or 0))[:2]
        if row["error"]:
            assert row["label"] == row["label_2"] == row["probability_2"] == ""
            assert record["top"] == []
            continue
        assert [row["label"], row["label_2"]] == expected
        assert [float(row["probability"]), float(row["probability_2"])] == [
            shares[name] for name in expected
        ]
        assert record["top"] == [{"label": name, "probability": shares[name]} for name in expected]
    assert list(read_rows(table)[0])[:6] == ["path", "label", "probability", "label_2",
                                             "probability_2", "p(cat)"]  # fmt: skip


def test_the_answer_comes_first_among_equally_probable_classes():
    equal = torch.tensor([0.2, 0.3, 0.3, 0.2])
    assert most_probable(equal, 2, 4) == [2, 1, 0, 3]
    assert most_probable(equal, 1, 3) == [1, 2, 0]


def test_python_gives_the_same_most_probable_classes(model: Path, photos: Path):
    loaded = peerdg.load_model(model)
    paths = list(image_files(photos))
    rows = loaded.probabilities(paths)
    for top in (1, 2, 9):
        found = loaded.predict(paths, top=top)
        for ranked, row in zip(found, rows, strict=True):
            values, order = row.sort(descending=True)
            assert [p.label for p in ranked] == [CLASSES[index] for index in order[:top]]
            assert [p.probability for p in ranked] == values[:top].tolist()
    one = loaded.predict(paths[0], top=2)
    assert [p.label for p in one] == [p.label for p in loaded.predict(paths, top=2)[0]]
    assert loaded.predict(paths[0]) == loaded.predict(paths[0], top=1)[0]
    for top in (0, True, 1.5):
        with pytest.raises(ConfigError, match="at least 1"):
            loaded.predict(paths, top=top)


def test_a_model_says_in_a_line_what_it_is(model: Path, tmp_path: Path):
    assert repr(peerdg.load_model(model)) == (
        "Model(digits-cnn-half, 3 classes (cat, dog, horse), 32 px, cpu)"
    )
    many = save_small_model(tmp_path / "many", classes=[f"c\n{n}" for n in range(40)])
    shown = repr(peerdg.load_model(many))
    assert "40 classes (c\\n0, " in shown and "..." in shown
    assert len(shown.splitlines()) == 1


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
    assert all(row["label"] in classes for row in rows)
    names = {row["path"].rpartition("/")[2] for row in rows}
    assert names == {"=1.png", "a\nb.png", 'q"uote.png', "plain.png"}


MEASURE = """
import resource, sys
from pathlib import Path
import torch
import peerdg
torch.set_num_threads(1)
model = peerdg.load_model(sys.argv[1])
image = Path(sys.argv[2])
peaks = []
for count in (300, 900):
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
        [sys.executable, "-I", "-c", MEASURE, str(folder), str(image)],
        capture_output=True, text=True, env=environment(), check=True,
    )  # fmt: skip
    all_pixels = (900 - 300) * 3 * side * side  # 66 MB, if they were kept
    assert int(result.stdout) < all_pixels / 4


def test_ctrl_c_keeps_the_rows_written_so_far(tmp_path: Path, model: Path):
    images = tmp_path / "images"
    images.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(images / "0.png", compress_level=0)
    for number in range(1, 4_000):
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
    try:
        while not (partial.exists() and partial.stat().st_size > 10_000):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert str(partial) in said.replace("\n", "")
    assert not out.exists()
    rows = read_rows(partial)
    assert f"{len(rows):,} of 4,000" in said
    assert all(row["label"] in CLASSES and row["error"] == "" for row in rows)
