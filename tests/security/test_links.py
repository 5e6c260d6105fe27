"""Nothing in a run or model folder may lead outside it or keep a reader waiting."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from peerdg.cli.main import run
from peerdg.errors import DamagedError
from peerdg.files import open_for_append
from peerdg.run.json_lines import JsonLines
from tests.reliability.photo_run import interrupt, photo_run

VICTIM = "not peerdg's\n"


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def dangling(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("not there yet"))


def device(path: Path, victim: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


KINDS = (link, dangling, device, pipe)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_run(tmp_path_factory.mktemp("links"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / "victim.txt"
    path.parent.mkdir()
    path.write_text(VICTIM)
    return path


def replace_file(path: Path, kind: Callable[[Path, Path], None], victim: Path) -> None:
    path.unlink(missing_ok=True)
    kind(path, victim)


def commands(out: Path) -> dict[str, list[str]]:
    image = str(next((out.parent / "photos").rglob("*.png")))
    return {
        "resume": ["resume", str(out), "--quiet"],
        "evaluate": ["evaluate", str(out)],
        "predict": ["predict", str(out), image],
        "predict from the model": ["predict", str(out / "model"), image],
        "export": ["export", str(out), "--format", "safetensors", "-o", str(out.parent / "away")],
    }


def copy_of(finished: Path, folder: Path) -> Path:
    """As a foreign run would be received: its own folder, beside the images it was trained on."""
    shutil.copytree(finished.parent / "photos", folder / "photos")
    return Path(shutil.copytree(finished, folder / "run"))


SHARES = [
    *(pytest.param(kind, number, id=kind.__name__) for number, kind in enumerate(KINDS)),
    *(pytest.param(kind, None, id=f"{kind.__name__} for each", marks=pytest.mark.slow)
      for kind in KINDS),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "share"), SHARES)
def test_no_file_of_a_run_may_be_anything_but_a_file(
    tmp_path: Path,
    finished: Path,
    victim: Path,
    kind: Callable[[Path, Path], None],
    share: int | None,
    capsys: pytest.CaptureFixture[str],
):
    """A kind replaces its share of the files, each kind another; `make test-all`: every file."""
    out = copy_of(finished, tmp_path)
    interrupt(out)
    parts = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    expected = {"config.toml", "events.jsonl", "metrics.jsonl", "run.lock", "model/model.json"}
    assert expected <= {str(part) for part in parts}
    parts += [Path("failure.json"), Path("profile.json"), Path("report.md")]
    for part in parts if share is None else parts[share :: len(KINDS)]:
        kept = (out / part).read_bytes() if (out / part).exists() else None
        replace_file(out / part, kind, victim)
        for name, arguments in commands(out).items():
            if name == "predict from the model" and part.parts[0] != "model":
                continue
            assert run(arguments, debug=False) == 7, (name, part)
            said = capsys.readouterr().err
            assert str(out / part) in said, (name, part)
            assert "Traceback" not in said
        (out / part).unlink()
        if kept is not None:
            (out / part).write_bytes(kept)
    assert victim.read_text() == VICTIM
    assert [path.name for path in victim.parent.iterdir()] == ["victim.txt"]
    assert run(commands(out)["resume"], debug=False) == 0  # nothing else was damaged by trying


@pytest.mark.parametrize("part", ["checkpoint", "snapshots", "model"])
def test_no_folder_of_a_run_may_be_a_link(
    tmp_path: Path, finished: Path, part: str, capsys: pytest.CaptureFixture[str]
):
    out = copy_of(finished, tmp_path)
    interrupt(out)
    outside = tmp_path / "outside"
    shutil.copytree(out / part, outside)
    shutil.rmtree(out / part)
    (out / part).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    for name in ("resume", "evaluate", "predict", "export"):
        assert run(commands(out)[name], debug=False) == 7, name
        assert str(out / part) in capsys.readouterr().err
    assert sorted(outside.rglob("*")) == before


LEFT = ("run.lock", "run.owner.json", ".tmp-probe-1", "config.toml")
FLAGS = ("", "--resume", "--overwrite", "--accept-new-data")


def leftovers() -> list:
    """Each kind and each name with every flag; `make test-all`: all three combined."""
    return [
        pytest.param(kind, name, flag, id=f"{name} {kind.__name__} {flag}",
                     marks=[] if f == (k + n) % len(FLAGS) else pytest.mark.slow)
        for k, kind in enumerate(KINDS) for n, name in enumerate(LEFT)
        for f, flag in enumerate(FLAGS)
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "flag"), leftovers())
def test_a_new_run_is_not_started_over_hostile_leftovers(
    tmp_path: Path,
    victim: Path,
    kind: Callable[[Path, Path], None],
    name: str,
    flag: str,
    capsys: pytest.CaptureFixture[str],
):
    out = tmp_path / "run"
    out.mkdir()
    kind(out / name, victim)
    more = [flag] if flag else []
    assert run(["train", "digits-mini", "--out", str(out), *more], debug=False) == 7
    assert str(out / name) in capsys.readouterr().err
    assert victim.read_text() == VICTIM


def test_a_run_folder_may_be_reached_through_a_link(tmp_path: Path, finished: Path):
    (tmp_path / "disk").mkdir()
    copy_of(finished, tmp_path / "disk")
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    out = tmp_path / "runs" / "run"
    interrupt(out)
    for name, arguments in commands(out).items():
        assert run(arguments, debug=False) == 0, name
    (tmp_path / "direct").symlink_to(tmp_path / "disk" / "run")
    assert run(["resume", str(tmp_path / "direct"), "--quiet"], debug=False) == 0


@pytest.mark.parametrize("kind", [link, dangling, pipe], ids=lambda kind: kind.__name__)
def test_records_are_never_written_through_a_link(
    tmp_path: Path, victim: Path, kind: Callable[[Path, Path], None]
):
    """Also if it appears while the run goes on, after the folder was looked at."""
    lines = JsonLines(tmp_path / "events.jsonl")
    kind(lines.path, victim)
    with pytest.raises(DamagedError) as caught:
        lines.append({"event": "x"})
    assert caught.value.exit_code == 7
    assert str(lines.path) in caught.value.message
    assert victim.read_text() == VICTIM
    assert len(list(victim.parent.iterdir())) == 1


def test_a_file_opened_to_append_keeps_what_it_has_and_gets_the_usual_mode(tmp_path: Path):
    umask = os.umask(0o022)
    try:
        for word in (b"one ", b"two"):
            with open_for_append(tmp_path / "a") as file:
                file.write(word)
    finally:
        os.umask(umask)
    assert (tmp_path / "a").read_bytes() == b"one two"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "run.lock"])
def test_a_file_that_is_written_in_place_may_not_have_another_name(
    tmp_path: Path, finished: Path, victim: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    out = copy_of(finished, tmp_path)
    interrupt(out)
    replace_file(out / name, lambda path, target: path.hardlink_to(target), victim)
    train = ["train", str(out.parent / "photos"), "--out", str(out), "--quiet", "--overwrite"]
    for arguments in (commands(out)["resume"], train):
        assert run(arguments, debug=False) == 7
        assert str(out / name) in capsys.readouterr().err
    assert victim.read_text() == VICTIM
    assert run(commands(out)["predict"], debug=False) == 0  # only reads


def test_a_run_copied_by_hard_links_is_read_and_its_origin_never_changes(
    tmp_path: Path, finished: Path
):
    origin = copy_of(finished, tmp_path)
    interrupt(origin)
    before = {path: path.read_bytes() for path in origin.rglob("*") if path.is_file()}
    out = Path(shutil.copytree(origin, tmp_path / "copy", copy_function=os.link))
    for name in ("evaluate", "predict", "predict from the model", "export"):
        assert run(commands(out)[name], debug=False) == 0, name
    assert run(commands(out)["resume"], debug=False) == 7
    for name in ("events.jsonl", "metrics.jsonl", "run.lock"):
        (out / name).unlink()
        shutil.copy(origin / name, out / name)
    assert run(commands(out)["resume"], debug=False) == 0
    assert {path: path.read_bytes() for path in before} == before


def test_records_are_never_written_to_a_file_with_another_name(tmp_path: Path, victim: Path):
    """Also if it appears while the run goes on, after the folder was looked at."""
    lines = JsonLines(tmp_path / "events.jsonl")
    lines.path.hardlink_to(victim)
    for write in (lambda: lines.append({"event": "x"}), lines.cut):
        with pytest.raises(DamagedError, match="hard link") as caught:
            write()
        assert str(lines.path) in caught.value.message
    assert victim.read_text() == VICTIM
