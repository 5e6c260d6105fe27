"""Runs with one seed and several train seeds share their start and nothing after it."""

import json
from pathlib import Path

import pytest

import peerdg
from peerdg.methods.registry import method_names
from tests.conftest import tiny_classifier, tiny_splits
from tests.methods.tiny import TINY

OPTIONS = {
    "method": "peer",
    "peer": {"k": 1, "head_dim": 4, "head_hidden": 8},
    "pretrain": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "evaluate_every": 1,
    "crafted": "off",
    "seed": 3,
}


def fit(out: Path, *, existing="refuse", **options):
    model = tiny_classifier(dropout=0.3)
    return peerdg.fit(
        tiny_splits(), out=out, model=model, existing=existing, **OPTIONS | options
    ).path


def lines(run: Path, *, phase: str) -> list[str]:
    records = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in records if json.loads(line)["phase"] == phase]


def weights(run: Path) -> bytes:
    return (run / "model/model.safetensors").read_bytes()


def test_the_seed_itself_as_train_seed_changes_nothing(tmp_path):
    plain, given = fit(tmp_path / "plain"), fit(tmp_path / "given", train_seed=3)
    assert weights(given) == weights(plain)
    assert (given / "metrics.jsonl").read_bytes() == (plain / "metrics.jsonl").read_bytes()


def test_another_train_seed_keeps_the_start_and_changes_the_main_phase(tmp_path):
    first, second = fit(tmp_path / "first"), fit(tmp_path / "second", train_seed=9)
    assert lines(first, phase="pretrain") == lines(second, phase="pretrain")
    start, other = ([x for x in lines(run, phase="train") if json.loads(x)["epoch"] == 0
                     and json.loads(x)["kind"] == "evaluation"]
                    for run in (first, second))  # fmt: skip
    assert start == other
    assert start
    assert weights(first) != weights(second)
    policies = [
        next(r["policy"] for r in map(json.loads, lines(run, phase="train")) if "policy" in r)
        for run in (first, second)
    ]
    assert policies[0] != policies[1]
    about = json.loads((second / "model/model.json").read_text())["training"]
    assert (about["seed"], about["train_seed"]) == (3, 9)


@pytest.mark.filterwarnings("ignore::peerdg.errors.PeerdgWarning")  # no epochs: as intended
@pytest.mark.parametrize("method", method_names())
def test_with_every_method_the_trained_network_starts_as_with_another_train_seed(method, tmp_path):
    starts = []
    for seed in (3, 9):
        run = peerdg.fit(
            tiny_splits(),
            out=tmp_path / str(seed),
            model=tiny_classifier(),
            method=method,
            pretrain={"epochs": 1, "batch_size": 8, "lr": 0.01},
            train={"epochs": 0, "batch_size": 8},
            crafted="off",
            seed=3,
            train_seed=seed,
            **({method: own} if (own := TINY.get(method, {})) else {}),
        ).path
        records = [json.loads(line) for line in lines(run, phase="train")]
        trained = records[0]["model"]  # the trained network comes first
        starts.append({r["domain"]: r["loss"] for r in records if r["model"] == trained})
    assert starts[0] == starts[1]
    assert starts[0]
