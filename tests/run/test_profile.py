import json
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.run.profile import REST, profiled
from tests.conftest import tiny_classifier, tiny_splits

OPTIONS = {"pretrain": {"epochs": 0}, "train": {"epochs": 2, "batch_size": 8}, "peer": {"k": 1}}


def test_the_stages_of_a_run_add_up_to_its_time(tmp_path: Path):
    peerdg.fit(tiny_splits(), out=tmp_path, model=tiny_classifier(), profile=True, **OPTIONS)
    record = json.loads((tmp_path / "profile.json").read_text())
    stages = record["stages"]
    assert sum(spent["seconds"] for spent in stages.values()) == pytest.approx(record["seconds"])
    assert stages["backward"]["calls"] == 6
    # In each of two epochs once for its three steps, and twice for the gradients of the terms.
    assert stages["augment"]["calls"] == 6
    assert stages["evaluation"]["calls"] == 3
    assert {"batch", "forward", "regularizer", "regulator features", "optimizer", REST} <= {*stages}


def test_a_profile_changes_nothing_that_is_computed(tmp_path: Path):
    plain = peerdg.fit(tiny_splits(), out=tmp_path / "a", model=tiny_classifier(), **OPTIONS)
    timed = peerdg.fit(
        tiny_splits(), out=tmp_path / "b", model=tiny_classifier(), profile=True, **OPTIONS
    )
    assert plain.records == timed.records
    assert not (tmp_path / "a" / "profile.json").exists()


def test_what_was_measured_is_kept_when_the_work_fails(tmp_path: Path):
    with pytest.raises(KeyError), profiled(tmp_path / "p.json", torch.device("cpu")):
        raise KeyError
    assert json.loads((tmp_path / "p.json").read_text())["stages"].keys() == {REST}
