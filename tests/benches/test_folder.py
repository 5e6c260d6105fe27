"""The folder of a bench holds one bench, and one process works in it."""

from pathlib import Path

import pytest

from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan, make_plan, read_plan_file
from peerdg.cli.main import run
from peerdg.errors import ConfigError, DamagedError, OutputError, RunInUseError
from peerdg.run.folder import RunFolder
from tests.benches.tiny import bench as bench
from tests.benches.tiny import plan, trained_run


def planned(*methods: str, epochs: int = 2) -> Plan:
    options = {"benchmark": "digits-mini", "budget": "quick", "train": {"epochs": epochs}}
    return make_plan(options, methods=methods or ("erm", "peer"), seeds=[0, 1])


def begun(path: Path, plan: Plan | None = None, **options) -> BenchFolder:
    """A bench with a config of each run."""
    plan = plan or planned()
    folder = BenchFolder(path)
    with folder.locked(plan, **options):
        folder.write_plan(plan)
        for planned_run in plan.runs:
            folder.begin(planned_run)
    return folder


def test_the_same_bench_continues_and_another_is_refused_with_the_difference(tmp_path: Path):
    begun(tmp_path / "bench")
    begun(tmp_path / "bench")
    with pytest.raises(ConfigError, match=r"train\.epochs: 2 -> 3") as refused:
        begun(tmp_path / "bench", planned("erm", epochs=3))
    assert "--overwrite" in (refused.value.hint or "")


def test_a_bench_that_grows_keeps_its_runs_and_what_it_is_now(tmp_path: Path):
    folder = begun(tmp_path / "bench", planned("erm"))
    (folder.runs / "erm-0/done.json").write_text("{}")
    more = planned("erm", "randaugment")
    begun(tmp_path / "bench", more)
    assert [folder.is_done(run) for run in more.runs] == [True, False, False, False]
    stored = read_plan_file(folder.plan_file)
    assert (stored.methods, stored.seeds) == (more.methods, more.seeds)
    assert make_plan(stored.options, methods=stored.methods, seeds=stored.seeds) == more


def test_overwriting_is_refused_while_a_run_of_a_killed_bench_goes_on(tmp_path: Path):
    folder = begun(tmp_path / "bench", planned("erm"))
    run = RunFolder.open(folder.runs / "erm-0", planned("erm").runs[0].config, existing="resume")
    with pytest.raises(RunInUseError, match="erm-0 is in use"):
        folder.locked(planned("erm"), overwrite=True).__enter__()
    run.close()
    with folder.locked(planned("erm"), overwrite=True):
        pass
    assert not folder.runs.exists()


def test_somebody_elses_folder_stays_as_it_is(tmp_path: Path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"notes\.txt"):
            begun(tmp_path, overwrite=overwrite)
    asked = ["bench", "digits-mini", "--methods", "erm", "--out"]
    for out in ("notes.txt", "notes.txt/bench", "."):
        assert run([*asked, str(tmp_path / out)], debug=False) == 4
        assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_overwriting_removes_what_a_bench_makes_and_nothing_else(tmp_path: Path):
    folder = begun(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with folder.locked(planned(epochs=5), overwrite=True):
        pass
    assert not folder.runs.exists() and not folder.plan_file.exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_links_are_not_followed(tmp_path: Path):
    folder = begun(tmp_path / "bench")
    folder.runs.rename(tmp_path / "elsewhere")
    folder.runs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="runs"):
        begun(folder.path)


def test_a_table_of_what_is_complete_trains_nothing(bench, tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "peer", seeds=2, peer={"k": 1})
    out = tmp_path / "bench"
    with pytest.raises(ConfigError, match="is complete"):
        bench(found, out, train=False)
    assert not out.exists()
    for planned_run in (found.runs[0], found.runs[2]):
        trained_run(planned_run, out / "runs")
    BenchFolder(out).write_plan(found)
    before = BenchFolder(out).plan_file.read_bytes()
    table = bench(plan(tmp_path / "images", "peer", "erm", seeds=2, peer={"k": 1}), out,
                  train=False).table  # fmt: skip
    assert {row.method: row.seeds for row in table.rows} == {"erm": (0, 1), "peer": ()}
    assert sorted(p.name for p in (out / "runs").iterdir()) == ["erm-0", "erm-1"]
    assert BenchFolder(out).plan_file.read_bytes() == before
