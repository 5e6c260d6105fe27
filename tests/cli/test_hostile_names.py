"""Whatever files, classes, domains and folders are called, a terminal sees only text."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from peerdg.cli.main import run

NAMES = {
    "title": "a\x1b]0;owned\x07",
    "color": "b\x1b[31mred",
    "c1": "c\x9b2J",
    "return": "d\rINJECTED",
    "backspace": "e\b\b\b",
    "newline": "f\nINJECTED Error: no",
    "direction": "g\u202etxt",
    "markup": "[red]h[b]",
    "tab": "i\tj",
    "bytes": os.fsdecode(b"k\xff"),
}
BAD = "\x1b[2Jbroken\n  INJECTED\x07.png"


def photos(folder: Path, *, seed: int = 0, per_class: int = 4) -> Path:
    """A class and a file for each of the names; class names that are not text are refused."""
    draw = np.random.default_rng(seed)
    for name in (name for key, name in NAMES.items() if key != "bytes"):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}{name}.png")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile") / NAMES["title"] / NAMES["newline"]
    photos(place / "source")
    photos(place / "target\x1b[5m", seed=1)
    return place


@pytest.fixture(scope="module")
def trained(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    os.environ["PEERDG_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    out = place / "run\x1b]0;run\x07"
    assert run(train(place, out), debug=False) == 0
    return out


def train(place: Path, out: Path, *options: str) -> list[str]:
    return [
        "train", str(place / "source"), f"--target={place / 'target'}\x1b[5m", f"--out={out}",
        "--epochs=2", "--pretrain.epochs=1", "--peer.k=1", "--peer.head-dim=8",
        "--train.batch-size=4", "--pretrain.batch-size=4", "--threads=1", "--crafted=off",
        "--backbone=digits-cnn-half", "--weights=none", "--transform.size=32", *options,
    ]  # fmt: skip


def assert_clean(text: str) -> None:
    raw = {character for character in text if not character.isprintable()} - {"\n"}
    assert not raw, (raw, text)
    assert "\nINJECTED" not in text, text


def says(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 0) -> str:
    found = run(arguments, debug=False)
    captured = capsys.readouterr()
    assert_clean(captured.out)
    assert_clean(captured.err)
    assert found == code, captured.err
    return captured.out + captured.err


def test_train(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = says(capsys, train(place, tmp_path / "run"))
    assert r"\x1b[31mred" in said and "[red]h[b]" in said


def test_train_on_a_folder_with_a_broken_image(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(place / "source", tmp_path / "source")
    (tmp_path / "source" / NAMES["title"] / BAD).write_bytes(b"no image")
    said = says(capsys, ["train", str(tmp_path / "source"), f"--out={tmp_path / 'run'}"], code=5)
    assert "broken" in said
    said = says(capsys, ["data", "verify", str(tmp_path / "source")], code=5)
    assert r"\x1b[2Jbroken\n" in said or r"\x1b[2Jbroken" in said


def test_evaluate(trained: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = says(capsys, ["evaluate", str(trained)])
    assert r"\x1b[31mred" in said
    other = photos(tmp_path / NAMES["newline"], seed=2)
    says(capsys, ["evaluate", str(trained), str(other), f"--report={tmp_path / 'page.html'}"])


@pytest.mark.parametrize("on_terminal", [True, False])
def test_predict(
    trained: Path, place: Path, tmp_path: Path, on_terminal: bool,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    folder = tmp_path / "images"
    shutil.copytree(place / "source" / NAMES["title"], folder)
    (folder / BAD).write_bytes(b"no image")
    if on_terminal:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["predict", str(trained), str(folder), "--quiet"], debug=False) == 0
    captured = capsys.readouterr()
    assert_clean(captured.err)
    assert "cannot be used" in captured.err
    if on_terminal:
        assert_clean(captured.out)
        assert r"\x1b]0;owned" in captured.out
    else:  # data for a program: as it is
        assert "\x1b]0;owned" in captured.out


def test_runs(trained: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert r"run\x1b]0;run" in says(capsys, ["runs", str(place)])
    says(capsys, ["runs", str(place), "--compare"])
    says(capsys, ["report", str(place), f"--out={tmp_path / NAMES['title']}.html"])
    says(capsys, ["runs", str(tmp_path / NAMES["newline"])], code=2)


def test_export(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["export", str(trained), "--format=safetensors", f"-o={tmp_path / NAMES['title']}"]
    assert r"\x1b]0;owned" in says(capsys, arguments)
    says(capsys, arguments, code=4)  # it is there


def test_resume(trained: Path, place: Path, capsys: pytest.CaptureFixture[str]):
    assert "already complete" in says(capsys, ["resume", str(trained)])
    says(capsys, ["resume", str(place / "no\x1b]0;x\x07")], code=2)


COMMANDS = (
    ["train"], ["data", "verify"], ["evaluate"], ["methods"], ["data", "cache"], ["export"],
    ["train", "--backbone"], ["train", "--method"], ["train", "--weights"], [],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_argument_that_means_nothing(command: list[str], capsys: pytest.CaptureFixture[str]):
    for name in NAMES.values():
        assert run([*command, name], debug=False) in (2, 5, 7)
        captured = capsys.readouterr()
        assert_clean(captured.out)
        assert_clean(captured.err)


def test_a_traceback_is_clean_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["evaluate", str(tmp_path / NAMES["title"])], debug=True) in (2, 5, 7)
    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert_clean(captured.err)
