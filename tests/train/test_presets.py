import re

import pytest

from peerdg.config import read_toml
from peerdg.data.registry import BENCHMARKS
from peerdg.errors import ConfigError
from peerdg.methods.registry import method_names
from peerdg.train.presets import BUDGETS, preset_text
from peerdg.train.settings import RunConfig, notes, resolve

EVERY = [(b, budget, m) for b in BENCHMARKS for budget in BUDGETS for m in method_names()]


@pytest.mark.parametrize(("data", "budget", "method"), EVERY)
def test_every_preset_resolves_for_every_method_and_repeats_itself(data, budget, method, tmp_path):
    config = resolve({"benchmark": data, "budget": budget, "method": method})
    file = tmp_path / "config.toml"
    file.write_text(config.toml())
    assert resolve(read_toml(file)) == config
    assert resolve(read_toml(file)).hash == config.hash
    assert notes(config) == []


@pytest.mark.parametrize("data", BENCHMARKS)
def test_every_value_of_a_preset_names_its_origin(data):
    lines = [line for line in preset_text(data).splitlines() if "=" in line and line[0] != "#"]
    assert lines
    for line in lines:
        assert re.search(r"# (paper|code|assumption)\b", line), line


def test_the_paper_budget_of_digits_has_the_papers_values():
    config = resolve({"benchmark": "digits", "budget": "paper"})
    assert (config.pretrain.epochs, config.pretrain.batch_size) == (100, 256)
    assert (config.train.epochs, config.train.batch_size, config.train.lr) == (1000, 128, 1e-4)
    peer = config.method_settings
    assert (peer.k, peer.w, peer.lam, peer.head_layers, peer.head_dim) == (10, 2.0, 0.005, 2, 128)


def test_digits_presets_use_the_set_with_invert():
    assert resolve({"benchmark": "digits"}).augment.operations == "sdg"


def test_later_layers_win_and_evaluation_follows_k():
    config = resolve({"train": {"epochs": 40}, "seed": 1}, {"seed": 2, "peer": {"k": 4}})
    assert (config.train.epochs, config.seed, config.method_settings.k) == (40, 2, 4)
    assert config.evaluate_every == 4
    assert resolve({"peer": {"k": 4}, "evaluate_every": 2}).evaluate_every == 2


def test_evaluation_follows_a_k_given_on_top_of_a_complete_file():
    file = resolve({"budget": "quick"}).tables()
    assert resolve(file, {"peer": {"k": 5}}).evaluate_every == 5
    assert resolve(file, {"seed": 5}).evaluate_every == file["evaluate_every"]


def test_another_budget_on_top_of_a_file_is_refused():
    file = resolve({"budget": "quick"}).tables()
    with pytest.raises(ConfigError, match="for the budget 'quick', not 'paper'"):
        resolve(file, {"budget": "paper"})


def test_the_default_is_peer_on_digits_mini():
    config = resolve({})
    assert (config.method, config.benchmark) == (RunConfig.method, "digits-mini")


def test_a_fixed_strength_is_refused_where_the_policy_is_drawn():
    with pytest.raises(ConfigError, match="belong to the fixed policy"):
        resolve({"augment": {"num_ops": 3}})
    fixed = resolve({"augment": {"policy": "fixed", "num_ops": 3}}).augment
    assert (fixed.num_ops, fixed.magnitude) == (3, None)


def test_options_of_another_method_are_refused():
    with pytest.raises(ConfigError, match="Options of 'erm' are given, but the method is 'peer'"):
        resolve({"method": "peer", "erm": {}})


def test_options_of_another_data_set_are_refused():
    with pytest.raises(ConfigError, match="data set 'digits'"):
        resolve({"benchmark": "digits-mini", "digits": {"train": 5}})
