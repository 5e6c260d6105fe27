"""What the command line answers when something goes wrong, or when it is asked for help."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from peerdg.cli import train as command
from peerdg.cli.main import COMMANDS, WITH_OPTIONS, run
from peerdg.errors import DataError, PeerdgWarning
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import save_model
from peerdg.train import loop
from tests.cli.stored_models import save_photos
from tests.reliability.processes import environment, peerdg, start
from tests.reliability.processes import run as run_process

HELP = [name.split() for name in COMMANDS]
FAST = [[], ["data"], *(page for page in HELP if " ".join(page) not in WITH_OPTIONS)]
IMPORTS = """
import sys
from peerdg.cli.main import run
for arguments in {arguments!r}:
    code = run([*arguments, "--help"], debug=False)
    assert code == 0, (arguments, code)
    heavy = {{"torch", "torchvision", "numpy", "matplotlib"}} & set(sys.modules)
    assert not heavy, (arguments, heavy)
"""


def test_only_help_with_the_options_of_a_run_imports_torch():
    result = run_process([sys.executable, "-I", "-c", IMPORTS.format(arguments=FAST)])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_every_help_shows_an_example(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert run([*arguments, "--help"], debug=False) == 0
    shown = " ".join(capsys.readouterr().out.split())
    if arguments[-1] != "list":
        assert f"Example: peerdg {' '.join(arguments)}".strip() in shown


def test_help_shows_the_options_of_the_chosen_method_and_data(capsys):
    def page(*arguments: str) -> str:
        assert run(["train", *arguments], debug=False) == 0
        return capsys.readouterr().out

    usual = page("--help")
    assert len(usual.splitlines()) <= 90
    assert "--peer.w" in usual and "--peer.no-augment" in usual and "--help-all" in usual
    chosen = page("pacs", "--method", "advst-me", "--help")  # a recipe of advst
    for flag, is_shown in {"--advst.eta": True, "--pacs.source": True, "--peer.w": False}.items():
        assert (flag in chosen) == is_shown
    everything = page("--help-all")
    for flag in ("--peer.w", "--advst.eta", "--pacs.source", "--train.lr", "--crafted"):
        assert flag in everything


def fails_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(command, "run_and_report", fail)
    return ["train", "digits-mini"]


def test_an_unexpected_error_is_a_bug_with_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(fails_with(ZeroDivisionError("oops"), monkeypatch), debug=False) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "ZeroDivisionError: oops" in said
    assert "report" in said


@pytest.mark.parametrize("debug", [False, True])
def test_an_expected_error_shows_a_traceback_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: bool
):
    error = DataError("[bold]photos[/bold] is empty.", hint="Put images there.")
    assert run(fails_with(error, monkeypatch), debug=debug) == 5
    said = capsys.readouterr().err
    assert "Error: [bold]photos[/bold] is empty.\nPut images there." in said
    assert ("Traceback" in said) == debug


def test_ctrl_c_outside_training_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert run(fails_with(KeyboardInterrupt(), monkeypatch), debug=False) == 130
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "saved state is intact" in said


def test_warnings_are_one_line_without_source_code():
    code = "import warnings; from peerdg.cli import main; from peerdg.errors import PeerdgWarning\n"
    code += (
        "main.run = lambda *_, **__: warnings.warn('[b]so[/b]', PeerdgWarning) or 0\nmain.main([])"
    )
    result = run_process([sys.executable, "-c", code])
    assert result.returncode == 0
    assert result.stderr == "Warning: [b]so[/b]\n"
    assert issubclass(PeerdgWarning, UserWarning)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "model"
    torch.manual_seed(0)
    classifier = build_classifier("digits-cnn", classes=tuple("0123456789"))
    save_model(folder, classifier, backbone="digits-cnn", image_size=32)
    return folder


BROKEN = {
    "missing": None,
    "empty": b"",
    "text": b"this is not an image",
    "torn": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
}


def test_a_missing_or_broken_image_is_a_data_error_that_names_it(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
):
    for name, content in BROKEN.items():
        path = tmp_path / f"{name}.png"
        if content is not None:
            path.write_bytes(content)
        assert run(["predict", str(model), str(path)], debug=False) == 5
        assert str(path) in capsys.readouterr().err


def test_predictions_need_a_model_images_and_a_place_to_write(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
):
    image = tmp_path / "a.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(image)
    assert run(["predict", str(tmp_path), str(image)], debug=False) == 5  # no model there
    (tmp_path / "none").mkdir()
    assert run(["predict", str(model), str(tmp_path / "none")], debug=False) == 5
    assert run(["predict", str(model), str(image), "-o", "/proc/x/found.csv"], debug=False) == 4
    assert run(["predict", str(model), str(image), "-o", str(image / "x.csv")], debug=False) == 4
    assert "Traceback" not in capsys.readouterr().err
    assert run(["predict", str(model), str(image)], debug=False) == 0
    assert capsys.readouterr().out.startswith("path,label,probability")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["out.csv", "out.csv.partial"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_output_that_is_a_link_or_a_pipe_is_refused_and_left(
    tmp_path: Path, model: Path, image: Path, kind: str, name: str
):
    place = tmp_path / name
    (tmp_path / "notes").write_text("mine")
    place.symlink_to("notes") if kind == "link" else os.mkfifo(place)
    before = place.lstat()
    output = str(tmp_path / "out.csv")
    assert run(["predict", str(model), str(image), "-o", output], debug=False) == 4
    assert place.lstat().st_ino == before.st_ino
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_full_standard_output_is_an_output_error():
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            peerdg("config", "digits-mini"), stdout=full, stderr=subprocess.PIPE, env=environment()
        )
    assert ended.returncode == 4, ended.stderr
    assert b"Cannot write to standard output: No space left on device." in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_what_the_encoding_of_the_output_lacks_is_written_out():
    ended = subprocess.run(
        peerdg("config", "digits", "--root", "\u72ac"),
        capture_output=True,
        env={**environment(), "PYTHONIOENCODING": "ascii"},
    )
    assert ended.returncode == 0, ended.stderr
    assert b"\\u72ac" in ended.stdout


def long_training(folder: Path, *, pretrain_epochs: int) -> list[str]:
    """The arguments of a training with four steps in an epoch."""
    photos = save_photos(folder / "photos", per_class=6)
    return [
        "train", str(photos), "--out", str(folder / "run"), "--backbone", "digits-cnn-half",
        "--weights", "none", "--transform.size", "32", "--threads", "1", "--peer.k", "1",
        "--pretrain.epochs", str(pretrain_epochs), "--epochs", "1", "--pretrain.batch-size", "4",
        "--train.batch-size", "4", "--crafted", "off", "--peer.head-dim", "8",
    ]  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_state_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys
):
    out = tmp_path / "run"
    steps, train_step = iter(range(1, 1000)), loop.train_step

    def signalled(*args, **kwargs):
        if next(steps) == 10:  # in the main phase
            signal.raise_signal(number)
        return train_step(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", signalled)
        assert run(long_training(tmp_path, pretrain_epochs=2), debug=False) == code
    said = capsys.readouterr().err
    assert_stopped(out, said)
    assert f"  peerdg predict {out} IMAGE" in said.splitlines()  # the pre-trained model
    assert run(["resume", str(out), "--quiet"], debug=False) == 0
    events = _text(out / "events.jsonl").splitlines()
    assert '"start"' in events[0]
    assert '"resume"' in "".join(events) and '"done"' in events[-1]


def test_a_signal_from_outside_stops_the_process(tmp_path: Path):
    out = tmp_path / "run"
    process = start(peerdg(*long_training(tmp_path, pretrain_epochs=1000)))
    while '"epoch"' not in _text(out / "events.jsonl"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert_stopped(out, said)


def assert_stopped(out: Path, said: str) -> None:
    """The state is saved, and the lines on standard error can be typed as they are."""
    ended = _text(out / "events.jsonl")
    assert '"stop"' in ended and '"done"' not in ended  # before its last epoch
    assert f"  peerdg resume {out}" in said.splitlines()
    assert "\\n" not in said
    assert "Traceback" not in said
    assert list((out / "checkpoint").iterdir())


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
