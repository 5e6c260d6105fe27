import itertools
import re
from pathlib import Path

import pytest

from peerdg.data.benchmarks import BENCHMARKS
from peerdg.errors import ConfigError
from peerdg.methods.registry import method_names
from peerdg.options import read_toml
from peerdg.run.config import notes, resolve
from peerdg.run.presets import BUDGETS, origins, preset, preset_files

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("data", BENCHMARKS)
def test_every_preset_resolves_for_every_method_and_repeats_itself(data, tmp_path):
    file = tmp_path / "config.toml"
    for budget, method in itertools.product(BUDGETS, method_names()):
        config = resolve({"benchmark": data, "budget": budget, "method": method})
        file.write_text(config.toml())
        assert resolve(read_toml(file)) == config
        assert resolve(read_toml(file)).hash == config.hash
        assert notes(config) == [text for text in [config.method_settings.caution] if text]
        is_strong = method == "peer" and budget == "paper"
        assert (config.method_settings.caution is not None) == is_strong


def test_every_value_of_a_preset_names_its_origin():
    texts = {name: text for data in PAPER for name, text in preset_files(data).items()}
    assert len(texts) == 10
    for line in "\n".join(texts.values()).splitlines():
        if "=" not in line or line.startswith(("#", "extends")):
            continue
        assert re.search(r"# (paper|code|assumption)\b|# study [\w-]+: ", line), line
        if study := re.search(r"# study ([\w-]+): ", line):
            assert (RESULTS / study[1] / "README.md").exists(), line


def test_a_preset_wins_over_the_one_it_extends_and_a_budget_over_what_all_share():
    assert list(preset_files("digits-mini")) == ["base", "digits", "digits-mini"]
    quick = preset("digits-mini", "quick")
    assert (quick["train"]["epochs"], quick["train"]["lr"], quick["peer"]["k"]) == (20, 5e-4, 2)
    assert preset("digits-mini", "paper")["peer"]["k"] == 10
    assert preset("pacs", "paper")["pretrain"]["lr"] == 0.005


SOURCES = {  # training images of the usual source
    "digits": 10_000, "digits-mini": 4000, "pacs": 1499, "vlcs": 2370, "office-home": 4357,
    "terra": 4741, "own-photos": 1500,
}  # fmt: skip


@pytest.mark.parametrize("method", ["ada", "me-ada"])
@pytest.mark.parametrize("data", SOURCES)
def test_images_are_made_after_the_released_number_of_seen_images(data, method):
    """100 steps of 32 images, in whole passes over the source and at least one."""
    passes = max(1, round(100 * 32 / SOURCES[data]))
    assert preset(data, "standard")[method]["every"] == passes
    if stated := re.search(r"([\d.]+) passes", origins(data, "standard")[f"{method}.every"]):
        assert float(stated[1]) == pytest.approx(100 * 32 / SOURCES[data], abs=0.06)


def test_later_layers_win_and_evaluation_follows_k():
    config = resolve({"train": {"epochs": 40}, "seed": 1}, {"seed": 2, "peer": {"k": 4}})
    assert (config.train.epochs, config.seed, config.method_settings.k) == (40, 2, 4)
    assert config.evaluate_every == 4
    assert resolve({"peer": {"k": 4}, "evaluate_every": 2}).evaluate_every == 2


def test_a_layer_on_top_of_a_complete_file():
    file = resolve({"budget": "quick"}).tables()
    assert resolve(file, {"peer": {"k": 5}}).evaluate_every == 5
    assert resolve(file, {"seed": 5}).evaluate_every == file["evaluate_every"]
    with pytest.raises(ConfigError, match="for the budget 'quick'"):
        resolve(file, {"budget": "paper"})


def test_a_fixed_strength_is_refused_where_the_policy_is_drawn():
    with pytest.raises(ConfigError, match="num_ops"):
        resolve({"augment": {"num_ops": 3}})
    fixed = resolve({"augment": {"policy": "fixed", "num_ops": 3}}).augment
    assert (fixed.num_ops, fixed.magnitude) == (3, None)


def test_options_of_another_method_or_data_set_are_refused():
    with pytest.raises(ConfigError, match="given for the method"):
        resolve({"method": "peer", "erm": {}})
    with pytest.raises(ConfigError, match="data set 'digits'"):
        resolve({"benchmark": "digits-mini", "digits": {"train": 5}})


# What the paper states for each of its benchmarks (appendix: architecture, training, pre-training,
# hyper-parameters), independently of the preset files.
EVERYWHERE = {"peer.k": 10, "peer.w": 2.0, "peer.lam": 0.005, "train.optimizer": "adam",
              "train.lr": 1e-4, "evaluate_every": 10}  # fmt: skip
LARGE_HEAD = {"peer.head_layers": 3, "peer.head_dim": 1024}
PHOTOS = {**EVERYWHERE, **LARGE_HEAD, "weights": "imagenet", "augment.operations": "torchvision"}
RESNET = {**PHOTOS, "backbone": "resnet18", "pretrain.epochs": 100, "pretrain.batch_size": 64,
          "pretrain.optimizer": "adam", "pretrain.lr": 1e-4, "train.epochs": 200}  # fmt: skip
DIGITS = {**EVERYWHERE, "backbone": "digits-cnn", "pretrain.epochs": 100,
          "pretrain.batch_size": 256, "pretrain.optimizer": "adam", "pretrain.lr": 1e-4,
          "train.epochs": 1000, "train.batch_size": 128, "peer.head_layers": 2,
          "peer.head_dim": 128}  # fmt: skip
PAPER = {
    "digits": DIGITS,
    "digits-mini": DIGITS,
    "own-data": DIGITS,
    "pacs": {**PHOTOS, "backbone": "alexnet", "pretrain.epochs": 60, "pretrain.batch_size": 32,
             "pretrain.optimizer": "sgd", "pretrain.lr": 0.005, "pretrain.lr_gamma": 0.5,
             "train.epochs": 200, "train.batch_size": 128},
    "office-home": {**RESNET, "train.batch_size": 64},
    "own-photos": {**RESNET, "train.batch_size": 64},
    "vlcs": {**RESNET, "train.batch_size": 128},
    # The paper reports Terra Incognita with ResNet-18 and describes none of its training.
    "terra": {"backbone": "resnet18", "peer.w": 2.0, "peer.lam": 0.005,
              "augment.operations": "torchvision", "evaluate_every": 10},
}  # fmt: skip


def commented_values(name: str) -> list[tuple[str, object, str, str]]:
    """Option, value, comment and budget of everything that a preset and its parents have."""
    values = []
    for budget in BUDGETS:
        tables = preset(name, budget)
        for option, comment in origins(name, budget).items():
            section, _, key = option.rpartition(".")
            value = (tables[section] if section else tables)[key]
            values.append((option, value, comment, budget))
    return values


@pytest.mark.parametrize("name", PAPER)
def test_a_value_that_names_the_paper_is_the_papers(name):
    checked = 0
    papers = PAPER["vlcs" if name == "terra" else name]  # terra.toml says so
    for option, value, comment, budget in commented_values(name):
        if not comment.startswith("paper"):
            continue
        checked += 1
        if "P-ENS" in comment:  # the paragraph on parameter-space ensembles has its own number
            assert (budget, option, value) == ("standard", "train.epochs", 100)
        else:
            assert papers.get(option) == value, f"[{budget}] {option} = {value}  # {comment}"
    assert checked > 4


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_budget_is_the_papers_wherever_the_paper_has_a_value(name):
    tables = preset(name, "paper")
    for key, value in PAPER[name].items():
        section, _, option = key.rpartition(".")
        assert (tables[section] if section else tables)[option] == value, key


FRACTIONS = {"a tenth": (1, 10), "a fifth": (1, 5), "three tenths": (3, 10), "a third": (1, 3)}


@pytest.mark.parametrize("name", PAPER)
def test_a_fraction_of_the_papers_schedule_is_that_fraction(name):
    papers = PAPER["vlcs" if name == "terra" else name]
    for key, value, comment, _ in commented_values(name):
        for words, (part, whole) in FRACTIONS.items():
            if words in comment:
                assert value * whole == papers[key] * part, f"{key} = {value}  # {comment}"
                if "as the main phase" in comment:
                    main = preset(name, "standard")["train"]["epochs"]
                    assert main * whole == papers["train.epochs"] * part, comment


def test_what_the_paper_does_not_say_is_marked_as_an_assumption():
    for name in PAPER:
        for key, value, comment, _ in commented_values(name):
            if key == "randaugment.k" or (key, value) == ("augment.operations", "sdg"):
                assert comment.startswith("assumption"), f"{name}: {key} = {value}  # {comment}"
    assert "caffenet" in origins("pacs", "paper")["backbone"]  # the paper's channels are its
