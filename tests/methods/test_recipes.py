"""Recipes expand to a method with options."""

import pytest

from peerdg.methods import recipes
from peerdg.methods.recipes import RECIPES, Recipe
from peerdg.methods.registry import method_names
from peerdg.run.config import resolve

FIXED = Recipe("one policy for all epochs", "randaugment", options={"augment": {"policy": "fixed"}})


def named(name: str, *more: dict):
    return resolve({"method": name, "budget": "quick"}, *more)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_expands_to_its_tables_and_keeps_its_name(name: str):
    config = named(name)
    assert config.name == name
    assert config.method in method_names() and name not in method_names()
    assert RECIPES[name].describes(config.tables())


def test_another_average_is_no_longer_the_recipe():
    config = named("p-ens", {"average": {"kind": ["ema"]}})
    assert (config.recipe, config.average.kind) == (None, ("ema",))


@pytest.mark.parametrize("window", [{"last": 1}, {"start": 2}])
def test_a_mean_of_some_snapshots_is_no_longer_that_of_all(window: dict[str, int]):
    """P-ENS is the mean of all snapshots."""
    config = named("p-ens", {"average": window})
    assert (config.recipe, config.average.kind) == (None, ("snapshots",))
    assert named("p-ens", {"average": {"k": 2}}).recipe == "p-ens"
    assert named("p-ens", {"average": {"also": ["last-1"]}}).recipe == "p-ens"


def test_options_of_a_recipe_can_be_overridden_and_end_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(recipes.RECIPES, "fixed", FIXED)
    assert named("fixed").recipe == "fixed"
    assert named("fixed").augment.policy == "fixed"
    assert named("fixed").average.kind == ()
    other = named("fixed", {"augment": {"policy": "wide"}})
    assert (other.recipe, other.augment.policy) == (None, "wide")


def test_the_flags_of_a_recipe_are_those_one_would_type():
    assert RECIPES["p-ens"].flags == "--method randaugment --average snapshots"
    assert FIXED.flags == "--method randaugment --augment.policy fixed"
    assert RECIPES["peer-no-average"].flags == "--method peer --peer.no-average"
