"""A run goes on with the options it was started with, whatever became of its config file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from peerdg.cli.main import run
from peerdg.errors import ConfigError, DamagedError, PeerdgWarning
from peerdg.options import merge, read_toml
from peerdg.run.config import MAY_CHANGE, RunConfig, hash_of, resolve
from peerdg.run.folder import RunFolder, read_run_config
from peerdg.run.manifest import SOFTWARE, check_manifest
from peerdg.run.stored_manifest import _set_only, read_inputs
from tests.conftest import tiny_splits
from tests.reliability.photo_run import interrupt, photo_run
from tests.run.test_resume import OPTIONS, START, WHICH, another, value_of, with_option

CPU = torch.device("cpu")


def begun(out: Path) -> RunConfig:
    """A run that has written what it writes before its first step."""
    config = resolve(START)
    run = RunFolder.open(out, config)
    run.begin()
    check_manifest(config, run, tiny_splits(), CPU)
    run.close()
    return config


def edit(out: Path, changes: dict[str, Any]) -> None:
    path = out / "config.toml"
    path.write_text(tomli_w.dumps(merge(read_toml(path), changes)))


def resume(out: Path) -> None:
    """As `peerdg resume` takes the folder."""
    RunFolder.open(out, resolve(read_run_config(out)), existing="resume").close()


@pytest.mark.parametrize(
    "key", [key for key in OPTIONS if key not in ("benchmark", "method", "augment.kind")]
)
def test_an_edited_option_is_refused_with_its_old_and_new_value(tmp_path: Path, key: str):
    out = tmp_path / "run"
    config = begun(out)
    old = value_of(config, key)
    new = WHICH.get(key) or another(old, OPTIONS[key])
    edit(out, with_option(key, new))
    if key in MAY_CHANGE:
        resume(out)
        return
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(ConfigError) as caught:
        resume(out)
    assert "config.toml was changed after the run was started" in caught.value.message
    assert f"{key}: {old!r} -> {new!r}" in caught.value.message
    assert "--overwrite" in (caught.value.hint or "")
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_an_option_that_was_deleted_is_refused(tmp_path: Path):
    begun(tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    tables = read_toml(path)
    del tables["seed"]  # the default is what it was
    path.write_text(tomli_w.dumps(tables))
    resume(tmp_path / "run")
    del tables["targets"]
    path.write_text(tomli_w.dumps(tables))
    with pytest.raises(ConfigError, match=r"targets: \['usps'\] -> None"):
        resume(tmp_path / "run")


def test_comments_and_order_are_no_change(tmp_path: Path):
    begun(tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    tables = dict(reversed(read_toml(path).items()))
    path.write_text("# looked at on Monday\n" + tomli_w.dumps(tables))
    resume(tmp_path / "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photo_run(tmp_path_factory.mktemp("started"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train": {"lr": 0.5}}, "train.lr: "),
        ({"seed": 3}, "seed: 0 -> 3"),
        ({"train": {"epochs": 1}}, "train.epochs: 2 -> 1"),
    ],
)
def test_the_command_refuses_a_mixture(
    tmp_path: Path,
    finished: Path,
    changes: dict[str, Any],
    told: str,
    capsys: pytest.CaptureFixture[str],
):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    interrupt(out)
    edit(out, changes)
    weights = (out / "model/model.safetensors").read_bytes()
    assert run(["resume", str(out), "--quiet"], debug=False) == 2
    assert told in capsys.readouterr().err
    assert (out / "model/model.safetensors").read_bytes() == weights


def test_the_command_starts_anew_when_asked(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    interrupt(out)
    edit(out, {"train": {"epochs": 1, "lr": 0.5}})
    assert run(["resume", str(out), "--quiet"], debug=False) == 2
    said = capsys.readouterr().err
    anew = said.strip().splitlines()[-1].partition("peerdg ")[2].split()
    assert run([*anew, "--quiet"], debug=False) == 0
    fresh = ["train", "--config", str(out / "config.toml"), "--out", str(tmp_path / "fresh")]
    assert run([*fresh, "--quiet"], debug=False) == 0
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()


# Written by the first version of peerdg, for `train photos --method erm`.
OLD_CONFIG = """\
benchmark = "own-data"
root = "photos"
method = "erm"
backbone = "digits-cnn-half"
weights = "none"
budget = "standard"
seed = 0
device = "auto"
threads = 1
precision = "float32"
compile = false
evaluate_every = 10
checkpoint_minutes = 0.0
crafted = "disjoint"
crafted_images = 500
keep_snapshots = false

[pretrain]
epochs = 1
batch_size = 4
optimizer = "adam"
lr = 0.0001
momentum = 0.9
weight_decay = 0.0
lr_gamma = 0.5

[train]
epochs = 2
batch_size = 4
optimizer = "adam"
lr = 0.0001
momentum = 0.9
weight_decay = 0.0
lr_gamma = 0.5

[transform]
size = 32
flip = 0.0

[augment]
operations = "sdg"
policy = "default"
absolute_pixels = false

[own-data]
layout = "auto"
validation_fraction = 0.1
split_seed = 0
skip_bad_images = false
megapixels = 50.0
"""
OLD_MANIFEST = {
    "config_hash": "9f36bb619660",
    "data": {"train": "0" * 64},
    "peerdg": "0.1.0.dev0",
    "torch": "2.13.0",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(OLD_CONFIG)
    (tmp_path / "manifest.json").write_text(json.dumps(OLD_MANIFEST))
    return tmp_path


def test_a_run_of_the_first_version_is_recognised_by_its_hash(old: Path):
    resume(old)
    edit(old, {"threads": 3, "root": "elsewhere"})
    resume(old)


@pytest.mark.parametrize("changes", [{"seed": 1}, {"train": {"lr": 0.01}}, {"targets": ["x"]}])
def test_an_edited_run_of_the_first_version_is_refused_by_its_hash(
    old: Path, changes: dict[str, Any]
):
    edit(old, changes)
    with pytest.raises(ConfigError, match=r"was changed after .* did not record which option"):
        resume(old)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([SOFTWARE], (SOFTWARE,)),
        (["peerdg 0.0.9, torch 2"], ("peerdg 0.0.9, torch 2", SOFTWARE)),
        (None, (f"earlier code, torch {torch.__version__}", SOFTWARE)),
    ],
    ids=["same", "other", "older than the record"],
)
def test_what_a_run_goes_on_with_is_added_to_what_it_was_started_with(
    tmp_path: Path, before: list[str] | None, after: tuple[str, ...]
):
    config = begun(tmp_path / "run")
    path = tmp_path / "run/manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest.pop("software") == [SOFTWARE]
    path.write_text(json.dumps(manifest | ({} if before is None else {"software": before})))
    opened = RunFolder.open(tmp_path / "run", config, existing="resume")
    opened.checkpoints.mkdir(exist_ok=True)  # it has done something
    for _ in range(2):
        check_manifest(config, opened, tiny_splits(), CPU)
    opened.close()
    assert read_inputs(path).software == after
    assert json.loads(path.read_text()) == {**manifest, "software": list(after)}


def test_options_that_came_later_are_no_change_but_are_said(tmp_path: Path):
    out = tmp_path / "run"
    config = begun(out)
    for file, without in (("config.toml", ("crafted",)), ("manifest.json", ("crafted",))):
        path = out / file
        tables = read_toml(path) if file.endswith("toml") else json.loads(path.read_text())
        options = tables if file.endswith("toml") else tables["config"]
        for name in without:
            del options[name]
        del options["peer"]["tau"]
        if file == "manifest.json":
            tables["config_hash"] = hash_of(_set_only(options))
        path.write_text(tomli_w.dumps(tables) if file.endswith("toml") else json.dumps(tables))
    opened = RunFolder.open(out, resolve(read_run_config(out)), existing="resume")
    with pytest.warns(PeerdgWarning, match=r"without these options: crafted = disjoint, peer\.tau"):
        check_manifest(config, opened, tiny_splits(), CPU)
    opened.close()
    assert "other_version" in (out / "events.jsonl").read_text()


def test_an_option_that_came_later_and_is_not_set_is_not_said(tmp_path: Path):
    out = tmp_path / "run"
    config = begun(out)
    path = out / "manifest.json"
    manifest = json.loads(path.read_text())
    unset = [name for name, value in manifest["config"].items() if value is None]
    inside = [name for name, value in manifest["config"]["peer"].items() if value is None]
    assert unset
    assert inside
    for name in unset:
        del manifest["config"][name]
    for name in inside:
        del manifest["config"]["peer"][name]
    path.write_text(json.dumps(manifest))
    opened = RunFolder.open(out, resolve(read_run_config(out)), existing="resume")
    check_manifest(config, opened, tiny_splits(), CPU)  # a warning would be an error
    opened.close()
    assert not (out / "events.jsonl").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"data": 5, "torch": "1", "config_hash": ""}', "[" * 9999, "\xff"]
)
def test_a_damaged_manifest_is_refused_before_torch_is_needed(tmp_path: Path, content: str):
    begun(tmp_path / "run")
    (tmp_path / "run/manifest.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged"):
        resume(tmp_path / "run")


def test_a_run_with_a_checkpoint_and_no_manifest_is_refused(tmp_path: Path, finished: Path):
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    interrupt(out)
    (out / "manifest.json").unlink()
    edit(out, {"train": {"lr": 0.5}})
    with pytest.raises(DamagedError, match=r"manifest\.json is missing") as caught:
        resume(out)
    assert "--overwrite" in (caught.value.hint or "")


@pytest.mark.parametrize("options", [{}, {"method": "peer"}, None], ids=["empty", "few", "changed"])
def test_a_manifest_with_incomplete_or_changed_options_is_refused(
    tmp_path: Path, options: dict[str, Any] | None
):
    begun(tmp_path / "run")
    path = tmp_path / "run/manifest.json"
    values = json.loads(path.read_text())
    values["config"] = {**values["config"], "seed": 7} if options is None else options
    if options is not None:  # the keys that every config has are missing, whatever the hash
        values["config_hash"] = hash_of(options)
    path.write_text(json.dumps(values))
    edit(tmp_path / "run", {"seed": 7})
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged"):
        resume(tmp_path / "run")
