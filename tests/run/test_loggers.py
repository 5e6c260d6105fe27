"""Loggers get the numbers of the records."""

import sys
from pathlib import Path

import pytest

import peerdg
from peerdg.errors import ConfigError
from peerdg.report.runs import read_run
from peerdg.run.folder import RunFolder
from tests.conftest import tiny_classifier, tiny_splits


def fit(out: Path, logger: str) -> RunFolder:
    peerdg.fit(
        tiny_splits(), method="peer", model=tiny_classifier(), out=out, progress=False,
        peer={"k": 1, "head_dim": 4}, train={"epochs": 2, "batch_size": 8}, evaluate_every=1,
        pretrain={"epochs": 0}, crafted="off", logger=logger,
    )  # fmt: skip
    return RunFolder(out)


def test_tensorboard_has_the_numbers_of_the_records(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = fit(tmp_path / "run", "tensorboard")
    found = events.EventAccumulator(str(run.path / "tensorboard")).Reload()
    records = run.metrics.read()
    losses = [(r["epoch"], r["loss"]) for r in records if r["kind"] == "epoch"]
    logged = [(event.step, event.value) for event in found.Scalars("train/loss")]
    assert [step for step, _ in logged] == [epoch for epoch, _ in losses] == [1, 2]
    assert [v for _, v in logged] == pytest.approx([v for _, v in losses])
    task = [r["accuracy"] for r in records if (r.get("domain"), r.get("model")) == ("one", "task")]
    assert [event.value for event in found.Scalars("one/task")] == pytest.approx(task)


def test_weights_and_biases_writes_a_run_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    run = fit(tmp_path / "run", "wandb")
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert read_run(run.path).status == "done"  # no links in the run folder


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb"):
        fit(tmp_path / "run", "wandb")
    assert not (tmp_path / "run").exists()  # so that the command can be repeated without a logger
