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
from tests.reliability.processes import peerdg, start

pytestmark = pytest.mark.runs
DASK = Path(sys.executable).with_name("dask")


class Cluster:
    """A dask scheduler and its workers, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, slurm_here.free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.started: list[subprocess.Popen] = []
        self.scheduler = self.start_scheduler()
        self.workers = [self.start_worker() for _ in range(2)]

    def start_scheduler(self) -> subprocess.Popen:
        return self._dask("scheduler", "--host", "127.0.0.1", "--port", str(self.port))

    def start_worker(self) -> subprocess.Popen:
        return self._dask("worker", self.address, "--nthreads", "1", "--no-nanny",
                          "--local-directory", str(self.folder))  # fmt: skip

    def _dask(self, *words: str) -> subprocess.Popen:
        with (self.folder / f"{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                [DASK, *words, "--no-dashboard"], stdout=log, stderr=log, start_new_session=True
            )
        self.started.append(process)
        return process


@pytest.fixture
def cluster(tmp_path: Path):
    made = Cluster(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def asked_of(folder: Path, *, seeds: int, epochs: int) -> list[str]:
    return ["bench", *flags(folder / "images", epochs=epochs), "--methods", "erm,randaugment",
            "--seeds", str(seeds), "--checkpoint-minutes", "0"]  # fmt: skip


def assert_equal_to_local(out: Path, asked: list[str], alone: Path) -> None:
    """Compare the records of all runs with those of the same bench without an executor."""
    assert command([*asked, "--out", str(alone), "--jobs", "2"], debug=False) == 0
    runs = sorted(path.name for path in (alone / "runs").iterdir())
    assert runs == sorted(path.name for path in (out / "runs").iterdir())
    for name in runs:
        folders = [RunFolder(each / "runs" / name) for each in (out, alone)]
        assert all(folder.done for folder in folders)
        assert folders[0].metrics.path.read_bytes() == folders[1].metrics.path.read_bytes()


# The whole grid is run by `make test-all`.
@pytest.mark.parametrize("seeds", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_bench_survives_a_killed_dask_worker_and_a_killed_scheduler(cluster, tmp_path, seeds):
    """Both are started again. Runs of the lost worker continue, and none is trained twice."""
    out, asked = tmp_path / "bench", asked_of(tmp_path, seeds=seeds, epochs=60)
    process = start(
        peerdg(*asked, "--out", out, "--executor", "dask", "--scheduler", cluster.address)
    )
    wait_for(lambda: list(out.glob("runs/*/checkpoint/1*")), process)
    cluster.workers[0].kill()
    cluster.start_worker()
    wait_for(lambda: list(out.glob("runs/*/done.json")), process, seconds=300)
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    cluster.start_scheduler()
    for _ in range(2):
        cluster.start_worker()
    said = process.communicate(timeout=900)
    assert process.returncode == 0, said
    for run in (RunFolder(path) for path in (out / "runs").iterdir()):
        assert [e["event"] for e in run.events.read()].count("start") == 1
    assert_equal_to_local(out, asked, tmp_path / "alone")


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


HOUR = [pytest.mark.slow, pytest.mark.timeout(3600)]


# The whole grid reaches a time limit of two minutes. It is run by `make test-all`.
@pytest.mark.skipif(slurm_here.missing() is not None, reason=str(slurm_here.missing()))
@pytest.mark.parametrize("seeds", [1, pytest.param(4, marks=HOUR)])
def test_a_slurm_array_that_is_queued_again_finishes_and_equals_local_runs(tmp_path, seeds):
    out, epochs = tmp_path / "bench", 60 if seeds == 1 else 500
    asked = asked_of(tmp_path, seeds=seeds, epochs=epochs)
    with slurm_here.slurm(tmp_path / "slurm") as environment:
        limit = "--time 2 --signal B:USR1@60"
        command_line = peerdg(*asked, "--out", out, "--executor", "slurm", f"--sbatch={limit}")
        process = start(command_line, env=environment)
        said, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        job = re.search(r"job (\d+)", said)
        assert job is not None, said
        if seeds == 1:
            wait_for(lambda: list(out.glob("runs/erm-0/checkpoint/1*")))
            # What Slurm does before the time limit.
            subprocess.run(
                ["scancel", "--batch", "--signal=USR1", f"{job[1]}_0"], env=environment, check=True
            )
        queue = ["squeue", "-h", "-r", "-j", job[1], "-o", "%i %T %r"]

        def states() -> list[str]:
            shown = subprocess.run(queue, env=environment, capture_output=True, text=True)
            return shown.stdout.splitlines()

        # Slurm holds a job that was queued again for two minutes.
        wait_for(lambda: not states(), seconds=300 if seeds == 1 else 3000)
    stopped = {run.name for run in (out / "runs").iterdir()
               if any(e["event"] == "stop" for e in RunFolder(run).events.read())}  # fmt: skip
    assert len(stopped) == (1 if seeds == 1 else 8)  # all of the grid reach the limit
    assert_equal_to_local(out, asked, tmp_path / "alone")
