"""A run of a given length: which epochs are chosen, and that a resume never chooses again."""

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import peerdg
from peerdg.api import Run
from peerdg.cli.main import run
from peerdg.errors import ConfigError, Stopped
from peerdg.run.config import RunConfig, resolve
from peerdg.run.folder import read_run_config
from peerdg.run.forecast import Costs, PhaseCosts
from peerdg.run.minutes import FEW_PERIODS, LEAST_PERIODS, TimeBudget, fit_epochs, keep_schedule
from peerdg.run.plan import run_plan
from peerdg.run.progress import ConsoleProgress, Silent
from tests.conftest import TinyEncoder, tiny_splits

# How many steps fit into the time depends on the machine, and in noise there is nothing to learn.
pytestmark = pytest.mark.filterwarnings("ignore:(Training|Pre-training) has learnt nothing")

IMAGES = 126
OPTIONS: dict[str, Any] = {
    "benchmark": "own-data",
    "backbone": "own",
    "pretrain": {"epochs": 60, "batch_size": 16},
    "train": {"epochs": 240, "batch_size": 16, "lr_step": 80},
    "peer": {"k": 5},
}
STEPS = IMAGES // 16


def costs(step: float, *, period: float = 0.0, evaluation: float = 0.0) -> Costs:
    phases = {"pretrain": PhaseCosts(step / 2), "train": PhaseCosts(step, period)}
    return Costs(phases, evaluation=evaluation, finish=3.0)


def fitted(
    minutes: float, measured: Costs, config: RunConfig | None = None, *, spent: float = 10.0,
    keep: frozenset[str] = frozenset(),
) -> tuple[RunConfig, float]:  # fmt: skip
    """The chosen config, and the seconds that a plain loop over its parts needs."""
    config = config or resolve(OPTIONS)
    budget = TimeBudget(minutes, keep=keep)
    chosen = fit_epochs(config, budget, measured, lambda c: run_plan(c, IMAGES), spent=spent)
    return chosen, spent + seconds_of(chosen, measured)


def seconds_of(config: RunConfig, measured: Costs) -> float:
    seconds = measured.finish + config.pretrain.epochs * STEPS * measured.phases["pretrain"].step
    seconds += measured.evaluation  # before the first epoch
    k = getattr(config.method_settings, "k", None)
    for epoch in range(1, config.train.epochs + 1):
        seconds += STEPS * measured.phases["train"].step
        seconds += measured.phases["train"].period if k and epoch % k == 0 else 0.0
        due = epoch % config.evaluate_every == 0 or epoch == config.train.epochs
        seconds += measured.evaluation if due else 0.0
    return seconds


@pytest.mark.parametrize("minutes", [2, 5, 30, 600])
@pytest.mark.parametrize("step", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("evaluation", [0.0, 2.0, 15.0])
def test_the_time_is_used_but_not_exceeded(minutes: float, step: float, evaluation: float):
    measured = costs(step, period=1.0, evaluation=evaluation)
    try:
        chosen, seconds = fitted(minutes, measured)
    except ConfigError:
        config = resolve(OPTIONS)
        shortest = replace(
            config,
            pretrain=replace(config.pretrain, epochs=1),
            train=replace(config.train, epochs=LEAST_PERIODS),
            evaluate_every=2,
            method_settings=replace(config.method_settings, k=1),
        )
        assert 10 + seconds_of(shortest, measured) > 0.97 * 60 * minutes
        return
    assert seconds <= 0.97 * 60 * minutes + 1e-6
    k, epochs = chosen.method_settings.k, chosen.train.epochs
    # Not even 0.95 of one more period, its pre-training and two evaluations would fit, or a run of
    # nearly as many epochs has a k nearer to the usual one.
    more = (STEPS * step * k * 1.25 + 1.0 + 2 * evaluation) + STEPS * step
    assert seconds + more > 0.95 * 0.97 * 60 * minutes
    assert epochs % k == 0 and k <= 5
    assert epochs // k >= (FEW_PERIODS if k > 1 else LEAST_PERIODS)
    # Evaluations fall on ends of periods, with at least one in the middle of the run.
    assert chosen.evaluate_every % k == 0
    assert chosen.evaluate_every < epochs


def test_costly_evaluations_are_further_apart():
    cheap, _ = fitted(30, costs(0.3, evaluation=0.1))
    costly, _ = fitted(30, costs(0.3, evaluation=20.0))
    assert cheap.evaluate_every == cheap.method_settings.k
    apart = costly.evaluate_every // costly.method_settings.k
    assert apart > 1
    evaluations = 1 + -(-costly.train.epochs // costly.evaluate_every)
    training = costly.train.epochs * STEPS * 0.3
    assert 20.0 * evaluations <= 0.2 * training or evaluations == 3


def test_pretraining_and_the_rate_schedule_shrink_in_proportion():
    chosen, _ = fitted(30, costs(0.3))
    share = chosen.train.epochs / 240
    assert chosen.pretrain.epochs == pytest.approx(60 * share, abs=0.5)
    assert chosen.train.lr_step == pytest.approx(80 * share, abs=0.5)
    assert replace(chosen.train, epochs=240, lr_step=80) == resolve(OPTIONS).train


def test_more_time_than_needed_means_more_epochs_and_the_same_k():
    chosen, _ = fitted(600, costs(0.3))
    assert chosen.train.epochs > 240
    assert chosen.method_settings.k == 5


def test_little_time_means_shorter_periods_not_fewer_than_a_few():
    chosen, _ = fitted(1, costs(0.5))
    assert chosen.method_settings.k == 1
    assert chosen.train.epochs >= LEAST_PERIODS


def test_what_the_user_chose_stays():
    keep = frozenset({"period", "evaluate_every", "pretrain.epochs"})
    config = replace(resolve(OPTIONS), evaluate_every=7)
    chosen, seconds = fitted(10, costs(0.2), config, keep=keep)
    assert (chosen.method_settings.k, chosen.evaluate_every, chosen.pretrain.epochs) == (5, 7, 60)
    assert chosen.train.epochs % 5 == 0
    assert seconds <= 0.97 * 600


def test_a_method_without_k_is_evaluated_a_few_times():
    options = {key: value for key, value in OPTIONS.items() if key != "peer"}
    config = resolve(options, {"method": "erm", "evaluate_every": 5})
    chosen, seconds = fitted(3, costs(0.5, evaluation=1.0), config)
    assert chosen.evaluate_every < chosen.train.epochs
    assert 0.8 * 180 < seconds <= 0.97 * 180


def test_too_little_time_is_refused_with_the_least_that_would_do():
    with pytest.raises(ConfigError, match=r"1 minutes are too few .* 1 \+ 3 epochs, k 1, takes"):
        fitted(1, costs(30.0))


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_a_time_must_be_positive(minutes: float):
    with pytest.raises(ConfigError, match="above 0"):
        TimeBudget(minutes)


def test_epochs_and_minutes_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = f"--out={tmp_path / 'run'}"
    for flag in ("--epochs=3", "--train.epochs=3"):
        assert run(["train", "digits-mini", "--minutes=1", flag, out], debug=False) == 2
        assert "exclude each other" in capsys.readouterr().err
    (tmp_path / "given.toml").write_text("[train]\nepochs = 3\n")
    file = f"--config={tmp_path / 'given.toml'}"
    assert run(["train", "digits-mini", "--minutes=1", file, out], debug=False) == 2
    assert "exclude each other" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="exclude each other"):
        peerdg.fit("digits-mini", out=tmp_path / "run", minutes=1, train={"epochs": 3})
    assert not (tmp_path / "run").exists()


SMALL = {
    "threads": 1,
    "pretrain": {"batch_size": 8},
    "train": {"batch_size": 8},
    "peer": {"head_dim": 4, "head_hidden": 8},
    "checkpoint_minutes": 0,
}


class Slow(TinyEncoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0005 * len(x))
        return super().forward(x)


def slow_model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peerdg.Classifier(Slow(), torch.nn.Linear(8, 3), classes=("a", "b", "c"))


def fit_minutes(out: Path, **options: Any) -> Run:
    """A short run of a given length; longer where the machine is busy."""
    for minutes in (0.05, 0.2, 0.8, 1.6):
        try:
            return peerdg.fit(
                tiny_splits(), out=out, model=slow_model(), minutes=minutes, **SMALL, **options
            )
        except ConfigError as error:
            assert "too few" in error.message
    raise AssertionError("The machine is too busy.")


def test_the_chosen_epochs_are_in_the_run_folder_and_are_those_of_the_run(tmp_path: Path):
    text = io.StringIO()
    progress = ConsoleProgress(Console(file=text, width=200))
    out = tmp_path / "run"
    done = fit_minutes(out, progress=progress)
    stored = read_run_config(out)
    assert "minutes" not in stored
    epochs = stored["train"]["epochs"]
    assert done.config.train.epochs == epochs
    assert done.config.tables() == stored
    trained = [r["epoch"] for r in done.records if r["kind"] == "epoch" and r["phase"] == "train"]
    assert trained == list(range(1, epochs + 1))
    assert f"+ {epochs} epochs, k {stored['peer']['k']}, in place of" in text.getvalue()
    assert "fits it to" not in text.getvalue()


class StopAt(Silent):
    """Asks for a stop as a signal would, after some steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, *_: object, **__: object) -> None:
        import os
        import signal

        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_resume_keeps_the_epochs_and_ends_like_a_run_that_was_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        fit_minutes(out, progress=StopAt(12))
    config = (out / "config.toml").read_bytes()
    monkeypatch.setattr("peerdg.run.plan.measure_costs", None)  # nothing is measured again
    resumed = peerdg.fit(
        tiny_splits(), out=out, model=slow_model(), minutes=0.1, existing="resume", **SMALL
    )
    assert (out / "config.toml").read_bytes() == config
    chosen = resumed.config
    sections = {
        "pretrain": {**SMALL["pretrain"], "epochs": chosen.pretrain.epochs},
        "train": {**SMALL["train"], "epochs": chosen.train.epochs},
        "peer": {**SMALL["peer"], "k": chosen.method_settings.k},
        "evaluate_every": chosen.evaluate_every,
    }
    whole = peerdg.fit(
        tiny_splits(), out=tmp_path / "whole", model=slow_model(), **{**SMALL, **sections}
    )
    assert (out / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()
    for name, value in whole.model.classifier.state_dict().items():
        assert torch.equal(value, resumed.model.classifier.state_dict()[name]), name


def test_a_stored_schedule_wins_over_the_preset():
    config = resolve(OPTIONS)
    stored, _ = fitted(5, costs(0.3))
    assert keep_schedule(config, stored.tables()) == stored
    assert keep_schedule(stored, config.tables()) == config


def test_what_the_user_says_at_a_resume_is_not_hidden_by_the_stored_schedule():
    stored, _ = fitted(5, costs(0.3))
    k = stored.method_settings.k + 1
    wanted = resolve(OPTIONS, {"peer": {"k": k}, "pretrain": {"epochs": 77}, "evaluate_every": 13})
    keep = frozenset({"period", "pretrain.epochs", "evaluate_every"})
    found = keep_schedule(wanted, stored.tables(), keep=keep)
    assert (found.method_settings.k, found.pretrain.epochs, found.evaluate_every) == (k, 77, 13)
    assert found.train.epochs == stored.train.epochs


def test_a_run_that_cannot_be_measured_asks_for_epochs(tmp_path: Path):
    class Uncopied(TinyEncoder):
        def __deepcopy__(self, memo: dict) -> "Uncopied":
            raise TypeError("one of a kind")

    model = peerdg.Classifier(Uncopied(), torch.nn.Linear(8, 3), classes=("a", "b", "c"))
    with pytest.raises(ConfigError, match="cannot be measured") as caught:
        peerdg.fit(
            tiny_splits(), out=tmp_path / "run", model=model, method="erm", minutes=1,
            pretrain={"batch_size": 8}, train={"batch_size": 8},
        )  # fmt: skip
    assert "--epochs" in (caught.value.hint or "")
    assert not (tmp_path / "run").exists()
