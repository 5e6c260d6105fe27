"""Benches in processes: runs fail alone, everything can be stopped and killed, nothing is lost."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from peerdg.benches.bench import Preview, collect, preview_bench, run_bench
from peerdg.benches.display import Silence
from peerdg.benches.estimate import Progress
from peerdg.benches.folder import BenchFolder
from peerdg.benches.work import Estimate, Work, threads_each
from peerdg.cli.main import run as command
from peerdg.errors import PeerdgError
from peerdg.run.folder import RunFolder
from tests.benches.tiny import TRAIN, images, plan, trained, trained_run
from tests.data.image_files import write_picture
from tests.reliability.processes import kill_group, peerdg, start

ENDLESS = 100_000  # epochs
# A bench as far as its runs know it: starts a process for a run, and lives.
PARENT = """
import json, sys, time
from peerdg.benches.children import Children
child = Children(1).start("erm-0", json.loads(sys.argv[1]))
time.sleep(600)
"""


def flags(folder: Path, *, epochs: int) -> list[str]:
    """`images` as flags of the command line."""
    options = images(folder)
    found = [options.pop("root"), "--target", options.pop("targets")[0], "--epochs", str(epochs)]
    del options["benchmark"], options["train"]["epochs"]
    for key, value in options.items():
        values = value if isinstance(value, Mapping) else {"": value}
        for name, inner in values.items():
            found += [f"--{key}{'.' if name else ''}{name}".replace("_", "-"), str(inner)]
    return found


class Killer(Silence):
    """Kills the process of one run when it has begun to train."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: Work | None = None
        self.texts: dict[str, str] = {}

    def progressed(self, name: str, message: Mapping[str, Any]) -> None:
        if name == self.name and message.get("phase") and self.work is not None:
            self.work._running[name][1].process.kill()

    def ended(self, name: str, text: str, *, left: float | None) -> None:
        self.texts[name] = text


def test_a_nan_and_a_killed_process_stop_no_other_run(tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "peer", "randaugment", peer={"k": 1, "w": 1e38},
                 randaugment={"k": 1})  # fmt: skip
    bench = BenchFolder.open(tmp_path / "bench", found)
    killer = Killer("randaugment-0")
    work = Work(found, bench, Estimate(), jobs=2, threads=1, shown=killer,
                describe=lambda path: path.name)  # fmt: skip
    killer.work = work
    failures = work.train()
    assert set(failures) == {"peer-0", "randaugment-0"}
    assert failures["peer-0"].code == 6  # NaN
    assert "SIGKILL" in failures["randaugment-0"].message
    assert "memory" in (failures["randaugment-0"].hint or "")
    assert killer.texts["erm-0"] == "erm-0"  # described by the name of its folder
    done = {method: len(runs) for method, runs in collect(found, bench).items()}
    assert done == {"erm": 1, "peer": 0, "randaugment": 0}
    bench.close()
    # What was killed is trained by the next call; what is done is not touched.
    weights = (bench.runs / "erm-0/model/model.safetensors").stat().st_mtime_ns
    preview = Preview(found, Progress.read(bench, found), Estimate(), jobs=1, threads=1)
    assert preview.done == 1 and preview.left is None
    again = run_bench(preview, tmp_path / "bench")
    assert set(again.failures) == {"peer-0"}
    assert {row.method: len(row.seeds) for row in again.table.rows} == {
        "erm": 1, "peer": 0, "randaugment": 1,
    }  # fmt: skip
    assert (bench.runs / "erm-0/model/model.safetensors").stat().st_mtime_ns == weights
    assert "The run peer-0 failed" in again.page.read_text()
    alone = trained_run(found.groups[2].runs(0)[0], tmp_path / "alone")
    assert RunFolder(bench.runs / "randaugment-0").metrics.read() == alone.records


def test_a_bench_that_is_stopped_or_killed_goes_on_where_it_was(tmp_path: Path):
    arguments = ["--methods", "erm", "--seeds", "1", "--out", str(tmp_path / "bench"),
                 "--checkpoint-minutes", "0"]  # fmt: skip
    folder = tmp_path / "bench/runs/erm-0"
    # Stopped by a signal: the run saves its state, and the way to go on is told.
    process = start(peerdg("bench", *flags(tmp_path / "images", epochs=ENDLESS), *arguments))
    wait_for(lambda: epochs(folder) >= 2, process)
    assert command(["bench", *flags(tmp_path / "images", epochs=ENDLESS), *arguments],
                   debug=False) == 3  # fmt: skip  # in use
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert "same command" in said
    assert (folder / "checkpoint").is_dir() and not RunFolder(folder).done
    before = epochs(folder)
    # Killed: the run notices that nobody waits for it any more, saves its state and ends.
    config = plan(tmp_path / "images", "erm", train={**TRAIN, "epochs": ENDLESS},
                  checkpoint_minutes=0.0).runs[0].config  # fmt: skip
    job = {"job": "train", "config": config.tables(), "out": str(folder), "costs": None,
           "beside": []}  # fmt: skip
    process = start([sys.executable, "-c", PARENT, json.dumps(job)])
    wait_for(lambda: epochs(folder) >= before + 2, process)
    kill_group(process)
    wait_for(lambda: RunFolder(folder).status() == "resumable")
    stops = [e["signal"] for e in RunFolder(folder).events.read() if e["event"] == "stop"]
    assert stops == [signal.SIGTERM, signal.SIGTERM]
    assert epochs(folder) >= before + 2


def epochs(folder: Path) -> int:
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()[:-1]
    except FileNotFoundError:
        return 0
    return sum('"kind": "epoch", "phase": "train"' in line for line in lines)


def wait_for(condition, process=None, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_data_that_cannot_be_used_is_refused_before_anything_is_trained(tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "swad", **{"own-data": {"validation_fraction": 0.0}})
    with pytest.raises(PeerdgError, match="SWAD needs validation images") as refused:
        preview_bench(found, tmp_path / "bench")
    assert refused.value.exit_code == 2
    assert not (tmp_path / "bench").exists()


def test_runs_of_a_bench_have_the_same_data(tmp_path: Path):
    found = plan(tmp_path / "images", "erm", seeds=2, train={**TRAIN, "epochs": 1})
    out = tmp_path / "bench"
    bench = BenchFolder.open(out, found)
    trained(found.runs[0].config, bench.run_folder(found.runs[0]))
    bench.close()
    write_picture(tmp_path / "images/source/cat/new.png", 1, (16, 16))
    preview = Preview(found, Progress.read(bench, found), Estimate(), jobs=1, threads=1)
    made = run_bench(preview, out)
    assert made.failures["erm-1"].code == 2
    assert "erm-0 was started: " in made.failures["erm-1"].message
    assert "new.png" in made.failures["erm-1"].message
    assert made.table.rows[0].seeds == (0,)
    # With the data as it was the bench goes on.
    (tmp_path / "images/source/cat/new.png").unlink()
    assert run_bench(preview, out).table.rows[0].seeds == (0, 1)


def test_the_whole_command_trains_and_says_what_it_found(tmp_path: Path, capsys):
    rest = ["--methods", "erm,randaugment,swa", "--seeds", "1", "--out", str(tmp_path / "bench"),
            "--randaugment.k", "1"]  # fmt: skip
    arguments = ["bench", *flags(tmp_path / "images", epochs=3), *rest]
    assert command([*arguments, "--jobs", "2"], debug=False) == 0
    said = capsys.readouterr().out
    assert "Shared: 2 runs in place of 3" in said
    assert "To train: 2 of 2 runs, 2 at once" in said
    assert re.search(r"^swa +1 ", said, re.MULTILINE) and "(one seed)" in said
    assert len(json.loads((tmp_path / "bench/runs.json").read_text())) == 3
    # Again: nothing is trained, and another reference is allowed.
    assert command([*arguments, "--reference", "swa"], debug=False) == 0
    said = capsys.readouterr().out
    assert "Everything is trained." in said and "vs swa" in said
    written = (tmp_path / "bench/report.md").stat().st_mtime_ns
    assert command([*arguments, "--dry-run"], debug=False) == 0
    assert (tmp_path / "bench/report.md").stat().st_mtime_ns == written
    other = ["bench", *flags(tmp_path / "images", epochs=5), *rest]
    assert command(other, debug=False) == 2
    assert "train.epochs: 3 -> 5" in capsys.readouterr().err
    assert command([*arguments, "--reference", "swae"], debug=False) == 2
    assert "Did you mean 'swa'" in capsys.readouterr().err


def test_threads_are_the_cores_divided_by_the_runs_at_once(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert [threads_each(jobs) for jobs in (1, 2, 3, 16)] == [None, 4, 2, 1]
    assert threads_each(4, 3) == 3
