"""The folder of a bench holds one bench, one process works in it, and nothing is followed."""

import os
import shutil
from pathlib import Path

import pytest

from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan, make_plan
from peerdg.cli.main import run
from peerdg.errors import ConfigError, DamagedError, OutputError, RunInUseError
from peerdg.options import read_toml
from peerdg.run.folder import RunFolder
from tests.benches.tiny import TRAIN, plan, trained


def planned(*methods: str, epochs: int = 2) -> Plan:
    options = {"benchmark": "digits-mini", "budget": "quick", "train": {"epochs": epochs}}
    return make_plan(options, methods=methods or ("erm", "peer"), seeds=[0, 1])


def begun(path: Path, plan: Plan | None = None) -> None:
    BenchFolder.open(path, plan or planned()).close()


def test_the_same_bench_goes_on_and_another_is_refused_with_the_difference(tmp_path: Path):
    out = tmp_path / "bench"
    begun(out)
    begun(out)
    with pytest.raises(ConfigError) as refused:
        begun(out, planned("erm", epochs=3))
    assert "train.epochs: 2 -> 3" in refused.value.message
    assert refused.value.hint is not None and "--overwrite" in refused.value.hint


def test_a_bench_that_grows_keeps_its_runs_and_what_it_is_now(tmp_path: Path):
    found = [
        plan(tmp_path / "images", *methods, seeds=seeds, train={**TRAIN, "epochs": 1})
        for methods, seeds in ((("erm",), 1), (("erm", "randaugment"), 2))
    ]
    begun(tmp_path / "bench", found[0])
    folder = BenchFolder(tmp_path / "bench")
    trained(found[0].runs[0].config, folder.run_folder(found[0].runs[0]))
    begun(tmp_path / "bench", found[1])
    assert [folder.is_done(run) for run in found[1].runs] == [True, False, False, False]
    stored = read_toml(folder.options_file)
    assert (stored["methods"], stored["seeds"]) == (["erm", "randaugment"], [0, 1])


def test_a_run_with_other_options_is_refused(tmp_path: Path):
    plan, other = planned("erm"), planned("erm", epochs=7)
    begun(tmp_path / "bench", plan)
    run = RunFolder.open(tmp_path / "bench/runs/erm-0", other.runs[0].config)
    run.begin()
    run.close()
    with pytest.raises(ConfigError, match=r"train\.epochs: 7 -> 2"):
        begun(tmp_path / "bench", plan)


def test_a_run_of_another_method_under_the_config_of_this_one_is_refused(tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "randaugment", train={**TRAIN, "epochs": 1})
    begun(tmp_path / "bench", found)
    folder = BenchFolder(tmp_path / "bench")
    erm, other = (folder.run_folder(run) for run in found.runs)
    trained(found.runs[1].config, other)
    config = RunFolder.open(erm, found.runs[0].config)
    config.begin()
    config.close()
    shutil.copytree(other, erm, dirs_exist_ok=True, ignore=shutil.ignore_patterns("config.toml"))
    with pytest.raises(ConfigError, match="erm-0 is not the run of this bench") as refused:
        begun(tmp_path / "bench", found)
    assert "method: 'randaugment' -> 'erm'" in refused.value.message
    assert "Remove that folder" in (refused.value.hint or "")


def test_overwriting_waits_for_the_runs_of_a_killed_bench(tmp_path: Path, monkeypatch):
    plan = planned("erm")
    begun(tmp_path / "bench", plan)
    run = RunFolder.open(tmp_path / "bench/runs/erm-0", plan.runs[0].config)
    run.begin()
    monkeypatch.setattr("peerdg.benches.folder.PATIENCE", 0.0)
    with pytest.raises(RunInUseError, match="erm-0 is in use"):
        BenchFolder.open(tmp_path / "bench", plan, existing="overwrite")
    assert run.config_file.exists()
    monkeypatch.setattr("peerdg.benches.folder.PATIENCE", 60.0)
    monkeypatch.setattr("peerdg.benches.folder.time.sleep", lambda seconds: run.close())
    BenchFolder.open(tmp_path / "bench", plan, existing="overwrite").close()
    assert not (tmp_path / "bench/runs").exists()


def test_what_cannot_be_removed_is_not_taken_for_new(tmp_path: Path, monkeypatch):
    begun(tmp_path / "bench")
    (tmp_path / "bench/runs").mkdir()
    monkeypatch.setattr("peerdg.benches.folder.remove", lambda path: None)
    with pytest.raises(OutputError, match="cannot be removed"):
        BenchFolder.open(tmp_path / "bench", planned(), existing="overwrite")


def test_a_second_bench_is_refused_while_the_first_works(tmp_path: Path):
    first = BenchFolder.open(tmp_path / "bench", planned())
    with pytest.raises(RunInUseError, match=f"process {os.getpid()}"):
        BenchFolder.open(tmp_path / "bench", planned())
    first.close()
    begun(tmp_path / "bench")


def test_somebody_elses_folder_stays_as_it_is(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    for existing in ("resume", "overwrite"):
        with pytest.raises(OutputError, match=r"notes\.txt"):
            BenchFolder.open(tmp_path, planned(), existing=existing)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(OutputError, match="Not a directory"):
        begun(tmp_path / "notes.txt")


def test_a_folder_that_cannot_be_written_is_refused_before_data_is_read(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.txt").write_text("mine")
    for out in ("file/bench", "file", "full"):
        asked = ["bench", "pacs", "--root", str(tmp_path), "--methods", "erm"]
        assert run([*asked, "--out", str(tmp_path / out)], debug=False) == 4
        assert str(tmp_path / out) in capsys.readouterr().err
    BenchFolder(tmp_path / "new" / "deep").require_free()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full"]  # and nothing is made


def test_overwriting_removes_what_a_bench_makes_and_nothing_else(tmp_path: Path):
    begun(tmp_path)
    (tmp_path / "runs/erm-0").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    BenchFolder.open(tmp_path, planned(epochs=5), existing="overwrite").close()
    assert not (tmp_path / "runs").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "epochs = 5" in (tmp_path / "bench.toml").read_text()


@pytest.mark.parametrize(
    "text",
    ["", "not toml", "format = 1\nmethods = 'erm'\nseeds = [0]", "format = 1\nseeds = [0]",
     "format = 2\nmethods = ['erm']\nseeds = [0]", "format = 1\nmethods = ['erm']\nseeds = ['a']"],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, text: str):
    begun(tmp_path)
    (tmp_path / "bench.toml").write_text(text)
    with pytest.raises(DamagedError, match=r"bench\.toml"):
        begun(tmp_path)


@pytest.mark.parametrize("name", ["bench.toml", "bench.lock", "bench.owner.json", "runs", "logs"])
def test_links_are_not_followed(tmp_path: Path, name: str):
    out, elsewhere = tmp_path / "bench", tmp_path / "elsewhere"
    begun(out)
    elsewhere.mkdir()
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(elsewhere)
    with pytest.raises(DamagedError, match=name):
        begun(out)
    assert list(elsewhere.iterdir()) == []
