"""The folder of a bench holds one bench, one process works in it, and nothing is followed."""

import os
from pathlib import Path

import pytest

from peerdg.errors import ConfigError, DamagedError, OutputError, RunInUseError
from peerdg.grid.folder import BenchFolder
from peerdg.grid.plan import Plan, make_plan
from peerdg.run.folder import RunFolder


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
    assert "methods: 'erm,peer' -> 'erm'" in refused.value.message
    assert "train.epochs: 2 -> 3" in refused.value.message
    assert refused.value.hint is not None and "--overwrite" in refused.value.hint


def test_a_run_with_other_options_is_refused(tmp_path: Path):
    plan, other = planned("erm"), planned("erm", epochs=7)
    begun(tmp_path / "bench", plan)
    run = RunFolder.open(tmp_path / "bench/runs/erm-0", other.runs[0].config)
    run.begin()
    run.close()
    with pytest.raises(ConfigError, match=r"train\.epochs: 7 -> 2"):
        begun(tmp_path / "bench", plan)


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
