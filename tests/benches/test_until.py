"""A bench in stages: every run to one epoch, compared there, then on."""

from pathlib import Path

import pytest

from peerdg.benches.bench import Bench, Preview, run_bench, tabulate_bench
from peerdg.benches.estimate import Progress
from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan
from peerdg.benches.work import Estimate
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError
from peerdg.report.runs import load_runs
from peerdg.run.folder import RunFolder
from tests.benches.tiny import images, plan, trained_run

OPTIONS = {"randaugment": {"k": 1}, "peer": {"k": 1}}


def benched(found: Plan, out: Path, until: int | None) -> Bench:
    progress = Progress.read(BenchFolder(out, until=until), found)
    return run_bench(Preview(found, progress, Estimate(), jobs=2, threads=1), out)


def scores(bench: Bench) -> dict[str, tuple[float, ...]]:
    return {row.method: row.score.values for row in bench.table.rows}


def test_a_bench_in_stages_is_bit_for_bit_one_without(tmp_path: Path):
    found = plan(tmp_path / "images", "randaugment", "p-ens", "peer", **OPTIONS)
    out = tmp_path / "bench"
    alone = [trained_run(run, tmp_path / "alone") for run in found.runs]

    first = benched(found, out, until=2)
    assert not first.failures and first.page.read_text().startswith(
        "# Bench: source, as of epoch 2\n"
    )
    for run, whole in zip(found.runs, alone, strict=True):
        folder = RunFolder(out / "runs" / run.name)
        early = [r for r in whole.records if r["phase"] == "pretrain" or r["epoch"] <= 2]
        assert folder.status() == "resumable" and folder.metrics.read() == early
    records = load_runs(out / "runs.json")
    assert {run.path.name for run in records} == {"randaugment-0", "p-ens-0", "peer-0"}
    assert {run.config["train"]["epochs"] for run in records} == {2}

    assert first.table.remarks[-1] == "As of epoch 2 of 4."
    weights = out / "runs/peer-0/checkpoint"
    before = sorted((p.name, p.stat().st_mtime_ns) for p in weights.iterdir())
    again = benched(found, out, until=2)  # there is nothing to do
    assert scores(again) == scores(first)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in weights.iterdir()) == before

    last = benched(found, out, until=None)
    for run, whole in zip(found.runs, alone, strict=True):
        folder = RunFolder(out / "runs" / run.name)
        assert folder.done and folder.metrics.read() == whole.records
    options = (out / "bench.toml").read_bytes()
    # What has gone on, or is finished, can still be compared where it was.
    assert scores(tabulate_bench(found, out, until=2)) == scores(first)
    assert {run.evaluations[-1]["epoch"] for run in load_runs(out / "runs.json")} == {2}
    assert {e["epoch"] for run in load_runs(out / "runs.json") for e in run._epochs} == {1, 2}
    assert scores(tabulate_bench(found, out)) == scores(last)
    few = plan(tmp_path / "images", "peer", peer={"k": 1})
    assert scores(tabulate_bench(few, out)) == {"peer": scores(last)["peer"]}
    assert (out / "bench.toml").read_bytes() == options  # only looked at
    task = next(row for row in last.table.rows if row.method == "peer")
    assert task.score.values == (alone[1].target_mean("task"),)


def test_a_table_of_what_is_finished_trains_nothing(tmp_path: Path, capsys):
    found = plan(tmp_path / "images", "erm", "peer", seeds=2, peer={"k": 1})
    out = tmp_path / "bench"
    with pytest.raises(ConfigError, match="holds no bench"):
        tabulate_bench(found, out)
    BenchFolder.open(out, found).close()
    with pytest.raises(ConfigError, match=r"No run in .* is complete"):
        tabulate_bench(found, out)
    with pytest.raises(ConfigError, match="complete after epoch 2"):
        tabulate_bench(found, out, until=2)
    for run in (found.runs[0], found.runs[2]):
        trained_run(run, out / "runs")
    table = tabulate_bench(found, out).table
    assert {row.method: row.seeds for row in table.rows} == {"erm": (0, 1), "peer": ()}
    assert sorted(p.name for p in (out / "runs").iterdir()) == ["erm-0", "erm-1"]
    folder = images(tmp_path / "images")["root"]
    asked = ["bench", folder, "--methods", "erm", "--out", str(out), "--no-train", "--overwrite"]
    assert command(asked, debug=False) == 2
    assert "--overwrite would remove" in capsys.readouterr().err


def test_half_an_evaluation_is_none(tmp_path: Path):
    """A process that was killed while it wrote the records of the epoch."""
    found = plan(tmp_path / "images", "peer", peer={"k": 1})
    (run,) = found.runs
    bench = BenchFolder(tmp_path / "bench", until=2)
    folder = bench.run_folder(run)
    trained_run(run, bench.runs)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if '"epoch": 2' in line)
    (folder / "done.json").unlink()
    for kept, arrived in ((lines[: last + 1], True), (lines[:last], False)):
        (folder / "metrics.jsonl").write_text("".join(kept))
        assert bench.is_done(run) == Progress.read(bench, found).is_done(run) == arrived


@pytest.mark.parametrize(
    ("methods", "until", "message"),
    [
        (("erm",), 0, "at least one epoch"),
        (("erm",), 3, "evaluated every 2 epochs, so not after epoch 3"),
        (("erm", "diwa"), 2, "'diwa' is made of finished runs"),
    ],
)
def test_an_epoch_without_evaluation_is_refused(tmp_path: Path, methods, until, message):
    found = plan(tmp_path / "images", *methods, evaluate_every=2)
    with pytest.raises(ConfigError, match=message):
        found.check_until(until)
    assert plan(tmp_path / "images", "erm", evaluate_every=2).check_until(2) == 2
    assert found.check_until(None) is None
    assert found.check_until(4) is None  # the last epoch: nothing is left out
