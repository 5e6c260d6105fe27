"""Combinations of several runs: their members, and the commands that make them."""

import re
from itertools import product

import pytest

from peerdg.cli.main import run as command
from peerdg.errors import ConfigError
from peerdg.methods.recipes import COMBINATIONS, RECIPES
from peerdg.methods.registry import method_names
from peerdg.run.config import resolve

BASE = {"benchmark": "digits-mini", "budget": "quick"}


def configs(name: str, seed: int = 0):
    made = COMBINATIONS[name]
    lr = resolve(BASE, {"method": made.member}).train.lr
    numbers = range(made.members)
    return [resolve(BASE, made.options(number, seed=seed, lr=lr)) for number in numbers]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_member_is_a_separate_run(name: str):
    hashes = [config.hash for seed in range(3) for config in configs(name, seed)]
    assert len(set(hashes)) == len(hashes)
    assert {config.name for config in configs(name)} == {COMBINATIONS[name].member}
    assert name not in {*method_names(), *RECIPES}


def test_members_of_diwa_share_their_start_and_vary_mildly():
    """Ramé et al.: one initialization, rates of 1e-5, 3e-5 and 5e-5, decays of 1e-4 and 1e-6."""
    runs = configs("diwa", seed=2)
    usual = resolve(BASE, {"method": "randaugment"}).train.lr
    assert {run.seed for run in runs} == {2}
    assert len({run.main_seed for run in runs}) == 6
    assert len({str(run.tables()["pretrain"]) for run in runs}) == 1
    pairs = sorted((round(run.train.lr / usual, 9), run.train.weight_decay) for run in runs)
    assert pairs == sorted(product((0.2, 0.6, 1.0), (1e-6, 1e-4)))


def test_members_of_eoa_are_independent_runs_of_sma():
    """Arpit et al.: six runs. The released code adds outputs before the softmax."""
    runs = configs("eoa", seed=1)
    assert [run.seed for run in runs] == [6, 7, 8, 9, 10, 11]
    assert {(run.method, run.average.kind) for run in runs} == {("randaugment", ("sma",))}
    assert {run.train for run in runs} == {resolve(BASE, {"method": "sma"}).train}
    assert (COMBINATIONS["eoa"].rule, COMBINATIONS["eoa"].outputs) == ("ensemble", "logits")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_training_one_is_rejected_with_the_commands_to_use(name: str):
    with pytest.raises(ConfigError) as refused:
        resolve(BASE, {"method": name, "seed": 1})
    assert f"{COMBINATIONS[name].members} runs" in refused.value.message
    assert f"bench --methods {name}" in (refused.value.hint or "")


def test_the_list_of_methods_has_them(capsys):
    assert command(["methods"], debug=False) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert {"diwa", "eoa", "swad", "miro", "peer-ema", "peer-sma", "peer-no-average"} <= listed
    assert command(["methods", "diwa"], debug=False) == 0
    assert re.search("6 runs of randaugment", capsys.readouterr().out)
    assert command(["train", "digits-mini", "--method", "diwa"], debug=False) == 2
    assert "peerdg bench" in capsys.readouterr().err
