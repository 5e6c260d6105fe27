"""Benches in processes: runs fail alone, everything can be stopped and killed, nothing is lost."""

import io
import json
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from peerdg.benches import execute
from peerdg.benches.bench import run_bench
from peerdg.benches.execute import BenchDisplay, threads_each
from peerdg.benches.folder import BenchFolder
from peerdg.cli.main import run as command
from peerdg.errors import PeerdgError
from peerdg.report.runs import RunResult, load_runs
from peerdg.run.folder import RunFolder
from peerdg.terminal import Terminal
from tests.benches.tiny import TRAIN, images, plan, trained_run
from tests.benches.tiny import bench as bench
from tests.data.image_files import write_picture
from tests.reliability.processes import kill_group, peerdg, start

K = {"randaugment": {"k": 1}, "peer": {"k": 1}}


def metrics(run: RunResult) -> list[dict]:
    return RunFolder(run.path).metrics.read()


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


def wait_for(condition, process=None, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_process_of(name: str) -> None:
    """End the process of a run as soon as there is one."""

    def processes():
        return [p for p in execute._processes.copy() if any(name in part for part in p.args)]

    wait_for(processes)
    processes()[0].kill()


def test_a_nan_and_a_killed_process_stop_no_other_run(tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "peer", "randaugment", randaugment={"k": 1},
                 peer={"k": 1, "w": 1e38})  # fmt: skip
    killer = threading.Thread(target=kill_process_of, args=["randaugment-0"])
    killer.start()
    out = tmp_path / "bench"
    made = run_bench(found, out, jobs=2)
    killer.join()
    assert set(made.failures) == {"peer-0", "randaugment-0"}
    assert "SIGKILL" in made.failures["randaugment-0"]
    assert made.failures["peer-0"] in (out / "runs/peer-0/log.txt").read_text()
    assert "not finite" in made.failures["peer-0"]
    assert {row.method: row.seeds for row in made.table.rows} == {
        "erm": (0,), "peer": (), "randaugment": (),
    }  # fmt: skip
    assert "peer-0: " in made.page.read_text()
    # What was killed is trained by the next call; what is complete is not touched.
    weights = (out / "runs/erm-0/model/model.safetensors").stat().st_mtime_ns
    again = run_bench(found, out)
    assert set(again.failures) == {"peer-0"}
    assert (out / "runs/erm-0/model/model.safetensors").stat().st_mtime_ns == weights
    alone = trained_run(found.groups[2].runs(0)[0], tmp_path / "alone")
    assert RunFolder(out / "runs/randaugment-0").metrics.read() == metrics(alone)


def test_a_bench_that_is_stopped_or_killed_continues_where_it_was(tmp_path: Path):
    out = tmp_path / "bench"
    asked = ["bench", *flags(tmp_path / "images", epochs=100_000), "--methods", "erm",
             "--seeds", "1", "--out", str(out), "--checkpoint-minutes", "0"]  # fmt: skip
    run = RunFolder(out / "runs/erm-0")

    def epochs() -> int:
        return sum(event["event"] == "epoch" for event in run.events.read())

    # Ctrl-C: the run saves its state, and the way to continue is told.
    process = start(peerdg(*asked))
    wait_for(lambda: epochs() >= 2, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT and "Repeat the command" in said
    assert [e["signal"] for e in run.events.read() if e["event"] == "stop"] == [signal.SIGTERM]
    assert any(run.checkpoints.iterdir()) and run.status() == "resumable"
    # Killed: its run goes on by itself. The next bench leaves it alone, and continues it later.
    before = epochs()
    process = start(peerdg(*asked))
    wait_for(lambda: epochs() > before, process)
    kill_group(process)
    assert run.status() == "running"
    process = start(peerdg(*asked))
    owner = json.loads((run.path / "run.owner.json").read_text())["pid"]
    time.sleep(1)  # it looks for runs that it can train
    assert epochs() > before and run.status() == "running"
    os.kill(owner, signal.SIGTERM)
    wait_for(lambda: [e["event"] for e in run.events.read()].count("resume") == 2, process)
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM and run.status() == "resumable"


def test_two_benches_on_one_folder_share_the_runs(tmp_path: Path):
    out = tmp_path / "bench"
    asked = ["bench", *flags(tmp_path / "images", epochs=3), "--methods",
             "erm,randaugment,peer,diwa", "--seeds", "2", "--out", str(out)]  # fmt: skip
    both = [start(peerdg(*asked)), start(peerdg(*asked))]
    texts = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    runs = sorted((out / "runs").iterdir())
    assert len(runs) > 8
    for folder in runs:
        events = RunFolder(folder).events.read()
        assert [event["event"] for event in events if event["event"] in ("start", "resume")] == [
            "start"
        ], folder
        assert RunFolder(folder).done
    reports = [text for text, _ in texts]
    assert reports[0] == reports[1]


def test_a_bench_in_stages_is_bit_for_bit_one_without(bench, tmp_path: Path):
    found = plan(tmp_path / "images", "randaugment", "p-ens", "peer", **K)
    out = tmp_path / "bench"
    alone = [trained_run(run, tmp_path / "alone") for run in found.runs]

    def scores(made):
        return {row.method: row.score.values for row in made.table.rows}

    first = bench(found, out, until=2)
    assert not first.failures and "as of epoch 2<" in first.page.read_text()
    assert first.table.remarks[-1] == "As of epoch 2 of 4."
    for run, whole in zip(found.runs, alone, strict=True):
        folder = RunFolder(out / "runs" / run.name)
        early = [r for r in metrics(whole) if r["phase"] == "pretrain" or r["epoch"] <= 2]
        assert folder.status() == "resumable" and folder.metrics.read() == early
    assert {run.config["train"]["epochs"] for run in load_runs(out)} == {2}
    state = [p.stat().st_mtime_ns for p in sorted((out / "runs/peer-0/checkpoint").iterdir())]
    assert scores(bench(found, out, until=2)) == scores(first)  # there is nothing to do
    assert state == [
        p.stat().st_mtime_ns for p in sorted((out / "runs/peer-0/checkpoint").iterdir())
    ]
    last = bench(found, out)
    for run, whole in zip(found.runs, alone, strict=True):
        folder = RunFolder(out / "runs" / run.name)
        assert folder.done and folder.metrics.read() == metrics(whole)
    assert scores(last)["peer"] == (alone[1].score("task"),)
    # What has gone on, or is finished, can still be compared where it was.
    assert scores(bench(found, out, until=2, train=False)) == scores(first)
    assert {run.evaluations[-1]["epoch"] for run in load_runs(out)} == {2}
    few = plan(tmp_path / "images", "peer", peer={"k": 1})
    assert scores(bench(few, out, train=False)) == {"peer": scores(last)["peer"]}


def test_progress_is_read_from_the_folders(bench, tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "peer", **{"peer": {"k": 1}})
    folder = BenchFolder(tmp_path / "bench", until=3)
    erm, peer = found.runs
    trained_run(erm, folder.runs)
    display = BenchDisplay(found, folder, None)
    assert display.epochs == {"erm-0": 4, "peer-0": 0}  # with one of pre-training
    events = folder.begin(peer) / "events.jsonl"
    event = '{"event": "epoch", "phase": "%s", "epoch": %d}\n'
    lock = FileLock(folder.run_folder(peer) / "run.lock")  # of the process that trains it
    lock.acquire()
    for lines, epochs in (
        (event % ("pretrain", 1), 1),
        (event % ("pretrain", 1) + event % ("train", 2) + '{"event": "resume"}\n{"eve', 3),
    ):
        events.write_text(lines)
        display.update(["peer-0"])
        assert display.bars.tasks[0].completed == 4 + epochs
        assert (display.bars.tasks[1].completed, display.bars.tasks[1].total) == (epochs, 4)
    lock.release()
    shown = io.StringIO()
    bench(plan(tmp_path / "images", "erm"), tmp_path / "other", console=Terminal(file=shown))
    assert re.fullmatch(r"erm-0: done, model \d+\.\d %\n", shown.getvalue())


def test_data_that_changed_is_refused_or_named(bench, tmp_path: Path):
    found = plan(tmp_path / "images", "erm", seeds=2, train={**TRAIN, "epochs": 1})
    out = tmp_path / "bench"
    bench(replace(found, seeds=(0,)), out)
    done = out / "runs/erm-0/done.json"
    done.rename(tmp_path / "done.json")
    write_picture(tmp_path / "images/source/cat/new.png", 1, (16, 16))
    made = bench(found, out)
    assert "erm-0" in made.failures  # it cannot go on
    (tmp_path / "done.json").rename(done)
    cautions = bench(found, out, train=False).table.cautions
    assert any("different images" in caution for caution in cautions)


def test_when_every_run_fails_the_first_reason_is_the_message(tmp_path: Path):
    found = plan(tmp_path / "images", "swad", **{"own-data": {"validation_fraction": 0.0}})
    with pytest.raises(PeerdgError, match="swad-0: SWAD needs validation images"):
        run_bench(found, tmp_path / "bench")


def test_the_whole_command_trains_and_says_what_it_found(tmp_path: Path, capsys):
    out = tmp_path / "bench"
    rest = ["--methods", "erm,randaugment,swa", "--seeds", "1", "--out", str(out),
            "--randaugment.k", "1"]  # fmt: skip
    asked = ["bench", *flags(tmp_path / "images", epochs=3), *rest]
    assert command([*asked, "--dry-run"], debug=False) == 0
    assert re.search(r"randaugment, swa +1 +0", capsys.readouterr().out) and not out.exists()
    assert command([*asked, "--jobs", "2"], debug=False) == 0
    said = capsys.readouterr().out
    assert re.search(r"^swa +1 ", said, re.MULTILINE) and "(one seed)" in said
    assert len(load_runs(out)) == 3
    # Its own plan file gives the same bench, with nothing to train.
    again = ["bench", "--plan", str(out / "bench.toml"), "--out", str(out), "--reference", "swa"]
    assert command(again, debug=False) == 0
    assert "vs swa" in capsys.readouterr().out
    other = ["bench", *flags(tmp_path / "images", epochs=5), *rest]
    assert command(other, debug=False) == 2
    assert "train.epochs: 3 -> 5" in capsys.readouterr().err
    assert command([*asked, "--reference", "swae"], debug=False) == 2
    assert "'swa'" in capsys.readouterr().err
    assert command([*asked, "--no-train", "--overwrite"], debug=False) == 2


def test_threads_are_the_cores_divided_by_the_runs_at_once(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert [threads_each(jobs) for jobs in (1, 2, 3, 16)] == [None, 4, 2, 1]
    assert threads_each(4, 3) == 3
