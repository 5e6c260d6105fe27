"""The package treats methods by their metadata, shown with a new method."""

from dataclasses import dataclass
from typing import get_args

import pytest

from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA
from peerdg.methods.base import MethodSettings
from peerdg.methods.recipes import COMBINATIONS, RECIPES, Recipe, Reconstruction, reconstructed_on
from peerdg.methods.registry import (
    METHODS,
    is_reconstruction,
    method_names,
    settings_of,
    stored_settings,
)
from peerdg.options import option
from peerdg.run.config import resolve
from peerdg.run.time_budget import schedule, with_epochs
from tests.report.made import peer


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """A method for tests."""

    every: int = option(4, "epochs of a period", at_least=1, announced=True)
    critic: str = option("soft", "kind of critic")
    beta: float = option(0.5, "weight of the critic", announced=True, part_of="critic")

    period_option = "every"

    @property
    def is_baseline(self):
        return self.critic == "none"


@pytest.fixture
def mirage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a method that is unknown to the package."""
    monkeypatch.setitem(METHODS, "mirage", __name__)


def test_its_period_decides_evaluation_schedule_and_fluctuation(mirage):
    config = resolve({"method": "mirage", "mirage": {"every": 3}, "train": {"epochs": 9}})
    assert config.evaluate_every == 3
    assert config.method_settings.period == 3
    assert schedule(config).endswith("9 epochs, every 3")
    assert with_epochs(config, 60, {"mirage.every"}).method_settings.period == 3
    assert with_epochs(config, 10).method_settings.period == 2
    facts = peer(method="mirage", mirage={"every": 3})
    assert (facts.k, facts.period) == (3, 3)
    assert settings_of("erm").period_option is None and settings_of("erm")().period == 1


def test_settings_of_stored_runs_ignore_unknown_names_and_options(mirage):
    assert stored_settings("of-a-plugin", {}) is None
    assert stored_settings("mirage", {"every": 0}) is None  # invalid value
    settings = stored_settings("mirage", {"every": 2, "unknown": 1})
    assert settings is not None and settings.period == 2


def test_every_data_set_but_own_data_has_digits_or_photos():
    def places(where: Reconstruction) -> set[str]:
        return {name for name in BENCHMARKS if reconstructed_on(where, name)}

    data_sets = {where: places(where) for where in get_args(Reconstruction)}
    assert data_sets["no"] == data_sets["on digits"] & data_sets["on photos"] == set()
    assert data_sets["on digits"] | data_sets["on photos"] == {*BENCHMARKS} - {OWN_DATA}
    assert data_sets["everywhere"] == {*BENCHMARKS}


def test_a_recipe_is_a_reconstruction_if_it_or_its_objective_is(mirage, monkeypatch):
    assert not is_reconstruction("mirage", "pacs")
    monkeypatch.setitem(RECIPES, "fata-morgana", Recipe("", "mirage", "swa"))
    monkeypatch.setattr(settings_of("mirage"), "reconstruction", "on photos")
    assert is_reconstruction("fata-morgana", "pacs") and is_reconstruction("mirage", "pacs")
    assert not is_reconstruction("fata-morgana", "digits")
    recipe = Recipe("", "mirage", "swa", reconstruction="on digits")
    monkeypatch.setitem(RECIPES, "fata-morgana", recipe)
    assert is_reconstruction("fata-morgana", "digits") and not is_reconstruction("mirage", "digits")
    assert not is_reconstruction("of-a-plugin", "digits")


def test_every_method_without_published_code_or_values_is_marked():
    everywhere = {"simde", "metacnn", "pro-randconv"}
    expected = {
        "digits": {*everywhere, "l2d"},
        "pacs": {*everywhere, "m-ada", "me-ada", "pden"},
        OWN_DATA: everywhere,
    }
    for data, names in expected.items():
        known = (*method_names(), *RECIPES, *COMBINATIONS)
        assert {name for name in known if is_reconstruction(name, data)} == names, data


def test_a_network_trained_elsewhere_makes_an_oracle():
    assert not any(settings_of(name)().is_oracle for name in method_names())
    assert settings_of("miro")(oracle="runs/large").is_oracle
    assert settings_of("teacher")(model="runs/large").is_oracle
