"""A bench of seconds: a few small images, two steps per epoch."""

from pathlib import Path
from typing import Any

from peerdg.benches.plan import Plan, PlannedRun, make_plan
from peerdg.report.result import RunResult
from peerdg.report.runs import read_run
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.progress import Silent
from peerdg.run.runner import execute
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
    run = RunFolder.open(out, config)
    try:
        execute(config, run, Silent())
    finally:
        run.close()
    return read_run(out)


def trained_run(run: PlannedRun, folder: Path) -> RunResult:
    return trained(run.config, folder / run.name)
