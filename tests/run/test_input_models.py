"""Networks that a method is given: fingerprints in the manifest, oracles that are called so."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import peerdg
from peerdg.cli.main import run as command
from peerdg.data.splits import with_targets
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.files import sha256
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import checksum, save_model
from peerdg.report.compare import by_variant
from peerdg.report.runs import load_runs, read_run, save_runs
from peerdg.run import prepare
from peerdg.run.config import resolve
from tests.conftest import tiny_classifier, tiny_splits
from tests.run.stops import stopped_at

OPTIONS: dict[str, Any] = {
    "pretrain": {"epochs": 1, "batch_size": 8, "lr": 0.01},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "evaluate_every": 1,
    "crafted": "off",
    "transform": {"size": 32},
}


def fit(out: Path, *, existing="refuse", **options: Any) -> Path:
    return peerdg.fit(
        tiny_splits(), out=out, model=tiny_classifier(), existing=existing, **OPTIONS | options
    ).path


def save_teacher(folder: Path, seed: int = 0, *, oracle: bool = False) -> Path:
    """A network that can be built by name, of another width than the student."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_classifier("digits-cnn-half", classes=("x", "y"))
    save_model(folder, model, backbone="digits-cnn-half", image_size=32)
    if oracle:
        change(folder, training=TRAINING | {"oracle": True})
    return folder


TRAINING = {
    "data": "d", "source": "s", "images": {"train": 5}, "fingerprint": "f", "method": "erm",
    "weights": "none", "budget": "quick", "seed": 0, "settings": {}, "selection": "last",
}  # fmt: skip


def change(folder: Path, **values: Any) -> None:
    about = {**json.loads((folder / "model.json").read_text()), **values}
    (folder / "model.json").write_text(json.dumps({**about, "sha256": checksum(about)}))


def guided(out: Path, teacher: Path | str, **options: Any) -> Path:
    own = {"model": str(teacher), "k": 1, "head_dim": 4, "head_hidden": 8, "adapter_epochs": 1}
    return fit(out, method="teacher", teacher=own, **options)


def manifest(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return content


def test_the_manifest_has_the_hash_of_a_teachers_weights(tmp_path):
    teacher = save_teacher(tmp_path / "teacher")
    run = guided(tmp_path / "run", teacher)
    digest = sha256(teacher / "model.safetensors")
    assert manifest(run)["models"] == {"teacher.model": digest}
    assert manifest(run)["oracle"] is False
    files = ("metrics.jsonl", "model/MODEL_CARD.md", "model/model.json")
    assert not any("oracle" in (run / name).read_text() for name in files)
    assert read_run(run).options["teacher.model"] == f"teacher@{digest[:12]}"
    with pytest.raises(DataError, match=r"--teacher\.model"):
        guided(tmp_path / "other", tmp_path / "nothing")
    assert not (tmp_path / "other").exists()


def test_a_resumed_student_ends_bitwise_equal(tmp_path):
    """Stopped in pre-training, before the adapter is fitted, and in the main phase, after it."""
    teacher = save_teacher(tmp_path / "teacher")
    whole = guided(tmp_path / "whole", teacher)
    for step in (2, 5):
        with stopped_at(step):
            guided(tmp_path / str(step), teacher)
        resumed = guided(tmp_path / str(step), teacher, existing="resume")
        for name in ("model/model.safetensors", "metrics.jsonl"):
            assert (resumed / name).read_bytes() == (whole / name).read_bytes()


def test_two_teachers_of_one_path_are_told_apart(tmp_path):
    runs = []
    for seed in range(2):
        teacher = save_teacher(tmp_path / "teacher", seed)
        runs.append(read_run(guided(tmp_path / f"run-{seed}", teacher)))
        shutil.rmtree(teacher)
    assert len(by_variant(runs)) == 2
    save_runs(tmp_path, runs)
    assert str(tmp_path) not in (tmp_path / "runs.json").read_text()
    assert list(by_variant(load_runs(tmp_path))) == list(by_variant(runs))


def test_a_run_is_not_resumed_with_a_changed_teacher(tmp_path):
    teacher = save_teacher(tmp_path / "teacher")
    run = guided(tmp_path / "run", teacher)
    (run / "done.json").unlink()
    kept = Path(shutil.copytree(teacher, tmp_path / "kept"))
    weights = load_file(teacher / "model.safetensors")
    weights["head.bias"] += 1
    save_file(weights, teacher / "model.safetensors")
    change(teacher, weights_sha256=sha256(teacher / "model.safetensors"))
    with pytest.raises(ConfigError, match=r"model for teacher\.model"):
        guided(run, teacher, existing="resume")
    shutil.rmtree(teacher)
    with pytest.raises(DataError, match="does not exist"):
        guided(run, teacher, existing="resume")
    kept.rename(teacher)
    guided(run, teacher, existing="resume")


def test_a_network_may_be_given_by_name_with_its_published_weights(tmp_path, monkeypatch):
    """The encoder has the published weights, whatever the head; the file's hash is kept."""
    published = build_classifier("squeezenet1_1", classes=("a", "b", "c"))
    state = {n.removeprefix("encoder."): t.clone() for n, t in published.state_dict().items()
             if n.startswith("encoder.")}  # fmt: skip
    file = tmp_path / "squeezenet1_1.safetensors"
    save_file({name: t.contiguous() for name, t in state.items()}, file)
    for module in ("peerdg.run.prepare", "peerdg.models.weights"):
        monkeypatch.setattr(f"{module}.weights_file", lambda backbone, weights: file)
    network = prepare.load_input_model("squeezenet1_1")
    for name, value in network.encoder.state_dict().items():
        assert torch.equal(value, state[name]), name
    config = resolve({"method": "teacher", "teacher": {"model": "squeezenet1_1"}})
    assert prepare.input_models_record(config)["models"] == {"teacher.model": sha256(file)}


def test_a_folder_comes_before_a_network_of_its_name(tmp_path, monkeypatch):
    save_teacher(tmp_path / "squeezenet1_1")
    monkeypatch.chdir(tmp_path)
    assert prepare.load_input_model("squeezenet1_1").classes == ("x", "y")


def test_an_oracle_learns_from_source_and_targets():
    splits = tiny_splits()
    joined = with_targets(splits)
    parts = [splits.train, splits.targets["one"], splits.targets["two"]]
    assert torch.equal(joined.train.images, torch.cat([part.images for part in parts]))
    assert torch.equal(joined.train.labels, torch.cat([part.labels for part in parts]))
    assert joined.train.name == "source+one+two"
    assert joined.validation is splits.validation
    assert dict(joined.targets) == dict(splits.targets)
    with pytest.raises(ConfigError, match="there are none"):
        with_targets(peerdg.Splits(splits.train, splits.validation))


@pytest.fixture
def oracle(tmp_path) -> Path:
    with pytest.warns(PeerdgWarning, match="is an oracle"):
        return fit(tmp_path / "oracle", method="oracle-erm")


def assert_labelled(run: Path) -> None:
    """The word stands wherever the numbers do."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(r["oracle"] is True for r in records if r["kind"] == "evaluation")
    assert manifest(run)["oracle"] is True
    card = (run / "model/MODEL_CARD.md").read_text()
    assert "It is an oracle" in card and "a domain it never saw" not in card
    assert json.loads((run / "model/model.json").read_text())["training"]["oracle"] is True
    assert "oracle" in read_run(run).method
    assert read_run(run).oracle


def test_an_oracle_is_called_one_everywhere(oracle, tmp_path, capsys):
    assert_labelled(oracle)
    assert manifest(oracle)["images"]["train"] == 24 + 12 + 15
    assert command(["runs", str(oracle)], debug=False) == 0
    assert "oracle-erm" in capsys.readouterr().out
    save_runs(tmp_path, [read_run(oracle)])
    assert load_runs(tmp_path)[0].oracle


def test_the_student_of_an_oracle_is_called_one(tmp_path):
    teacher = save_teacher(tmp_path / "teacher", oracle=True)
    run = guided(tmp_path / "run", teacher)
    assert_labelled(run)
    assert read_run(run).method == "teacher (oracle)"
    assert manifest(run)["images"]["train"] == 24  # it saw the source alone


def test_a_combination_with_an_oracle_is_one(oracle, tmp_path):
    with pytest.warns(PeerdgWarning, match="is an oracle"):
        other = fit(tmp_path / "other", method="randaugment", oracle=True, train_seed=5)
    assert read_run(other).method == "randaugment (oracle)"
    assert_labelled(other)
    splits = with_targets(tiny_splits())
    peerdg.combine([oracle, other], out=tmp_path / "u", data=splits, network=tiny_classifier())
    assert "It is an oracle" in (tmp_path / "u/MODEL_CARD.md").read_text()
