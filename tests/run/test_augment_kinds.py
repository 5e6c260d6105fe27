"""Runs with another augmentation than RandAugment."""

from pathlib import Path
from typing import Any

import pytest

import peerdg
from peerdg.api import Run
from peerdg.augment.augment_options import DEFAULTS
from peerdg.cli.main import run
from peerdg.errors import ConfigError
from peerdg.options import read_toml
from peerdg.report.runs import read_run
from peerdg.run.config import resolve
from tests.conftest import tiny_classifier, tiny_splits


def fit(out: Path, *, existing: Any = "refuse", **options: Any) -> Run:
    return peerdg.fit(
        tiny_splits(),
        out=out,
        model=tiny_classifier(),
        existing=existing,
        pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 3, "batch_size": 8, "lr": 0.02},
        progress=False,
        **options,
    )


def test_reports_name_another_augmentation_which_is_another_run(tmp_path: Path):
    given = {"method": "p-ens", "randaugment": {"k": 1}}
    fit(tmp_path / "run", augment={"kind": "augmix"}, **given)
    assert read_run(tmp_path / "run").method == "p-ens+augmix"
    with pytest.raises(ConfigError, match=r"augment\.kind: 'augmix' -> 'randaugment'"):
        fit(tmp_path / "run", existing="resume", **given)


def test_a_stored_config_repeats_the_run(tmp_path: Path):
    for kind in DEFAULTS:
        config = resolve({"method": "peer", "augment": {"kind": kind}})
        (tmp_path / "config.toml").write_text(config.toml())
        assert resolve(read_toml(tmp_path / "config.toml")) == config


def test_kernels_that_do_not_fit_are_refused_before_any_work(tmp_path: Path):
    augment = {"kind": "l2d-generator", "generator_kernels": [3, 13]}
    with pytest.raises(ConfigError, match="too large for images of 12 x 12"):
        fit(tmp_path / "run", method="peer", peer={"k": 1}, augment=augment)


def test_flags_choose_a_kind_and_its_options(capsys: pytest.CaptureFixture[str]):
    flags = ["--augment.kind", "randconv", "--augment.kernels", "3,5", "--augment.variant", "mix"]
    assert run(["config", "digits-mini", *flags], debug=False) == 0
    shown = capsys.readouterr().out
    assert 'kind = "randconv"' in shown and 'variant = "mix"' in shown
    assert "operations" not in shown
    assert run(["train", "digits-mini", *flags, "--augment.policy", "mild"], debug=False) == 2
    error = capsys.readouterr().err
    assert "augment.policy only works with" in " ".join(error.split())


def test_augmentation_of_a_method_that_does_not_augment_is_refused(tmp_path):
    method = "miro"
    with pytest.raises(ConfigError, match=f"'{method}'.*augment.operations would have no effect"):
        fit(tmp_path / "run", method=method, augment={"operations": "sdg"})
    assert not (tmp_path / "run").exists()
    command = ["train", "digits-mini", "--method", method, "--out", str(tmp_path / "other")]
    assert run([*command, "--augment.policy", "mild"], debug=False) == 2
    (tmp_path / "options.toml").write_text('[augment]\npolicy = "mild"\n')
    assert run([*command, "--config", str(tmp_path / "options.toml")], debug=False) == 2
