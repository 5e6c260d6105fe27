import resource
import shutil
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.cli.main import run
from peerdg.errors import OutputError
from peerdg.files import replace_atomically
from peerdg.run.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from peerdg.run.records import JsonLines
from tests.conftest import tiny_splits
from tests.reliability import tiny_run
from tests.reliability.processes import leftovers
from tests.reliability.tiny_run import OPTIONS, tiny_model


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond a size: a write fails with EFBIG as on a full disk with ENOSPC."""
    usual, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, hard))


def test_a_save_that_fails_at_any_byte_leaves_the_previous_checkpoint(tmp_path: Path):
    tensors, state = {"a": torch.arange(10_000, dtype=torch.float32)}, {"text": "x" * 60_000}
    save_checkpoint(tmp_path, 1, tensors, state)
    sizes = [0, 1, 8, 100, 4_096, 20_000, 40_000, 40_100, 45_000, 59_999, 60_010]
    for number, size in enumerate(sizes, start=2):
        with largest_file(size), pytest.raises(OutputError):
            save_checkpoint(tmp_path, number, tensors, state)
    (only,) = checkpoints(tmp_path)
    assert load_checkpoint(only).state["text"] == "x" * 60_000
    assert leftovers(tmp_path) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    train(out)
    return out


@pytest.fixture
def undisturbed(whole: Path) -> bytes:
    return (whole / "model/model.safetensors").read_bytes()


def train(out: Path) -> bytes:
    peerdg.fit(tiny_splits(), out=out, model=tiny_model(), existing="resume", **OPTIONS)
    return (out / "model/model.safetensors").read_bytes()


def test_a_run_on_a_full_disk_exits_with_4_and_goes_on_when_there_is_space(
    tmp_path: Path, undisturbed: bytes, capsys: pytest.CaptureFixture[str]
):
    # A checkpoint of the second phase has 8 kB, one of the first less than 7.
    out = tmp_path / "run"
    with largest_file(7_000):
        assert tiny_run.main(str(out)) == 4
    assert "Free some space" in capsys.readouterr().err
    assert leftovers(out) == []
    assert checkpoints(out / "checkpoint")
    for path in checkpoints(out / "checkpoint"):
        load_checkpoint(path)
    assert train(out) == undisturbed


def test_a_record_that_does_not_fit_is_completed_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, undisturbed: bytes
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

    monkeypatch.setattr(JsonLines, "append", full)
    with pytest.raises(OutputError):
        train(tmp_path / "run")
    monkeypatch.undo()
    assert train(tmp_path / "run") == undisturbed
    name = "metrics.jsonl"
    assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


def test_too_little_space_is_reported_at_the_start_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10_000, 9_000, 1_000))
    with pytest.raises(OutputError, match=r"needs 0\.\d MB.* 0\.0 MB free") as caught:
        train(tmp_path / "run")
    assert caught.value.exit_code == 4
    assert "--out" in (caught.value.hint or "")
    monkeypatch.undo()
    train(tmp_path / "run")  # nothing is left that stands in the way


def test_every_writer_turns_a_full_disk_into_the_same_error(tmp_path: Path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OutputError, match="No space left"):
        JsonLines(full).append({"a": 1})
    with pytest.raises(OutputError, match="No space left"), replace_atomically(tmp_path / "a"):
        full.write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_an_extracted_file_that_does_not_fit_on_the_disk_is_an_output_error(tmp_path, capsys):
    file = tmp_path / "PACS.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("PACS/photo/dog/pic_001.jpg", bytes(300_000))
    command = ["data", "prepare", "pacs", str(file), "--root", str(tmp_path / "pacs")]
    with largest_file(100_000):
        assert run(command, debug=False) == 4
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "pacs").exists()
