"""`--select`: the deployed model is that of the chosen epoch."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.api import Run
from peerdg.errors import ConfigError
from peerdg.evaluate.selection import best_so_far
from tests.conftest import tiny_classifier, tiny_splits
from tests.run.stops import stopped_at


def fit(out: Path, select: str, **options) -> Run:
    return peerdg.fit(
        tiny_splits(),
        out=out,
        model=tiny_classifier(batch_norm=True),
        method="randaugment",
        randaugment={"k": 1},
        pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 6, "batch_size": 8, "lr": 0.05},
        evaluate_every=1,
        checkpoint_minutes=0.0,
        keep_snapshots=True,
        select=select,
        **options,
    )


def evaluation(epoch: int, domain: str, accuracy: float) -> dict:
    return {"kind": "evaluation", "model": "m", "epoch": epoch, "domain": domain,
            "accuracy": accuracy}  # fmt: skip


def test_the_latest_of_equally_good_epochs_is_chosen_and_the_start_only_if_alone():
    scores = [99.0, 50.0, 80.0, 80.0, 70.0]
    records = [evaluation(epoch, "validation", score) for epoch, score in enumerate(scores)]
    assert best_so_far(records, "source-val", model="m") == (3, 80.0)
    assert best_so_far(records, "last", model="m") == (4, None)
    assert best_so_far(records[:1], "source-val", model="m") == (0, 99.0)


def test_the_model_of_the_best_validated_epoch_is_deployed_also_after_a_stop(tmp_path: Path):
    run = fit(tmp_path / "run", "source-val")
    scores = {
        record["epoch"]: record["accuracy"]
        for record in run.records
        if record["kind"] == "evaluation" and record["domain"] == "validation"
    }
    best = max(epoch for epoch in scores if epoch and scores[epoch] == max(
        value for other, value in scores.items() if other))  # fmt: skip
    assert best < 6  # else this test would not tell the rule from `last`
    expected = load_file(tmp_path / f"run/snapshots/{best:06d}.safetensors")
    stored = load_file(tmp_path / "run/model/model.safetensors")
    for name, value in expected.items():
        assert torch.equal(stored[name], value), name
        assert torch.equal(run.model.classifier.state_dict()[name], value), name
    training = run.model.description["training"]
    assert training["accuracy"]["validation"]["accuracy"] == scores[best]
    with stopped_at(14):
        fit(tmp_path / "again", "source-val")
    fit(tmp_path / "again", "source-val", existing="resume")
    again = load_file(tmp_path / "again/model/model.safetensors")
    assert all(torch.equal(again[name], stored[name]) for name in stored)


def test_a_rule_without_its_images_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="crafted"):
        fit(tmp_path / "run", "crafted-val", crafted="off")


def test_a_bench_refuses_to_select(tmp_path: Path):
    with pytest.raises(ConfigError, match="last epoch"):
        peerdg.bench("digits-mini", methods="erm", out=tmp_path, select="source-val")
