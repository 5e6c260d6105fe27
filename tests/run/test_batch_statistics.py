"""One rule for the statistics of batch-normalized networks, whichever method trained them."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import update_bn

import peerdg
from peerdg.api import Run
from peerdg.errors import Stopped
from peerdg.models.classifier import Classifier
from tests.conftest import tiny_classifier, tiny_splits
from tests.methods.tiny import TINY
from tests.run.stops import stopped_at

METHODS: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "randaugment": {"method": "randaugment", "randaugment": {"k": 1}},
    "peer": {"method": "peer", "peer": {"k": 1, "head_dim": 4}},
    "peer copy": {"method": "peer", "peer": {"k": 1, "head_dim": 4, "bn": "copy"}},
    "peer latest": {"method": "peer", "peer": {"k": 1, "head_dim": 4, "average": False}},
    "peer reset": {"method": "peer", "peer": {"k": 1, "head_dim": 4, "reset_proxy": True}},
}
STATISTICS = ("running_mean", "running_var")


def fit(
    out: Path,
    name: str,
    *,
    batch_norm: bool = True,
    model: Classifier | None = None,
    existing: Any = "refuse",
    pretrain: int = 1,
    **options: Any,
) -> Run:
    return peerdg.fit(
        tiny_splits(),
        out=out,
        model=model or tiny_classifier(batch_norm=batch_norm, dropout=0.3),
        existing=existing,
        pretrain={"epochs": pretrain, "batch_size": 8},
        **{
            "evaluate_every": 1,
            "train": {"epochs": 3, "batch_size": 8, "lr": 0.02},
            **METHODS[name],
            **options,
        },
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    folder = tmp_path_factory.mktemp("runs")
    made = {}
    for name in METHODS:
        for rule in ("clean", "trained"):
            out = folder / f"{name}-{rule}"
            made[name, rule] = fit(out, name, batch_statistics=rule, keep_snapshots=True)
    return made


def records(run: Run, kind: str) -> list[dict[str, Any]]:
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def stored(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.path / "model/model.safetensors")


def last_state(run: Run) -> dict[str, torch.Tensor]:
    return load_file(sorted((run.path / "checkpoint").rglob("*.safetensors"))[-1])


@pytest.mark.parametrize("name", METHODS)
def test_the_stored_model_has_statistics_of_the_clean_images(runs, name):
    found = stored(runs[name, "clean"])
    model = tiny_classifier(batch_norm=True)
    model.load_state_dict(found)
    update_bn([tiny_splits().train.images], model)  # torch's own, in one batch
    for statistic in STATISTICS:
        reference = getattr(model.encoder.norm, statistic)
        torch.testing.assert_close(found[f"encoder.norm.{statistic}"], reference)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rule", ["clean", "trained"])
def test_the_stored_model_is_the_one_that_was_evaluated(runs, name, rule):
    run = runs[name, rule]
    deployed = "task" if name.startswith("peer") else "model"
    model = tiny_classifier(batch_norm=True).requires_grad_(False).eval()
    model.load_state_dict(stored(run))
    returned = run.model.classifier.state_dict()
    assert all(torch.equal(value, returned[key]) for key, value in stored(run).items())
    for domain, images in tiny_splits().targets.items():
        logits = model(images.images)
        accuracy = 100 * (logits.argmax(1) == images.labels).double().mean()
        loss = torch.nn.functional.cross_entropy(logits, images.labels)
        last = [
            record
            for record in records(run, "evaluation")
            if (record["model"], record["domain"]) == (deployed, domain)
        ][-1]
        assert last["accuracy"] == pytest.approx(float(accuracy))
        assert last["loss"] == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_the_rule_does_not_touch_training(runs, name):
    clean, trained = runs[name, "clean"], runs[name, "trained"]
    assert records(clean, "epoch") == records(trained, "epoch")
    for key, value in stored(clean).items():
        if not key.startswith("encoder.norm.") or key.endswith(("weight", "bias")):
            assert torch.equal(value, stored(trained)[key])
    ours, theirs = last_state(clean), last_state(trained)
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_with_trained_statistics_a_single_network_keeps_what_its_training_left(runs):
    run = runs["randaugment", "trained"]
    state = last_state(run)
    for statistic in STATISTICS:
        left = state[f"method.model.encoder.norm.{statistic}"]
        assert torch.equal(stored(run)[f"encoder.norm.{statistic}"], left)
        clean = stored(runs["randaugment", "clean"])[f"encoder.norm.{statistic}"]
        assert not torch.allclose(left, clean)


def test_with_trained_statistics_the_task_model_has_the_mean_of_its_snapshots(runs):
    run = runs["peer", "trained"]
    snapshots = [load_file(run.path / f"snapshots/{epoch:06d}.safetensors") for epoch in (1, 2, 3)]
    for statistic in STATISTICS:
        key = f"encoder.norm.{statistic}"
        mean = torch.stack([snapshot[key] for snapshot in snapshots]).mean(0)
        torch.testing.assert_close(stored(run)[key], mean)


def test_without_averaging_the_task_model_has_the_statistics_of_the_last_snapshot(runs):
    run = runs["peer latest", "trained"]
    last = load_file(run.path / "snapshots/000003.safetensors")
    assert all(torch.equal(value, last[key]) for key, value in stored(run).items())


def test_model_and_records_name_the_rule(runs):
    for (_, rule), run in runs.items():
        training = json.loads((run.path / "model/model.json").read_text())["training"]
        assert training["batch_statistics"] == rule
        assert {r["batch_statistics"] for r in records(run, "evaluation")} == {rule}


def test_the_proxy_is_evaluated_by_the_same_rule_as_the_task_model(runs):
    """With one snapshot, proxy and task model are one network, and so are their accuracies."""
    for name, rule in (("peer", "clean"), ("peer copy", "clean"), ("peer", "trained")):
        first = [r for r in records(runs[name, rule], "evaluation") if r["epoch"] == 1]
        by_model = {
            model: [r["loss"] for r in first if r["model"] == model] for model in ("proxy", "task")
        }
        assert by_model["proxy"] == pytest.approx(by_model["task"], rel=1e-5)


def test_networks_without_batch_normalization_have_no_rule(tmp_path):
    run = fit(tmp_path / "run", "erm", batch_norm=False)
    assert not any("batch_statistics" in record for record in records(run, "evaluation"))
    assert "batch_statistics" not in (run.path / "model/model.json").read_text()


FROZEN: dict[str, Any] = {"method": "advst", "advst": TINY["advst"]}


@pytest.mark.parametrize("rule", ["clean", "trained"])
def test_a_network_trained_with_frozen_statistics_is_stored_with_these_and_says_so(tmp_path, rule):
    """They are those of pre-training, which a run of ERM with the same seed has as well."""
    run = fit(tmp_path / "run", "erm", batch_statistics=rule, **FROZEN)
    short = fit(tmp_path / "erm", "erm", batch_statistics="trained", train={"epochs": 0})
    for statistic in STATISTICS:
        key = f"encoder.norm.{statistic}"
        assert torch.equal(stored(run)[key], stored(short)[key])
    assert {r["batch_statistics"] for r in records(run, "evaluation")} == {"frozen"}
    training = json.loads((run.path / "model/model.json").read_text())["training"]
    assert training["batch_statistics"] == "frozen"


@pytest.mark.parametrize("inside", ["recalibration", "evaluation"])
def test_a_stop_saves_the_statistics_of_training(runs, tmp_path, inside):
    model = tiny_classifier(batch_norm=True, dropout=0.3)
    steps = []

    def signal_once(*_: Any) -> None:
        if torch.is_grad_enabled():
            steps.append("training")
        # Three steps of pre-training, three of the first epoch.
        elif len(steps) == 6 and torch.is_inference_mode_enabled() == (inside == "evaluation"):
            steps.clear()
            signal.raise_signal(signal.SIGTERM)

    model.encoder.register_forward_pre_hook(signal_once)
    with pytest.raises(Stopped):
        fit(tmp_path / "run", "erm", model=model)
    state = load_file(next((tmp_path / "run/checkpoint").rglob("*.safetensors")))
    expected = load_file(runs["erm", "trained"].path / "snapshots/000001.safetensors")
    for key, value in expected.items():
        assert torch.equal(state[f"method.model.{key}"], value), key


def test_the_model_so_far_of_a_stopped_run_is_as_it_was_evaluated(tmp_path):
    with stopped_at(8):  # in the second epoch
        fit(tmp_path / "run", "randaugment")
    found = load_file(tmp_path / "run/model/model.safetensors")
    model = tiny_classifier(batch_norm=True)
    model.load_state_dict(found)
    update_bn([tiny_splits().train.images], model)
    torch.testing.assert_close(found["encoder.norm.running_var"], model.encoder.norm.running_var)
