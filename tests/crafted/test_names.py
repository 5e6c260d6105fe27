"""Distorted validation images do not count as targets."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from peerdg.data import CRAFTED, VALIDATION, is_target
from peerdg.data.splits import Splits
from peerdg.errors import DataError
from peerdg.evaluate.fluctuation import accuracy_series
from peerdg.report.runs import RunResult
from peerdg.run.progress import ConsoleProgress
from peerdg.train.settings import Phase, PhaseSettings
from tests.conftest import tiny_domain


def records_of(accuracy: dict[str, float], *, epoch: int = 1) -> list[dict]:
    return [
        {"kind": "evaluation", "epoch": epoch, "model": "model", "domain": d, "accuracy": a}
        for d, a in accuracy.items()
    ]


RECORDS = records_of(
    {VALIDATION: 90.0, f"{CRAFTED}blur": 50.0, f"{CRAFTED}edges": 30.0, "art": 70.0}
)


def test_a_target_is_neither_validation_nor_crafted():
    assert is_target("sketch") and is_target("crafted")
    assert not is_target("validation") and not is_target("crafted:blur")


def test_fluctuation_ignores_crafted_domains():
    assert accuracy_series(RECORDS, model="model", every=1, burn_in_periods=0) == {"art": [70.0]}


def test_the_target_mean_ignores_crafted_domains():
    run = RunResult(path=Path("run"), config={}, evaluations=RECORDS)
    assert run.targets == ["art"]
    assert run.score("model") == 70.0


def test_a_target_must_not_have_a_crafted_name():
    with pytest.raises(DataError, match="'crafted:blur' is reserved"):
        Splits(tiny_domain(), None, {"crafted:blur": tiny_domain()})


def test_progress_shows_one_mean_for_all_crafted_domains():
    text = io.StringIO()
    progress = ConsoleProgress(Console(file=text, width=200))
    phase = Phase("train", PhaseSettings(epochs=1), 1)
    progress.start_run([(phase, 1)], evaluation_steps=1.0)
    progress.start_phase("train", epoch=0, step=0)
    progress.evaluated(1, RECORDS)
    assert "validation 90.0  art 70.0  crafted 40.0" in text.getvalue()
    assert "blur" not in text.getvalue()
