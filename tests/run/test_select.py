"""`--select`: the deployed model is that of the chosen epoch."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.api import Run
from peerdg.errors import ConfigError, OutputError
from peerdg.evaluate.selection import Trajectory, best_so_far
from peerdg.run import model as model_module
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
    assert best_so_far(records, "source-val", model="m") == 3
    assert best_so_far(records[:1], "source-val", model="m") == 0


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
    with stopped_at(19):
        fit(tmp_path / "again", "source-val")
    fit(tmp_path / "again", "source-val", existing="resume")
    again = load_file(tmp_path / "again/model/model.safetensors")
    assert all(torch.equal(again[name], stored[name]) for name in stored)


def test_a_run_without_any_evaluation_is_stored(tmp_path: Path):
    splits = replace(tiny_splits(), validation=None, targets={})
    options = {"pretrain": {"epochs": 0}, "train": {"epochs": 1, "batch_size": 8}}
    run = peerdg.fit(splits, out=tmp_path, model=tiny_classifier(), method="erm", **options)
    assert run.accuracy == {} and run.model.description["progress"]["complete"]


def test_a_network_that_is_best_before_its_first_snapshot_is_deployed(tmp_path: Path):
    """With k = 3 the task model of epochs 1 and 2 is the network that the user passed."""
    model = tiny_classifier()
    before = copy.deepcopy(model.state_dict())
    with pytest.MonkeyPatch.context() as patch:
        scores = {0: 50.0, 1: 90.0, 2: 90.0, 3: 10.0}
        patch.setattr(Trajectory, "mean", lambda _, epoch, domains: scores[epoch])
        run = peerdg.fit(
            tiny_splits(), out=tmp_path, model=model, method="peer", select="source-val",
            peer={"k": 3, "head_dim": 4}, pretrain={"epochs": 0}, evaluate_every=1,
            train={"epochs": 3, "batch_size": 8},
        )  # fmt: skip
    assert run.model.description["training"]["epoch"] == 2
    assert run.model.description["progress"]["epoch"] == 0
    for name, value in run.model.classifier.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_model_of_another_epoch_is_never_taken_for_the_selected_one(tmp_path: Path):
    """A disk that was full when the best epoch ended, and a run that is resumed later."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OutputError):
        write = model_module.write_model

        def full(folder: Path, tensors: dict, description: dict) -> str:
            if description["training"]["epoch"] == 4:
                raise OutputError("The disk is full.")
            return write(folder, tensors, description)

        patch.setattr(model_module, "write_model", full)
        fit(tmp_path / "run", "source-val")
    run = fit(tmp_path / "run", "source-val", existing="resume")
    training = run.model.description["training"]
    expected = load_file(tmp_path / f"run/snapshots/{training['epoch']:06d}.safetensors")
    assert all(torch.equal(run.model.classifier.state_dict()[n], v) for n, v in expected.items())


def test_a_rule_without_its_images_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="crafted"):
        fit(tmp_path / "run", "crafted-val", crafted="off")


def test_a_bench_refuses_to_select(tmp_path: Path):
    variant = {"chosen": {"method": "erm", "select": "source-val"}}
    for methods, options in (("erm", {"select": "source-val"}), ("chosen", {"variant": variant})):
        with pytest.raises(ConfigError, match="last epoch"):
            peerdg.bench("digits-mini", methods=methods, out=tmp_path, **options)
