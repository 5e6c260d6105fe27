"""A run of a given length: which epochs are chosen, and that a resume never chooses again."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import peerdg
from peerdg.api import Run
from peerdg.cli.main import run
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier
from peerdg.run.config import RunConfig, resolve
from peerdg.run.folder import read_run_config
from peerdg.run.prepare import load_inputs
from peerdg.run.progress import ProgressDisplay
from peerdg.run.time_budget import (
    MIN_EPOCHS,
    MIN_PERIODS,
    Costs,
    TimeBudget,
    fit_epochs,
    keep_schedule,
    measure_costs,
)
from tests.conftest import TinyEncoder, tiny_classifier, tiny_domain, tiny_splits
from tests.methods.tiny import TINY as TINY_METHODS
from tests.reliability.tiny_run import OPTIONS as TINY
from tests.run.stops import stopped_at

# How many steps fit into the time depends on the machine, and in noise there is nothing to learn.
pytestmark = pytest.mark.filterwarnings("ignore:(Training|Pre-training) has learned nothing")

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
    return Costs({"pretrain": step / 2, "train": step}, period, evaluation)


def fitted(
    minutes: float,
    measured: Costs,
    config: RunConfig | None = None,
    *,
    given: tuple[str, ...] = (),
) -> tuple[RunConfig, float]:
    """Return the chosen config, and the seconds that a plain loop over its parts needs."""
    config = config or resolve(OPTIONS)
    budget = TimeBudget(minutes, 0.0, given)
    chosen = fit_epochs(config, budget, measured, images=IMAGES, spent=10.0)
    return chosen, 10.0 + seconds_of(chosen, measured)


def seconds_of(config: RunConfig, measured: Costs) -> float:
    seconds = config.pretrain.epochs * STEPS * measured.step["pretrain"]
    seconds += measured.evaluation  # before the first epoch
    k = getattr(config.method_settings, "k", None)
    for epoch in range(1, config.train.epochs + 1):
        seconds += STEPS * measured.step["train"]
        seconds += measured.period if k and epoch % k == 0 else 0.0
        due = epoch % config.evaluate_every == 0 or epoch == config.train.epochs
        seconds += measured.evaluation if due else 0.0
    return seconds


@pytest.mark.parametrize("minutes", [2, 5, 30, 600])
def test_the_time_is_used_but_not_exceeded(minutes: float):
    for step in (0.05, 0.3, 2.0):
        for evaluation in (0.0, 2.0, 15.0):
            measured = costs(step, period=1.0, evaluation=evaluation)
            try:
                chosen, seconds = fitted(minutes, measured)
            except ConfigError:
                least = 10 + STEPS * step * (MIN_EPOCHS + 0.5) + MIN_EPOCHS
                least += (1 + MIN_EPOCHS) * evaluation
                assert least > 0.97 * 60 * minutes
                continue
            assert seconds <= 0.97 * 60 * minutes + 1e-6
            k, epochs = chosen.method_settings.k, chosen.train.epochs
            # One more period with its pre-training and two evaluations would not fit.
            more = (STEPS * step * k * 1.25 + 1.0 + 2 * evaluation) + STEPS * step
            assert seconds + more > 0.9 * 0.97 * 60 * minutes
            assert epochs % k == 0 and k <= 5
            assert epochs // k >= (MIN_PERIODS if k > 1 else MIN_EPOCHS)
            # Evaluations fall on ends of periods, with at least one in the middle of the run.
            assert chosen.evaluate_every % k == 0
            assert chosen.evaluate_every < epochs


def test_pretraining_and_the_rate_schedule_shrink_in_proportion():
    chosen, _ = fitted(30, costs(0.3))
    share = chosen.train.epochs / 240
    assert chosen.pretrain.epochs == pytest.approx(60 * share, abs=0.5)
    assert chosen.train.lr_step == pytest.approx(80 * share, abs=0.5)
    assert replace(chosen.train, epochs=240, lr_step=80) == resolve(OPTIONS).train


def test_k_becomes_shorter_with_little_time_and_stays_with_much():
    much, _ = fitted(600, costs(0.3))
    assert much.train.epochs > 240 and much.method_settings.k == 5
    little, _ = fitted(1, costs(1.0))
    assert little.train.epochs >= MIN_EPOCHS and little.method_settings.k == 1


def test_what_the_user_chose_stays():
    given = ("peer.k", "evaluate_every", "pretrain.epochs")
    config = replace(resolve(OPTIONS), evaluate_every=7)
    chosen, seconds = fitted(10, costs(0.2), config, given=given)
    assert (chosen.method_settings.k, chosen.evaluate_every, chosen.pretrain.epochs) == (5, 7, 60)
    assert chosen.train.epochs % 5 == 0
    assert seconds <= 0.97 * 600


def test_a_method_without_k_is_evaluated_a_few_times():
    options = {key: value for key, value in OPTIONS.items() if key != "peer"}
    config = resolve(options, {"method": "erm", "evaluate_every": 5})
    chosen, seconds = fitted(3, costs(0.5, evaluation=1.0), config)
    assert 5 <= chosen.train.epochs / chosen.evaluate_every <= 10
    assert 0.8 * 180 < seconds <= 0.97 * 180


def test_too_little_time_is_refused_with_the_least_that_would_do():
    with pytest.raises(ConfigError, match=r"not enough .* 1 \+ 3 epochs, k 1"):
        fitted(1, costs(30.0))


def test_a_time_must_be_positive():
    for minutes in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="above 0"):
            TimeBudget(minutes, 0.0)


def test_epochs_and_minutes_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "given.toml").write_text("[train]\nepochs = 3\n")
    for flag in ("--train.epochs=3", f"--config={tmp_path / 'given.toml'}"):
        out = f"--out={tmp_path / 'run'}"
        assert run(["train", "digits-mini", "--minutes=1", flag, out], debug=False) == 2
        assert "cannot be used together" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


BATCHES = {"pretrain": {"batch_size": 8}, "train": {"batch_size": 8}}
SMALL = {
    "threads": 1,
    **BATCHES,
    "peer": {"head_dim": 4, "head_hidden": 8},
    "checkpoint_minutes": 0,
}


def test_the_chosen_epochs_are_those_of_the_run_and_of_its_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("peerdg.run.time_budget.measure_costs", lambda *_, **__: costs(1.0))
    out, notes, progress = tmp_path / "run", [], ProgressDisplay()
    progress.note = notes.append  # type: ignore[method-assign]

    def fit(**options: Any) -> Run:
        model = tiny_classifier()
        return peerdg.fit(tiny_splits(), out=out, model=model, minutes=1, **SMALL, **options)

    with stopped_at(12):
        fit(progress=progress)
    stored = read_run_config(out)
    epochs = stored["train"]["epochs"]
    assert "minutes" not in stored
    assert any(f"+ {epochs} epochs, k {stored['peer']['k']}" in note for note in notes)
    monkeypatch.setattr("peerdg.run.time_budget.measure_costs", None)  # nothing is measured again
    done = fit(existing="resume")
    assert done.config.tables() == read_run_config(out) == stored
    trained = [r["epoch"] for r in done.records if r["kind"] == "epoch" and r["phase"] == "train"]
    assert trained == list(range(1, epochs + 1))


def test_a_stored_schedule_wins_over_the_preset_but_not_over_the_user():
    config = resolve(OPTIONS)
    stored, _ = fitted(5, costs(0.3))
    assert keep_schedule(config, stored.tables()) == stored
    assert keep_schedule(stored, config.tables()) == config
    k = stored.method_settings.k + 1
    wanted = resolve(OPTIONS, {"peer": {"k": k}, "pretrain": {"epochs": 77}, "evaluate_every": 13})
    given = ("peer.k", "pretrain.epochs", "evaluate_every")
    found = keep_schedule(wanted, stored.tables(), given)
    assert (found.method_settings.k, found.pretrain.epochs, found.evaluate_every) == (k, 77, 13)
    assert found.train.epochs == stored.train.epochs


def test_a_run_that_cannot_be_measured_asks_for_epochs(tmp_path: Path, monkeypatch):
    def fail(*_: Any, **__: Any) -> Costs:
        raise TypeError("cannot be copied")

    monkeypatch.setattr("peerdg.run.time_budget.measure_costs", fail)
    with pytest.raises(ConfigError, match="cannot be measured"):
        peerdg.fit(tiny_splits(), out=tmp_path / "run", model=tiny_classifier(), minutes=1, **SMALL)
    assert not (tmp_path / "run").exists()


# Measuring


def measured(model: Classifier, options: dict[str, Any], images: int = 96) -> Costs:
    config = resolve({"benchmark": "own-data", "backbone": "own", "crafted": "off"}, options)
    targets = {"one": tiny_domain("one", n=60)}
    splits = Splits(tiny_domain(n=images), tiny_domain("validation", n=40), targets)
    inputs = load_inputs(config, splits=splits, model=model)
    return measure_costs(config, inputs, seconds=0.5)


def options_of(method: str) -> dict[str, Any]:
    common = {key: TINY[key] for key in ("pretrain", "train", "threads")}
    tiny = TINY_METHODS.get(method, {})
    return {**common, "method": method, **({method: tiny} if tiny else {})}


@pytest.mark.parametrize("method", ["erm", "peer", "m-ada", "l2d"])
def test_measuring_leaves_the_network_and_the_global_generator_as_they_are(method: str):
    model = tiny_classifier(batch_norm=True, dropout=0.2).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = measured(model, options_of(method))
    assert found.step["train"] > 0 and found.evaluation > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Sleeper(TinyEncoder):
    """Takes a known time for each image and counts them."""

    SECONDS = 0.001
    images = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Sleeper.images += len(x)
        time.sleep(self.SECONDS * len(x))
        return super().forward(x)


def sleeper() -> Classifier:
    return Classifier(Sleeper(), torch.nn.Linear(8, 3), classes=("a", "b", "c"))


def test_costs_are_those_of_the_images_that_go_through_the_network():
    """Sleeping is never shorter than asked for. How much longer is left open."""
    batch = TINY["train"]["batch_size"]
    peer, erm = (measured(sleeper(), options_of(m)) for m in ("peer", "erm"))
    for found in (peer, erm):
        assert found.step["pretrain"] >= Sleeper.SECONDS * batch
    assert erm.step["train"] >= Sleeper.SECONDS * batch
    assert peer.step["train"] >= Sleeper.SECONDS * 2 * batch  # both views
    assert peer.period >= Sleeper.SECONDS * 96  # the task model's features of all images
    assert erm.evaluation >= Sleeper.SECONDS * 100
    assert peer.evaluation >= Sleeper.SECONDS * 200  # two networks


def test_only_a_part_of_long_work_is_measured():
    options = options_of("ada")
    options["ada"] = {**options["ada"], "steps": 40, "every": 1}
    Sleeper.images = 0
    found = measured(sleeper(), options, images=960)
    assert found.period >= Sleeper.SECONDS * 960 * 40
    assert Sleeper.images < 960 * 40 / 2
    Sleeper.images = 0
    found = measured(sleeper(), options_of("peer"), images=4000)
    assert Sleeper.images < 4000
    assert found.period >= Sleeper.SECONDS * 4000


def test_a_given_step_of_the_learning_rate_is_scaled_and_kept():
    given = ("train.lr_step",)
    chosen, _ = fitted(3, costs(0.1), given=given)
    assert chosen.train.lr_step != OPTIONS["train"]["lr_step"]
    assert keep_schedule(resolve(OPTIONS), chosen.tables(), given) == chosen


def test_slow_evaluations_leave_most_of_the_time_for_training():
    chosen, seconds = fitted(3, costs(0.1, evaluation=15.0))
    quick, _ = fitted(3, costs(0.1))
    assert seconds <= 180 and chosen.train.epochs > 0.6 * quick.train.epochs
