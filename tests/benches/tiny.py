"""A bench of seconds: a few small images, two steps per epoch."""

import json
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from peerdg.benches import execute
from peerdg.benches.bench import Bench, run_bench
from peerdg.benches.plan import Plan, PlannedRun, make_plan
from peerdg.cli.main import run as command
from peerdg.report.runs import RunResult, read_run
from peerdg.run.config import RunConfig
from peerdg.run.progress import ProgressDisplay
from peerdg.run.run import start_run
from tests.data.image_files import make_tree, write_picture

TRAIN = {"epochs": 4, "batch_size": 8, "steps_per_epoch": 2, "lr": 0.001}


def images(folder: Path) -> dict[str, Any]:
    """Options that name two folders of pictures, made at the first call."""
    if not folder.exists():
        make_tree(folder / "source", "cat", "dog", count=12, size=(16, 16))
        for number in range(10):
            name = f"{('cat', 'dog')[number % 2]}/{number}.png"
            write_picture(folder / "target" / name, 1000 + number, (16, 16))
    return {
        "benchmark": "own-data",
        "root": str(folder / "source"),
        "targets": [str(folder / "target")],
        "backbone": "digits-cnn-half",
        "pretrain": {"epochs": 1, "batch_size": 8, "steps_per_epoch": 1},
        "train": dict(TRAIN),
        "evaluate_every": 1,
        "crafted": "off",
        "threads": 1,
        "own-data": {"size": 16},
    }


def plan(folder: Path, *methods: str, seeds: int = 1, **options: Any) -> Plan:
    return make_plan({**images(folder), **options}, methods=methods, seeds=range(seeds))


def trained(config: RunConfig, out: Path) -> RunResult:
    """A run in this process, as `peerdg train` does it."""
    start_run(config, out, existing="refuse", progress=ProgressDisplay())
    return read_run(out)


def trained_run(run: PlannedRun, folder: Path) -> RunResult:
    return trained(run.config, folder / run.name)


class SameProcess(Executor):
    """Runs each task at once, if its arguments could go to another machine."""

    def submit(self, call, /, *args, **kwargs):
        assert getattr(execute, call.func.__name__) is call.func
        json.dumps((call.args, call.keywords))
        future: Future[Any] = Future()
        future.set_result(call(*args, **kwargs))
        return future


def bench_here(patch: pytest.MonkeyPatch):
    """`run_bench` whose commands run in this process."""
    patch.setattr(execute, "_peerdg", lambda words, *_: command([*words], debug=False))

    def run(found: Plan, out: Path, **options: Any) -> Bench:
        return run_bench(found, out, connect=SameProcess, **options)

    return run


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    return bench_here(monkeypatch)
