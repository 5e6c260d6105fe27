"""What a run may be resumed with: its own options and data, and nothing else."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import tomli_w
import torch

import peerdg
from peerdg.augment.augment_options import DEFAULTS, AugmentSettings
from peerdg.cli.main import run
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError, OutputError, PeerdgWarning
from peerdg.methods.erm import ERM
from peerdg.options import merge, read_toml
from peerdg.run.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from peerdg.run.config import MAY_CHANGE, SECTIONS, RunConfig, notes, resolve
from peerdg.run.folder import Existing, RunFolder, read_run_config
from peerdg.run.manifest import check_manifest
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.source import Source
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits
from tests.reliability.photo_run import interrupt, photo_run

START = {
    "benchmark": "digits",
    "root": "/data",
    "method": "peer",
    "targets": ["mnist-m"],
    "augment": {"policy": "fixed"},
    # All of them: an option of an average that the run does not have is refused for that.
    "average": {"kind": ["snapshots", "swa", "ema", "sma", "swad"]},
}


def options() -> dict[str, Any]:
    """Every option of a resolved PEER run on Digits, set or not, with its type."""
    config = resolve(START)
    sections = {
        "": RunConfig,
        **{f"{name}.": kind for name, kind in SECTIONS.items()},
        "peer.": type(config.method_settings),
        "digits.": type(config.data),
    }
    found = {}
    for prefix, kind in sections.items():
        hints = get_type_hints(kind)
        for name, hint in ((f.name, hints[f.name]) for f in fields(kind)):
            if not hasattr(hint, "__dataclass_fields__") and name not in (
                "data",
                "method_settings",
                "recipe",  # follows from the method and the averages
                "plugin",  # of methods that are not in the package; tests/cli/test_plugin.py
            ):
                found[prefix + name] = hint
    others = {f.name for f in fields(AugmentSettings)} - {"kind", *DEFAULTS[config.augment.kind]}
    return {key: hint for key, hint in found.items() if key.removeprefix("augment.") not in others}


OPTIONS = options()


def value_of(config: RunConfig, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return config.tables().get(section, {}).get(name) if section else config.tables().get(name)


def another(old: Any, hint: Any) -> Any:
    """A legal value that differs from `old`."""
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != old)
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if get_origin(kinds[0]) is Literal:
        return another(old, kinds[0])
    kind = get_origin(kinds[0]) or kinds[0]
    if kind is bool:
        return not old
    if kind is tuple:
        return [0.5, 0.75] if get_args(kinds[0])[0] is float else ["svhn"]
    if kind is str:
        return "other"
    return 9 if old is None else kind(old + 1) if kind is int else old / 2 + 0.125


def with_option(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.rpartition(".")
    return {section: {name: value}} if section else {name: value}


# Choosing another one of these changes which sections there are; what is checked is the refusal.
WHICH = {
    "benchmark": "digits-mini",
    "method": "erm",
    "budget": "quick",
    "backbone": "digits-cnn-half",
    "average.kind": ["snapshots"],
    "average.also": ["last-3"],
}


@pytest.fixture
def started(tmp_path: Path) -> Path:
    run = RunFolder.open(tmp_path / "run", resolve(START))
    run.begin()
    run.event("start")
    run.close()
    return tmp_path / "run"


def test_every_option_of_the_config_is_in_the_list():
    written = {
        f"{key}.{name}" if isinstance(value, dict) else key
        for key, value in resolve(START).tables().items()
        for name in (value if isinstance(value, dict) else ("",))
    }
    assert written <= {*OPTIONS}
    assert len(OPTIONS) > 50


def test_a_changed_option_is_refused_with_its_old_and_new_value(started: Path):
    for key in OPTIONS.keys() - {"augment.kind"}:
        old = value_of(resolve(START), key)
        new = WHICH.get(key) or another(old, OPTIONS[key])
        config = resolve(START, with_option(key, new))
        assert value_of(config, key) == new, key
        if key in MAY_CHANGE:
            RunFolder.open(started, config, existing="resume").close()
            continue
        with pytest.raises(ConfigError) as caught:
            RunFolder.open(started, config, existing="resume")
        assert f"{key}: {old!r} -> {new!r}" in caught.value.message
        assert "--out" in (caught.value.hint or "")
    RunFolder.open(started, resolve(START), existing="resume").close()  # the lock was released


def begun(out: Path) -> RunConfig:
    """Write what a run writes before its first step."""
    config = resolve(START)
    run = RunFolder.open(out, config)
    run.begin()
    check_manifest(config, run, tiny_splits(), torch.device("cpu"), {})
    run.close()
    return config


def edit(out: Path, changes: dict[str, Any]) -> None:
    path = out / "config.toml"
    path.write_text(tomli_w.dumps(merge(read_toml(path), changes)))


def resume(out: Path) -> None:
    RunFolder.open(out, resolve(read_run_config(out)), existing="resume").close()


def test_an_edited_option_is_refused_with_its_old_and_new_value(tmp_path: Path):
    out = tmp_path / "run"
    config = begun(out)
    original = (out / "config.toml").read_text()
    for key in OPTIONS.keys() - {"benchmark", "method", "augment.kind"}:
        old = value_of(config, key)
        new = WHICH.get(key) or another(old, OPTIONS[key])
        edit(out, with_option(key, new))
        if key in MAY_CHANGE:
            resume(out)
        else:
            with pytest.raises(ConfigError) as caught:
                resume(out)
            assert f"{key}: {old!r} -> {new!r}" in caught.value.message
            assert "--overwrite" in (caught.value.hint or "")
        (out / "config.toml").write_text(original)


def test_a_deleted_option_is_refused_unless_it_had_its_default(tmp_path: Path):
    begun(tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    tables = read_toml(path)
    del tables["seed"]
    path.write_text("# comments do not matter\n" + tomli_w.dumps(tables))
    resume(tmp_path / "run")
    del tables["targets"]
    path.write_text(tomli_w.dumps(tables))
    with pytest.raises(ConfigError, match=r"targets: \['mnist-m'\] -> None"):
        resume(tmp_path / "run")


def test_the_command_refuses_an_edited_config_and_starts_again_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = photo_run(tmp_path)
    interrupt(out)
    weights = (out / "model/model.safetensors").read_bytes()
    edit(out, {"train": {"epochs": 1, "lr": 0.5}})
    assert run(["resume", str(out), "--quiet"], debug=False) == 2
    shown = capsys.readouterr().err
    assert "train.epochs: 2 -> 1" in shown
    assert (out / "model/model.safetensors").read_bytes() == weights
    command = shown.strip().splitlines()[-1].partition("peerdg ")[2].split()
    assert run([*command, "--quiet"], debug=False) == 0
    fresh = ["train", "--config", str(out / "config.toml"), "--out", str(tmp_path / "fresh")]
    assert run([*fresh, "--quiet"], debug=False) == 0
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()


def test_software_that_a_run_continues_with_is_added_to_the_manifest(tmp_path: Path):
    config = begun(tmp_path / "run")
    path = tmp_path / "run/manifest.json"
    manifest = json.loads(path.read_text())
    (now,) = manifest["software"]
    for before, after in (([now], [now]), (["peerdg 0.0.9"], ["peerdg 0.0.9", now])):
        path.write_text(json.dumps({**manifest, "software": before}))
        opened = RunFolder.open(tmp_path / "run", config, existing="resume")
        for _ in range(2):
            check_manifest(config, opened, tiny_splits(), torch.device("cpu"), {})
        opened.close()
        assert json.loads(path.read_text())["software"] == after


def test_other_inputs_are_refused_by_name(tmp_path: Path):
    config = begun(tmp_path / "run")
    opened = RunFolder.open(tmp_path / "run", config, existing="resume")
    for inputs, name in (
        ({"network": "0" * 12}, "the network"),
        ({"weights_sha256": "0" * 64}, "initial weights file"),
        ({"added_layers": [{"kind": "style-mixing"}]}, "layers"),
        ({"models": {"miro.oracle": "0" * 64}}, "miro.oracle"),
    ):
        with pytest.raises(ConfigError, match=name) as caught:
            check_manifest(config, opened, tiny_splits(), torch.device("cpu"), inputs)
        assert "--overwrite" in (caught.value.hint or "")
    opened.close()


def fit(
    out: Path, splits: Splits | None = None, *, existing: Existing = "resume", **given: Any
) -> Any:
    options = {
        "method": "erm",
        "pretrain": {"epochs": 0, "batch_size": 8},
        "train": {"epochs": 1, "batch_size": 8},
        "evaluate_every": 1,
        **given,
    }
    return peerdg.fit(
        splits or tiny_splits(), out=out, model=tiny_classifier(), existing=existing, **options
    )


def changed(domain: Any) -> Any:
    images = domain.images.clone()
    images[3, 1, 2, 2] ^= 1
    return replace(domain, images=images)


def test_one_changed_bit_of_the_data_is_refused_by_name(tmp_path: Path):
    fit(tmp_path / "run")
    (tmp_path / "run/done.json").unlink()
    splits = tiny_splits()
    for name, other in {
        "train": replace(splits, train=changed(splits.train)),
        "validation": replace(splits, validation=changed(splits.validation)),
        "target:two": replace(
            splits, targets={**splits.targets, "two": changed(splits.targets["two"])}
        ),
        "target:one": replace(splits, targets={"two": splits.targets["two"]}),
        "target:three": replace(splits, targets={**splits.targets, "three": tiny_domain("three")}),
    }.items():
        with pytest.raises(DataError, match=f"data has changed .*: {name}\\."):
            fit(tmp_path / "run", other)
    fit(tmp_path / "run")


@pytest.mark.parametrize("done", [True, False], ids=["done", "interrupted"])
def test_new_data_is_accepted_on_request_and_starts_again(tmp_path: Path, done: bool):
    out = tmp_path / "run"
    fit(out)
    if not done:
        (out / "done.json").unlink()
    splits = tiny_splits()
    other = replace(splits, train=changed(splits.train))
    with pytest.warns(PeerdgWarning, match="data has changed"):
        renewed = fit(out, other, existing="renew")
    fresh = fit(tmp_path / "fresh", other)
    assert renewed.records == fresh.records
    expected = fresh.model.classifier.state_dict()
    for name, value in renewed.model.classifier.state_dict().items():
        assert torch.equal(value, expected[name]), name
    events = (out / "events.jsonl").read_text()
    assert events.count('"start"') == 1  # nothing of the old run is left
    before = (out / "metrics.jsonl").read_bytes()
    (out / "done.json").unlink()
    fit(out, other, existing="renew")  # nothing changed, so the run continues
    assert (out / "metrics.jsonl").read_bytes() == before
    assert '"resume"' in (out / "events.jsonl").read_text()


def test_another_version_or_hardware_continues_with_a_warning(tmp_path: Path):
    out = tmp_path / "run"
    fit(out, threads=1)
    original = json.loads((out / "manifest.json").read_text())
    assert original["hardware"]["instruction set"] == torch.backends.cpu.get_cpu_capability()
    for name in ("torch", *original["hardware"]):
        (out / "done.json").unlink()
        manifest = json.loads(json.dumps(original))
        (manifest if name == "torch" else manifest["hardware"])[name] = "other"
        (out / "manifest.json").write_text(json.dumps(manifest))
        with pytest.warns(PeerdgWarning, match=f"{name} other .* not be bitwise"):
            fit(out, threads=1)
    assert (out / "events.jsonl").read_text().count("other_version") == 5


def test_fewer_images_than_a_batch_are_refused_before_anything_is_trained(tmp_path: Path):
    with pytest.raises(ConfigError, match="fewer than one batch of 25"):
        fit(tmp_path / "run", train={"epochs": 1, "batch_size": 25})
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_periods_that_do_not_fit_the_epochs_are_said(tmp_path: Path):
    for k, words in ((5, "larger than the 3 epochs"), (2, "last 1 are left out")):
        with pytest.warns(PeerdgWarning, match=words) as warned:
            fit(tmp_path / str(k), method="peer", peer={"k": k, "head_dim": 4},
                train={"epochs": 3, "batch_size": 8})  # fmt: skip
        assert len(warned) == 1  # not again by the method, at the end
    assert notes(resolve({"method": "peer"})) == []


def with_target(*classes: str) -> Splits:
    domain = tiny_domain("strange", classes=len(classes))
    return replace(tiny_splits(), targets={"strange": replace(domain, classes=classes)})


def test_a_target_may_lack_classes_and_have_them_in_another_order(tmp_path: Path):
    own = fit(tmp_path / "own", with_target("a", "b"))
    swapped = with_target("b", "a")
    domain = swapped.targets["strange"]
    swapped = replace(swapped, targets={"strange": replace(domain, labels=1 - domain.labels)})
    other = fit(tmp_path / "other", swapped)
    assert own.accuracy == other.accuracy


def test_a_finished_run_is_left_as_it_is(tmp_path: Path):
    fit(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    fit(tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    with pytest.raises(OutputError, match="already holds"):
        peerdg.fit(tiny_splits(), out=tmp_path / "run", model=tiny_classifier())


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_state_goes_on_from_disk_as_it_does_in_memory(
    tmp_path: Path, optimizer: Literal["adam", "sgd"]
):
    layout = torch.channels_last if optimizer == "sgd" else torch.contiguous_format
    settings, source = PhaseSettings(optimizer=optimizer, lr=0.1), Source(tiny_domain())

    def fresh() -> TrainState:
        method = ERM(tiny_classifier().to(memory_format=layout))
        return TrainState("train", method, make_optimizers(method, settings))

    def step(state: TrainState, number: int) -> None:
        rows, key = torch.arange(8) + number, ("train", 0, number)
        batch = source.batch(rows, seed=0, key=key)
        terms = train_step(state, batch, rows, guard=Guard(state), seed=0, key=key)
        state.add_terms(terms)
        state.step += 1

    whole = fresh()
    for number in range(6):
        save_checkpoint(tmp_path, number + 1, whole.tensors(), whole.metadata())
        loaded = load_checkpoint(checkpoints(tmp_path)[-1])
        resumed = fresh()
        resumed.restore(loaded.tensors, loaded.state)
        step(whole, number)
        step(resumed, number)
        assert list(resumed.sums) == list(whole.sums)
        for name, value in whole.tensors().items():
            assert torch.equal(resumed.tensors()[name], value), f"{name}, step {number}"


def test_a_folder_with_only_a_config_starts_and_may_stop_after_an_epoch(tmp_path: Path):
    whole, stopped = photo_run(tmp_path), tmp_path / "stopped"
    stopped.mkdir()
    shutil.copy(whole / "config.toml", stopped)
    assert run(["resume", str(stopped), "--stop-after", "1", "--quiet"], debug=False) == 0
    assert not (stopped / "done.json").exists()
    records = RunFolder(stopped).metrics.read()
    assert {r["epoch"] for r in records if r["phase"] == "train"} == {0, 1}
    assert run(["resume", str(stopped), "--quiet"], debug=False) == 0
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
