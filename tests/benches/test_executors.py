"""Benches on a dask cluster and as a Slurm array, with workers and tasks that are lost."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peerdg.benches import executors
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError, PeerdgError
from peerdg.run.folder import RunFolder
from tests.benches import slurm_here
from tests.benches.test_execute import flags, wait_for
from tests.benches.tiny import images, plan, trained_run
from tests.reliability.processes import peerdg, start

pytestmark = pytest.mark.runs
DASK = Path(sys.executable).with_name("dask")


@pytest.fixture
def cluster(tmp_path: Path):
    """A scheduler and two workers, each in a process of its own."""
    started: list[subprocess.Popen] = []

    def dask(*words: str) -> subprocess.Popen:
        with (tmp_path / f"{len(started)}.log").open("w") as log:
            process = subprocess.Popen(
                [DASK, *words], stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        return process

    dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
         "--scheduler-file", str(tmp_path / "scheduler.json"))  # fmt: skip
    wait_for((tmp_path / "scheduler.json").exists)
    address = re.search(r"tcp://[\d.:]+", (tmp_path / "scheduler.json").read_text())
    assert address is not None
    for _ in range(2):
        dask("worker", address[0], "--nthreads", "1", "--no-dashboard", "--no-nanny",
             "--local-directory", str(tmp_path))  # fmt: skip
    yield address[0], started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_run_of_a_killed_dask_worker_is_continued_and_equals_a_local_one(cluster, tmp_path):
    address, (_, worker, _) = cluster
    out = tmp_path / "bench"
    asked = ["bench", *flags(tmp_path / "images", epochs=40), "--methods", "erm,randaugment",
             "--seeds", "2", "--out", str(out), "--checkpoint-minutes", "0",
             "--executor", "dask", "--scheduler", address]  # fmt: skip
    process = start(peerdg(*asked))
    wait_for(lambda: list(out.glob("runs/*/checkpoint/1*")), process)
    worker.kill()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    found = plan(tmp_path / "images", "erm", "randaugment", seeds=2)
    for run in found.runs:
        folder = RunFolder(out / "runs" / run.name)
        assert folder.done
        starts = [e for e in folder.events.read() if e["event"] in ("start", "resume")]
        assert len(starts) <= 2
    options = {"train": {**images(tmp_path / "images")["train"], "epochs": 40}}
    alone = plan(tmp_path / "images", "erm", **options).runs[0]
    expected = trained_run(alone, tmp_path / "alone").path / "metrics.jsonl"
    assert (out / "runs/erm-0/metrics.jsonl").read_bytes() == expected.read_bytes()


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(executors, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(PeerdgError, match=r"127\.0\.0\.1:1\b"), executors.dask("tcp://127.0.0.1:1"):
        pass


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match="distributed") as refused, executors.dask("tcp://x:1"):
        pass
    assert "peerdg[dask]" in (refused.value.hint or "")


def test_without_sbatch_slurm_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(executors.shutil, "which", lambda name: None)
    asked = ["bench", *flags(tmp_path / "images", epochs=1), "--methods", "erm", "--seeds", "1",
             "--out", str(tmp_path / "bench"), "--executor", "slurm"]  # fmt: skip
    assert command(asked, debug=False) == 2


@pytest.mark.skipif(slurm_here.missing() is not None, reason=str(slurm_here.missing()))
def test_a_slurm_array_that_is_queued_again_finishes_and_equals_local_runs(tmp_path):
    out = tmp_path / "bench"
    with slurm_here.slurm(tmp_path / "slurm") as environment:
        asked = ["bench", *flags(tmp_path / "images", epochs=60), "--methods", "erm,randaugment",
                 "--seeds", "1", "--out", str(out), "--checkpoint-minutes", "0"]  # fmt: skip
        process = start([*peerdg(*asked), "--executor", "slurm"], env=environment)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        job = re.search(r"job (\d+)", said)
        assert job is not None, said
        wait_for(lambda: list(out.glob("runs/erm-0/checkpoint/1*")))
        # What Slurm does two minutes before the time limit.
        subprocess.run(
            ["scancel", "--batch", "--signal=TERM", f"{job[1]}_0"], env=environment, check=True
        )
        stopped = RunFolder(out / "runs/erm-0")
        wait_for(lambda: any(e["event"] == "stop" for e in stopped.events.read()))
        queue = ["squeue", "-h", "-r", "-j", job[1], "-o", "%i %T %r"]

        def states() -> list[str]:
            shown = subprocess.run(queue, env=environment, capture_output=True, text=True)
            return shown.stdout.splitlines()

        wait_for(lambda: any("PENDING" in state for state in states()))
        # Slurm holds a job that was queued again for two minutes.
        wait_for(lambda: not states(), seconds=300)
    for run in plan(tmp_path / "images", "erm", "randaugment").runs:
        assert RunFolder(out / "runs" / run.name).done
    options = {"train": {**images(tmp_path / "images")["train"], "epochs": 60}}
    alone = plan(tmp_path / "images", "erm", **options).runs[0]
    expected = trained_run(alone, tmp_path / "alone").path / "metrics.jsonl"
    assert stopped.metrics.path.read_bytes() == expected.read_bytes()
