"""A reader that leaves does not end the work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.stored_models import save_photos
from tests.reliability.processes import environment, peerdg, start


def training(folder: Path) -> list[str]:
    """The command of a short training into `folder/run`."""
    photos = save_photos(folder / "photos")
    target = save_photos(folder / "target", seed=1)
    return peerdg(
        "train", photos, "--target", target, "--out", folder / "run", "--crafted=off",
        "--backbone=digits-cnn-half", "--weights=none", "--transform.size=32", "--threads=1",
        "--pretrain.epochs=1", "--epochs=2", "--peer.k=1", "--peer.head-dim=8",
    )  # fmt: skip


def run_without_reader(command: list[str], stream: str) -> subprocess.CompletedProcess[str]:
    """Run it with a standard output or error whose reader has already left."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if stream == "both":
        streams = {"stdout": writer, "stderr": subprocess.STDOUT}
    else:
        streams[stream] = writer
    done = subprocess.run(command, env=environment(), text=True, timeout=200, **streams)
    os.close(writer)
    return done


def test_a_training_ends_well_and_is_saved_though_nobody_reads(tmp_path: Path):
    out = tmp_path / "run"
    done = run_without_reader(training(tmp_path), "both")
    assert done.returncode == 0
    assert (out / "done.json").is_file()
    assert (out / "model" / "model.safetensors").is_file()


def test_head_shows_its_line_and_the_training_ends_well(tmp_path: Path):
    out = tmp_path / "run"
    with start(training(tmp_path)) as process:
        head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, text=True)
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert head.stdout.startswith("accuracy %")
    assert "Exception" not in errors and "Traceback" not in errors
    assert (out / "done.json").is_file()


@pytest.mark.parametrize("arguments", [["train", "--help"], ["config"]])
def test_other_commands_say_nothing_when_nobody_reads(arguments: list[str]):
    done = run_without_reader(peerdg(*arguments), "stdout")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_does_not_complain_at_its_end():
    code = "from peerdg.terminal import Terminal\nTerminal().print('x' * 10)\nprint('y' * 10)"
    done = run_without_reader([sys.executable, "-c", code], "stdout")
    assert (done.returncode, done.stderr) == (0, "")
