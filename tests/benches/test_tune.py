"""Searches by several processes, with a lost one, and by wrong ranges."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from peerdg.benches.tune import Range, Search, counted, default_space, read_space
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError
from peerdg.run.config import resolve
from tests.benches.test_execute import flags, wait_for
from tests.reliability.processes import kill_group, peerdg, start

SPACE = """
train.lr = { low = 1e-4, high = 1e-2, log = true }
peer.k = [1, 2]
"""


def asked(tmp_path: Path, *more: str) -> list[str]:
    (tmp_path / "space.toml").write_text(SPACE)
    return ["tune", *flags(tmp_path / "images", epochs=4), "--method", "peer",
            "--space", str(tmp_path / "space.toml"), "--objective", "source-val",
            "--out", str(tmp_path / "tune"), *more]  # fmt: skip


def search(tmp_path: Path) -> Search:
    """The search of `asked`, to read its trials."""
    from tests.benches.tiny import images

    options = {**images(tmp_path / "images"), "method": "peer"}
    return Search(tmp_path / "tune", options, space_of(tmp_path / "space.toml"), "source-val", 5)


def space_of(file: Path) -> dict[str, Range]:
    return read_space(file, resolve({"benchmark": "digits-mini", "method": "peer"}))


@pytest.mark.runs
def test_two_processes_and_a_killed_one_count_every_trial_once(tmp_path):
    words = peerdg(*asked(tmp_path, "--trials", "5"))
    both = [start(words), start(words)]
    runs = tmp_path / "tune/runs"
    wait_for(lambda: len(list(runs.glob("*/events.jsonl"))) >= 2, both[0])
    kill_group(both[1])
    both[1].communicate()
    said, errors = both[0].communicate(timeout=300)
    assert both[0].returncode == 0, errors
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "tune/journal.log")))
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    trials = counted(study)
    assert len(trials) == 5 and all(trial.value is not None for trial in trials)
    assert len({str(trial.params) for trial in trials}) == 5  # none was done twice
    assert len(list(runs.iterdir())) == 5
    assert (tmp_path / "tune/tune.png").stat().st_size > 1000
    assert f"{study.best_value:.2f}" in said
    out = tmp_path / "best"
    config = tmp_path / "tune/best.toml"
    assert command(["train", "--config", str(config), "--out", str(out), "-q"], debug=False) == 0
    assert search(tmp_path).score(out) == study.best_value


def test_ranges_are_read_and_wrong_ones_refused(tmp_path):
    file = tmp_path / "space.toml"
    file.write_text(SPACE)
    assert space_of(file) == {
        "train.lr": Range(1e-4, 1e-2, log=True),
        "peer.k": Range(values=(1, 2)),
    }
    file.write_text("peer.w = { low = 1, high = 2 }\npeer.k = { low = 1, high = 2 }\n"
                    "train.lr = [0.1, 0.1]")  # fmt: skip
    space = space_of(file)
    assert math.isinf(space["peer.w"].count)  # a weight need not be whole
    assert (space["peer.k"].count, space["train.lr"].count) == (2, 1)
    for text in ("peer.w = 1", "peer.w = { low = 2, high = 1 }",
                 "peer.w = { low = 0, high = 1, log = true }",
                 'peer.w = { low = "1", high = "2" }', "peer.w = [[1, 2], [3, 4]]",
                 "peer.w = { low = 1, high = 2, steps = 3 }"):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"peer\.w"):
            space_of(file)
    space = {"peer.ww": Range(0.1, 1.0)}
    options = {"benchmark": "digits-mini", "method": "peer"}
    with pytest.raises(ConfigError, match="ww"):
        Search(tmp_path, options, space, "source-val", 1).check()


def test_the_default_ranges_contain_the_options_of_the_preset():
    config = resolve({"benchmark": "digits-mini", "method": "peer", "budget": "quick"})
    space = default_space(config)
    assert space.keys() == {"train.lr", "peer.k", "peer.w"}
    assert space["peer.w"].low < config.method_settings.w < space["peer.w"].high
    assert space["peer.k"].high <= config.train.epochs // 3


@pytest.mark.runs
def test_a_list_of_values_is_tried_once_each(tmp_path):
    words = asked(tmp_path, "--trials", "9")
    (tmp_path / "space.toml").write_text("peer.k = [1, 2]\ntrain.lr = [0.001, 0.002]\n")
    assert command(words, debug=False) == 0
    assert len(list((tmp_path / "tune/runs").iterdir())) == 4


def test_an_empty_space_is_refused(tmp_path):
    (tmp_path / "space.toml").write_text("")
    with pytest.raises(ConfigError):
        space_of(tmp_path / "space.toml")


def test_a_search_with_other_ranges_is_refused(tmp_path):
    asked(tmp_path)
    found = search(tmp_path)
    found.study()
    found.study()  # the same one
    with pytest.raises(ConfigError):
        replace(found, space={**found.space, "train.lr": Range(1e-5, 1e-2, log=True)}).study()
