from collections.abc import Callable
from pathlib import Path

import pytest

import peerdg
from peerdg.cli.main import run as run_command
from peerdg.errors import OutputError
from peerdg.run.checkpoint import remove_leftovers
from peerdg.run.config import resolve
from peerdg.run.folder import Existing, RunFolder
from peerdg.run.progress import ProgressDisplay
from tests.conftest import tiny_classifier, tiny_splits

NAMES = (
    "my first run", "réseau 🦆", "x" * 200, "a/b/c/d", "[bold]run[/bold]", "-o",
    'it\'s "mine"; rm -rf $HOME',
)  # fmt: skip


def begin_run(out: Path, *, seed: int = 0, existing: Existing = "refuse") -> None:
    """Leave what a run leaves that was stopped right after its start."""
    run = RunFolder.open(out, resolve({"seed": seed}), existing=existing)
    run.begin()
    run.event("start")
    run.close()


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Train into a folder without cache or data: a refusal comes before either is needed."""
    monkeypatch.setenv("PEERDG_CACHE", "/proc/none")

    def train(out: Path, *options: str) -> str:
        code = run_command(["train", "digits-mini", f"--out={out}", *options], debug=False)
        shown = capsys.readouterr().err
        assert code == 4, shown
        assert "Traceback" not in shown
        assert str(out) in shown
        assert "--out" in shown  # what to do
        return shown

    return train


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_read(refused):
    # Not even root can create a file there, so the test is honest for every user.
    refused(Path("/proc/peerdg/run"))
    refused(Path("/sys/kernel"))


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Root may write anywhere; what an ordinary user meets is the system's refusal itself.
    monkeypatch.setattr(Path, "touch", _no_permission)
    with pytest.raises(OutputError, match="Permission denied") as caught:
        RunFolder.open(tmp_path / "run", resolve())
    assert "--out" in (caught.value.hint or "")


def _no_permission(self: Path, *_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied", str(self))


def test_a_file_in_place_of_the_folder_or_of_a_parent_is_refused(tmp_path: Path, refused):
    file = tmp_path / "file"
    file.write_text("mine")
    refused(file)
    refused(file / "run")
    assert file.read_text() == "mine"


def test_a_folder_with_other_peoples_files_is_refused_and_left_alone(tmp_path: Path, refused):
    (tmp_path / "thesis.tex").write_text("mine")
    assert "thesis.tex" in refused(tmp_path)
    refused(tmp_path, "--overwrite")
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_folder_that_holds_a_run_is_refused_unless_asked(tmp_path: Path, refused):
    out = tmp_path / "run"
    begin_run(out)
    before = (out / "config.toml").read_bytes()
    shown = refused(out)
    assert "--resume" in shown
    assert "--overwrite" in shown
    assert (out / "config.toml").read_bytes() == before
    RunFolder.open(out, resolve(), existing="resume").close()
    begin_run(out, seed=1, existing="overwrite")
    assert b"seed = 1" in (out / "config.toml").read_bytes()


def test_overwriting_waits_until_the_new_run_can_begin(tmp_path: Path):
    begin_run(tmp_path)
    (tmp_path / "done.json").write_text("{}")
    config = (tmp_path / "config.toml").read_bytes()
    command = ["train", "digits", "--root=/nowhere", "--overwrite", f"--out={tmp_path}"]
    assert run_command(command, debug=False) == 5
    assert (tmp_path / "done.json").exists()
    assert (tmp_path / "config.toml").read_bytes() == config
    assert RunFolder(tmp_path).done


def test_a_run_that_could_not_begin_leaves_the_folder_as_it_was(tmp_path: Path):
    out = tmp_path / "run"
    assert run_command(["train", "digits", "--root=/nowhere", f"--out={out}"], debug=False) == 5
    assert not out.exists()
    out.mkdir()
    RunFolder.open(out, resolve()).close()
    assert not out.exists() or not list(out.iterdir())


def test_odd_names_work(tmp_path: Path, refused):
    for name in NAMES:
        begin_run(tmp_path / name)
        assert RunFolder(tmp_path / name).status() == "resumable"
        refused(tmp_path / name)


def test_overwriting_replaces_nothing_that_another_program_made(tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("mine")
    (tmp_path / "config.toml").write_text('baseURL = "x"')
    with pytest.raises(OutputError, match="not a run folder"):
        RunFolder.open(tmp_path, resolve(), existing="overwrite")
    assert (tmp_path / "model" / "mine").read_text() == "mine"


def test_a_resume_removes_only_what_peerdg_had_begun_to_write(tmp_path: Path):
    for name in (
        "mine", "notes/.tmp-mine", "checkpoint/.tmp-1000001000000",
        ".tmp-model-123-0a1b2c3d", ".tmp-model-123-0a1b2c3d-former", "snapshots/.tmpAb3dE6",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    remove_leftovers(tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == ["mine", "notes/.tmp-mine"]


def test_a_folder_that_is_renamed_during_training_is_noticed_and_not_made_again(tmp_path: Path):
    out = tmp_path / "run"

    class Renaming(ProgressDisplay):
        def evaluated(self, epoch: int, records: object) -> None:
            out.rename(tmp_path / "renamed")

    with pytest.raises(OutputError, match="renamed"):
        options = {"train": {"epochs": 4, "batch_size": 8}, "pretrain": {"epochs": 0}}
        peerdg.fit(
            tiny_splits(), out=out, model=tiny_classifier(), method="erm", evaluate_every=1,
            progress=Renaming(), **options,
        )  # fmt: skip
    assert not out.exists()


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_a_folder_of_another_program_stays_as_it_is(tmp_path: Path, existing):
    for name in ("manifest.json", "model/weights.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(OutputError, match="not a run folder"):
        RunFolder.open(tmp_path, resolve({}), existing=existing)
    assert (tmp_path / "manifest.json").exists() and (tmp_path / "model/weights.bin").exists()
