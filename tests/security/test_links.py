"""A symbolic link in a run folder is refused before anything is read or written."""

import shutil
from pathlib import Path

import pytest

from peerdg.cli.main import run
from tests.reliability.photo_run import interrupt, photo_run

VICTIM = "not peerdg's\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_run(tmp_path_factory.mktemp("links"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / "victim.txt"
    path.parent.mkdir()
    path.write_text(VICTIM)
    return path


def commands(out: Path) -> dict[str, list[str]]:
    image = str(next((out.parent / "photos").rglob("*.png")))
    return {
        "resume": ["resume", str(out), "--quiet"],
        "evaluate": ["evaluate", str(out)],
        "predict": ["predict", str(out), image],
        "export": ["export", str(out), "--format", "safetensors", "-o", str(out.parent / "away")],
    }


def copy_of(finished: Path, folder: Path) -> Path:
    shutil.copytree(finished.parent / "photos", folder / "photos")
    return Path(shutil.copytree(finished, folder / "run"))


def test_no_file_or_folder_of_a_run_may_be_a_link(
    tmp_path: Path, finished: Path, victim: Path, capsys: pytest.CaptureFixture[str]
):
    out = copy_of(finished, tmp_path)
    interrupt(out)
    parts = ["config.toml", "events.jsonl", "run.lock", "model/model.json", "failure.json"]
    for part in [out / name for name in (*parts, "checkpoint", "model")]:
        moved = tmp_path / "moved"
        if part.exists():
            part.rename(moved)
        part.symlink_to(moved if moved.is_dir() else victim)
        for name, arguments in commands(out).items():
            assert run(arguments, debug=False) == 7, (name, part)
            assert str(part) in capsys.readouterr().err, (name, part)
        part.unlink()
        if moved.exists():
            moved.rename(part)
    assert victim.read_text() == VICTIM
    assert [path.name for path in victim.parent.iterdir()] == ["victim.txt"]
    assert run(commands(out)["resume"], debug=False) == 0


@pytest.mark.parametrize("name", ["run.lock", ".tmp-probe-1", "config.toml"])
def test_a_new_run_is_not_started_over_a_link(
    tmp_path: Path, victim: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    out.mkdir()
    (out / name).symlink_to(victim)
    for flag in ([], ["--resume"], ["--overwrite"]):
        code = run(["train", "digits-mini", "--out", str(out), *flag], debug=False)
        assert code in (4, 7)  # 4: with no run in it, the folder is somebody else's
        assert str(out) in capsys.readouterr().err
    assert victim.read_text() == VICTIM


def test_a_run_folder_may_be_reached_through_a_link(tmp_path: Path, finished: Path):
    (tmp_path / "disk").mkdir()
    copy_of(finished, tmp_path / "disk")
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    out = tmp_path / "runs" / "run"
    interrupt(out)
    for name, arguments in commands(out).items():
        assert run(arguments, debug=False) == 0, name
