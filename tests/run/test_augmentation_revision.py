"""A half-done run does not go on with operations that mean something else by now."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import peerdg
from peerdg.api import Run
from peerdg.augment import REVISION, is_same_augmentation
from peerdg.cli.main import run
from peerdg.errors import ConfigError, Stopped
from peerdg.methods.registry import method_names
from peerdg.run.config import resolve
from peerdg.train import loop
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.photo_run import photo_run

AFFECTED: dict[str, dict[str, Any]] = {
    "randaugment": {"method": "randaugment", "augment": {"operations": "sdg"}},
    "peer": {"method": "peer", "peer": {"k": 1}, "augment": {"operations": "sdg"}},
}
NOT_AFFECTED: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "torchvision": {"method": "randaugment", "augment": {"operations": "torchvision"}},
    "no augmentation": {"method": "peer", "peer": {"k": 1, "augment": False}},
}


def fit(out: Path, options: dict[str, Any], existing: Any = "refuse") -> Run:
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


def stopped(out: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped in its second epoch."""
    step, count = loop.train_step, iter(range(100))

    def stopping(*args: Any, **given: Any) -> Any:
        if next(count) == 7:
            signal.raise_signal(signal.SIGTERM)
        return step(*args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", stopping)
        with pytest.raises(Stopped):
            fit(out, options)


def set_revision(out: Path, revision: int | None) -> None:
    """As a version of that revision wrote it; None: before there was a number."""
    path = out / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["augmentation"]
    path.write_text(json.dumps(manifest | ({} if revision is None else {"augmentation": revision})))


def contents(out: Path) -> dict[Path, bytes]:
    names = ("metrics.jsonl", "manifest.json", "config.toml", "model/model.safetensors")
    files = [*out.glob("checkpoint/*/*"), *(out / name for name in names)]
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize("case", AFFECTED)
@pytest.mark.parametrize("revision", [None, 1, REVISION + 1])
def test_a_half_done_run_of_another_revision_is_refused(tmp_path, monkeypatch, case, revision):
    out = tmp_path / "run"
    stopped(out, AFFECTED[case], monkeypatch)
    set_revision(out, revision)
    before = contents(out)
    with pytest.raises(ConfigError, match="operations 'sdg' change images in another way") as error:
        fit(out, AFFECTED[case], existing="resume")
    assert error.value.exit_code == 2
    assert "--overwrite" in (error.value.hint or "")
    assert contents(out) == before
    anew = fit(out, AFFECTED[case], existing="overwrite")
    assert json.loads((anew.path / "manifest.json").read_text())["augmentation"] == REVISION


@pytest.mark.parametrize("case", NOT_AFFECTED)
def test_a_run_without_the_changed_operations_goes_on(tmp_path, monkeypatch, case):
    stopped(tmp_path / "run", NOT_AFFECTED[case], monkeypatch)
    set_revision(tmp_path / "run", None)
    fit(tmp_path / "run", NOT_AFFECTED[case], existing="resume")
    whole = fit(tmp_path / "whole", NOT_AFFECTED[case])
    operations = NOT_AFFECTED[case].get("augment", {"operations": "sdg"})["operations"]
    assert whole.config.augment.operations == operations  # that of the preset, if none is given
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_of_this_revision_goes_on(tmp_path, monkeypatch):
    stopped(tmp_path / "run", AFFECTED["peer"], monkeypatch)
    fit(tmp_path / "run", AFFECTED["peer"], existing="resume")
    fit(tmp_path / "whole", AFFECTED["peer"])
    run, whole = (tmp_path / name / "metrics.jsonl" for name in ("run", "whole"))
    assert run.read_bytes() == whole.read_bytes()


def test_a_finished_run_of_an_old_revision_is_still_used(tmp_path, capsys):
    out = photo_run(tmp_path)
    assert json.loads((out / "manifest.json").read_text())["config"]["method"] == "peer"
    set_revision(out, None)
    image = next(tmp_path.rglob("*.png"))
    for arguments in (
        ["runs", str(out.parent)],
        ["evaluate", str(out)],
        ["predict", str(out), str(image)],
        ["export", str(out), "--format", "safetensors", "-o", str(tmp_path / "exported")],
        ["resume", str(out), "--quiet"],
    ):
        assert run(arguments, debug=False) == 0, arguments


def test_every_method_says_whether_it_augments():
    for name in method_names():
        assert isinstance(resolve({"method": name}).augments, bool), name


def test_a_revision_counts_for_the_sets_of_operations_that_it_changed():
    assert is_same_augmentation("sdg", REVISION)
    assert not is_same_augmentation("sdg", 1)
    assert is_same_augmentation("torchvision", 1)
    assert not is_same_augmentation("torchvision", REVISION + 1)
