"""Methods that make images: a run stopped during this work resumes to an equal end."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import peerdg
from peerdg.errors import ConfigError, NumericalError, Stopped
from peerdg.run.checkpoint import checkpoints, load_checkpoint
from tests.conftest import tiny_classifier, tiny_splits
from tests.methods.adversarial import STRONG, N, assert_equal, epochs_of, interrupt_part

OPTIONS: dict[str, dict[str, Any]] = {
    "ada": {"k": 2, "steps": 3, "rate": STRONG},
    "m-ada": {"k": 2, "steps": 2, "rate": STRONG, "wae_epochs": 1, "wae_batch": 8},
    "advst": {"k": 2, "every": 1, "steps": 3, "batch_size": 10, "head_dim": 6, "eta_min": 0.1},
}


def fit(out: Path, method: str, *, existing: Any = "refuse", **own: Any) -> None:
    peerdg.fit(
        tiny_splits(), out=out, model=tiny_classifier(batch_norm=True, dropout=0.3), method=method,
        existing=existing, progress=False, checkpoint_minutes=0, evaluate_every=2,
        pretrain={"epochs": 1, "batch_size": 8}, train={"epochs": 4, "batch_size": 8, "lr": 0.02},
        **{method: {**OPTIONS[method], **own}},
    )  # fmt: skip


@cache
def whole(method: str) -> Path:
    out = Path(mkdtemp()) / "whole"
    fit(out, method)
    return out


@pytest.mark.parametrize(
    ("method", "sizes"),
    [("ada", [48, 72, None, None]), ("m-ada", [48, 60, None, None]), ("advst", [48, 72, 72, 72])],
)
def test_a_run_trains_on_its_new_images(method: str, sizes: list[int | None]):
    out = whole(method)
    assert [r.get("pool_images") for r in epochs_of(out)] == sizes
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    steps = [e["steps"] for e in events if e["event"] == "epoch" and e["phase"] == "train"]
    assert steps == [3] * 4  # new images do not lengthen an epoch


@pytest.mark.parametrize(
    ("method", "of", "count", "epoch", "pool"),
    [
        ("ada", ("perturbing", "ascending"), 1, 0, 0),
        ("ada", ("perturbing", "ascending"), 6, 1, 1),
        ("m-ada", ("a pass",), 2, 0, 0),  # inside the training of the first auto-encoder
        ("m-ada", ("ascending",), 3, 1, 1),
        ("advst", ("ascending",), 2, 0, 0),
        ("advst", ("maximizing",), 3 + 3 + 3 + 2, 3, 2),
    ],
)
def test_a_run_stopped_while_making_images_resumes_and_ends_equal(
    tmp_path: Path, method: str, of: tuple[str, ...], count: int, epoch: int, pool: int
):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        interrupt_part(patch, count, of=of)
        with pytest.raises(Stopped):
            fit(out, method)
    state = load_checkpoint(checkpoints(out / "checkpoint")[-1]).state
    assert (state["phase"], state["epoch"], state["step"]) == ("train", epoch, 3)
    assert len(state["pool"]) == pool
    fit(out, method, existing="resume")
    assert_equal(out, whole(method))


def test_a_diverging_ascent_is_a_numerical_error_and_nothing_is_lost(tmp_path: Path):
    out = tmp_path / "run"
    with pytest.raises(NumericalError, match="ascent") as caught:
        fit(out, "ada", rate=1e38)
    assert caught.value.exit_code == 6
    assert json.loads((out / "failure.json").read_text())["rate"] == 1e38
    state = load_checkpoint(checkpoints(out / "checkpoint")[-1])
    assert (state.state["phase"], state.state["epoch"]) == ("train", 0)
    assert all(torch.isfinite(t).all() for t in state.tensors.values() if t.is_floating_point())
    assert state.additions == ()


def test_more_images_than_the_memory_budget_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", str(2 * N * 3 * 12 * 12 - 1))
    with pytest.raises(ConfigError, match="memory budget") as caught:
        fit(tmp_path / "run", "ada")
    assert caught.value.exit_code == 2
