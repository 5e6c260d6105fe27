"""Which network is trained and which is deployed: as the run's records say, whatever the names."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import peerdg
from peerdg.report.result import RunResult
from peerdg.report.runs import load_runs, read_run, save_runs
from peerdg.report.tables import comparison, final_accuracies
from peerdg.report.variants import by_variant
from tests.conftest import tiny_classifier, tiny_splits
from tests.report.test_selection_report import run

ROOT = Path(__file__).parents[2]
OBSERVED = {"net": 1.0, "ema": 2.0, "swa": 3.0}  # by how much each is better than the first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    peerdg.fit(
        tiny_splits(), out=out, model=tiny_classifier(), method="peer", peer={"k": 1},
        crafted="off", pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 2, "batch_size": 8},
    )  # fmt: skip
    return out


def observing(**roles: str) -> RunResult:
    """A run with three observed networks, and records of their roles as given."""
    usual = run(0)
    records = [
        {**record, "model": name, "accuracy": record["accuracy"] + gain}
        for record in usual.records
        if record["model"] == "task"
        for name, gain in OBSERVED.items()
    ]
    return replace(usual, records=records, inputs=replace(usual.inputs, **roles))


def test_the_manifest_names_the_roles_from_the_start_of_the_main_phase(folder: Path):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["trained"], manifest["deployed"]) == ("proxy", "task")
    assert manifest["config"]["method"] == "peer"  # and all the rest is still there


def copy_without(folder: Path, out: Path, *, manifest: bool, done: bool) -> RunResult:
    """The run as an older version or a stop would have left it."""
    shutil.copytree(folder, out)
    if not manifest:
        content = json.loads((out / "manifest.json").read_text())
        del content["trained"], content["deployed"]
        (out / "manifest.json").write_text(json.dumps(content))
    if not done:
        (out / "done.json").unlink()
    return read_run(out)


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_runs_of_any_age_and_in_progress_have_the_same_roles(
    folder: Path, tmp_path: Path, manifest: bool, done: bool
):
    found = copy_without(folder, tmp_path / "run", manifest=manifest, done=done)
    assert found.status == ("done" if done else "resumable")
    assert (found.trained, found.deployed) == ("proxy", "task")


def test_of_several_watched_averages_a_run_in_progress_names_the_one_it_will_deploy(tmp_path: Path):
    out = tmp_path / "run"
    peerdg.fit(
        tiny_splits(), out=out, model=tiny_classifier(), method="randaugment", crafted="off",
        average={"kind": ["snapshots", "ema"]}, randaugment={"k": 1},
        pretrain={"epochs": 0}, train={"epochs": 1, "batch_size": 8},
    )  # fmt: skip
    (out / "done.json").unlink()
    found = read_run(out)
    assert found.models == ["model", "snapshots", "ema"]
    assert (found.status, found.trained, found.deployed) == ("resumable", "model", "snapshots")


@pytest.mark.parametrize("deployed", OBSERVED)
def test_the_record_wins_over_the_order_of_observation(tmp_path: Path, deployed: str):
    save_runs(tmp_path / "runs.json", [observing(trained="net", deployed=deployed)])
    (kept,) = load_runs(tmp_path / "runs.json")
    assert (kept.trained, kept.deployed) == ("net", deployed)
    assert kept.averages == (deployed != "net")
    (row,) = comparison([kept]).rows
    assert row[2] == f"{65 + OBSERVED[deployed]:.1f}"
    shown = [row[0] for row in final_accuracies(kept).rows]
    assert [name for name in shown if "deployed" in name] == [f"peer {deployed} (deployed)"]


def test_without_a_record_the_first_observed_is_trained_and_the_last_deployed():
    found = observing()
    assert (found.trained, found.deployed) == ("net", "swa")


def test_a_name_that_was_not_observed_is_no_role():
    found = observing(trained="gone", deployed="gone")
    assert (found.trained, found.deployed) == ("net", "swa")


def test_done_and_manifest_that_disagree_are_read_as_what_was_stored(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "run")
    done = json.loads((folder / "done.json").read_text())
    (tmp_path / "run" / "done.json").write_text(json.dumps({**done, "deployed": "proxy"}))
    assert read_run(tmp_path / "run").deployed == "proxy"


def test_a_run_is_called_by_the_name_it_was_started_under():
    named = replace(run(0), config={**run(0).config, "recipe": "my-recipe"})
    assert list(by_variant([named, run(1)])) == ["my-recipe"]  # the name decides no result
    assert named.method == "my-recipe"
