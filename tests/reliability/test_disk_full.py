import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

import peerdg
from peerdg.errors import DamagedError, OutputError
from peerdg.files import replace_atomically, write_json
from peerdg.models.stored import save_model
from peerdg.run.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from peerdg.run.records import JsonLines
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.processes import leftovers, run, tiny
from tests.reliability.tiny_run import OPTIONS, tiny_model

# Saves a checkpoint of about 40 kB while no file may grow beyond a given size: the write fails in
# the middle with EFBIG, exactly as it fails with ENOSPC on a full disk. Tries every size given.
SAVE = """
import json, resource, signal, sys
from pathlib import Path
import torch
from peerdg.errors import PeerdgError
from peerdg.run.checkpoint import save_checkpoint
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
tensors = {"a": torch.arange(10_000, dtype=torch.float32)}
state = {"text": "x" * 60_000}
save_checkpoint(folder, 1, tensors, state)
codes = []
for number, size in enumerate(json.loads(sys.argv[2]), start=2):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        save_checkpoint(folder, number, tensors, state)
        codes.append(0)
    except PeerdgError as error:
        codes.append(error.exit_code)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(json.dumps(codes))
"""
# Runs a command with the same limit on the size of a file.
LIMITED = """
import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), hard))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def test_a_save_that_fails_at_any_byte_leaves_the_previous_checkpoint(tmp_path: Path):
    sizes = [0, 1, 8, 100, 4_096, 20_000, 40_000, 40_100, 45_000, 59_999, 60_010]
    result = run([sys.executable, "-c", SAVE, str(tmp_path), json.dumps(sizes)])
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [4] * len(sizes)
    (only,) = checkpoints(tmp_path)
    assert load_checkpoint(only).state["text"] == "x" * 60_000
    assert leftovers(tmp_path) == []


def limited(size: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", LIMITED, str(size), *command])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return train(out)


def train(out: Path) -> bytes:
    peerdg.fit(tiny_splits(), out=out, model=tiny_model(), existing="resume", **OPTIONS)
    return (out / "model/model.safetensors").read_bytes()


def test_a_run_on_a_full_disk_exits_with_4_and_goes_on_when_there_is_space(
    tmp_path: Path, undisturbed: bytes
):
    # A checkpoint of the second phase has 8 kB, one of the first less than 7.
    out = tmp_path / "run"
    result = limited(7_000, tiny(out))
    assert result.returncode == 4, result.stderr
    assert "Traceback" not in result.stderr
    assert "Free some space" in result.stderr
    assert leftovers(out) == []
    assert checkpoints(out / "checkpoint")
    for path in checkpoints(out / "checkpoint"):
        load_checkpoint(path)
    assert train(out) == undisturbed


def test_a_record_that_does_not_fit_is_completed_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: bytes
):
    append, written = JsonLines.append, []

    def full(self: JsonLines, *records: dict[str, object]) -> None:
        before = len(written)
        written.extend(records)
        if before < 9 <= len(written):
            append(self, *records[: 8 - before])
            with self.path.open("ab") as file:
                file.write(b'{"kind": "epo')
            raise OutputError(f"Cannot write {self.path}: No space left on device.")
        append(self, *records)

    reference = tmp_path / "reference"
    train(reference)
    monkeypatch.setattr(JsonLines, "append", full)
    with pytest.raises(OutputError):
        train(tmp_path / "run")
    monkeypatch.undo()
    assert train(tmp_path / "run") == undisturbed
    name = "metrics.jsonl"
    assert (tmp_path / "run" / name).read_bytes() == (reference / name).read_bytes()


def test_too_little_space_is_reported_at_the_start_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10_000, 9_000, 1_000))
    with pytest.raises(OutputError, match=r"has 0\.0 MB free; .* needs 0\.\d MB") as caught:
        train(tmp_path / "run")
    assert caught.value.exit_code == 4
    assert "--out" in (caught.value.hint or "")
    monkeypatch.undo()
    train(tmp_path / "run")  # nothing is left that stands in the way


def test_every_writer_turns_a_full_disk_into_the_same_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with monkeypatch.context() as patched, pytest.raises(OutputError, match="No space left"):
        # Only regular files are opened; the device stands in for one on a full disk.
        patched.setattr("peerdg.run.records.open_for_append", lambda _: full.open("ab"))
        JsonLines(tmp_path / "lines").append({"a": 1})
    with pytest.raises(OutputError, match="No space left"), replace_atomically(tmp_path / "a"):
        full.write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_of_checkpoints_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DamagedError, match="not a folder"):
        save_checkpoint(tmp_path / "file", 1, {}, {})
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("writer", ["model", "json"])
def test_a_parent_that_is_a_file_is_an_output_error(tmp_path: Path, writer: str):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError):
        if writer == "model":
            save_model(tmp_path / "file/m", tiny_classifier(), backbone="x", image_size=12)
        else:
            write_json(tmp_path / "file/a.json", {})


def test_a_single_file_that_does_not_fit_on_the_disk_is_an_output_error(tmp_path):
    (tmp_path / "photo_train.hdf5").write_bytes(bytes(300_000))
    command = [sys.executable, "-m", "peerdg", "data", "prepare", "pacs"]
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", *command]
    ended = run([*limited, str(tmp_path / "photo_train.hdf5"), "--root", str(tmp_path / "pacs")])
    assert ended.returncode == 4, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "pacs").exists()
