"""Runs as reports read them: from their folders, and from the records of a report."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import peerdg
from peerdg.cli.main import run as command
from peerdg.errors import DamagedError, PeerdgWarning
from peerdg.options import merge
from peerdg.report.compare import by_variant
from peerdg.report.runs import (
    RunResult,
    as_of,
    collect_runs,
    load_runs,
    read_run,
    save_runs,
)
from peerdg.run.manifest import code_digest
from tests.conftest import tiny_classifier, tiny_splits
from tests.report.made import GROUPS, level, peer
from tests.run.stops import stopped_at
from tests.run.test_choices import folder as photo_folder
from tests.run.test_resume_all import STEPS, fit

RESULTS = Path(__file__).parents[2] / "results"
ROLES = {"erm": ("model", "model"), "peer": ("proxy", "task")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, three periods each."""
    out = tmp_path_factory.mktemp("runs")
    for method in ROLES:
        for seed in (0, 1):
            peerdg.fit(
                tiny_splits(), out=out / f"{method}-{seed}", model=tiny_classifier(seed=seed),
                seed=seed, method=method, evaluate_every=1, crafted="off",
                pretrain={"epochs": 1, "batch_size": 8}, train={"epochs": 3, "batch_size": 8},
                **({"peer": {"k": 1}} if method == "peer" else {}),
            )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[RunResult]:
    return collect_runs([folder])


def test_accuracies_and_roles_are_those_of_the_files(folder: Path, runs: list[RunResult]):
    assert [run.path.name for run in runs] == ["erm-0", "erm-1", "peer-0", "peer-1"]
    for run in runs:
        lines = (run.path / "metrics.jsonl").read_text().splitlines()
        last = [r for r in map(json.loads, lines) if (r["kind"], r["epoch"]) == ("evaluation", 3)]
        for model in run.networks:
            expected = {r["domain"]: r["accuracy"] for r in last if r["model"] == model}
            assert run.final(model) == expected
            assert run.score(model) == (expected["one"] + expected["two"]) / 2
        assert (run.trained, run.deployed) == ROLES[run.method]
        assert run.images["train"] == 24 and run.size("one", "validation") == 9
        assert run.peak_memory > 0 and run.steps == 9 and run.seconds > 0
        ours = f"peerdg {peerdg.__version__} (code {code_digest()}), torch {torch.__version__}"
        assert run.software == (ours,)
    assert len(collect_runs([folder, folder / "erm-0"])) == len(runs)


def test_a_run_in_progress_knows_what_it_will_deploy(folder: Path, tmp_path: Path):
    out = shutil.copytree(folder / "peer-0", tmp_path / "run")
    done = json.loads((out / "done.json").read_text())
    (out / "done.json").write_text(json.dumps({**done, "deployed": "proxy"}))
    assert read_run(out).deployed == "proxy"  # the model that was stored
    (out / "done.json").unlink()
    found = read_run(out)
    assert (found.status, found.trained, found.deployed) == ("resumable", "proxy", "task")
    assert by_variant([found]) == {}


def test_half_an_evaluation_at_the_end_is_none(folder: Path, tmp_path: Path):
    """A process was killed while it wrote. A resumed run evaluates again."""
    out = shutil.copytree(folder / "erm-0", tmp_path / "run")
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(DamagedError, match="incomplete"):
        read_run(out)
    (out / "done.json").unlink()
    assert max(record["epoch"] for record in read_run(out).evaluations) == 2
    first = next(n for n, line in enumerate(lines) if '"evaluation"' in line)
    (out / "metrics.jsonl").write_text("".join(lines[:first] + lines[first + 1 :]))
    with pytest.raises(DamagedError, match="incomplete"):
        read_run(out)


def test_records_that_are_not_those_of_the_result_are_damaged(folder: Path, tmp_path: Path):
    out = shutil.copytree(folder / "erm-0", tmp_path / "run")
    text = (out / "metrics.jsonl").read_text()
    (out / "metrics.jsonl").write_text(re.sub(r'"accuracy": [0-9.]+', '"accuracy": 50.0', text))
    with pytest.raises(DamagedError, match="does not match"):
        read_run(out)


def test_a_damaged_folder_is_left_out_with_a_warning(folder: Path, tmp_path: Path):
    for file, content in (("manifest.json", "{"), ("done.json", ""), ("config.toml", "[")):
        for run in ("erm-0", "erm-1"):
            shutil.copytree(folder / run, tmp_path / run, dirs_exist_ok=True)
        (tmp_path / "erm-0" / file).write_text(content)
        with pytest.warns(PeerdgWarning, match="skipped"):
            assert [run.seed for run in collect_runs([tmp_path])] == [1]


# Records.


def test_records_give_back_what_a_report_uses(runs: list[RunResult], tmp_path: Path):
    save_runs(tmp_path, runs)
    for run, kept in zip(runs, collect_runs([tmp_path / "runs.json"]), strict=True):
        for name in (
            "seconds",
            "step_seconds",
            "steps",
            "method",
            "variant",
            "networks",
            "domains",
        ):
            assert getattr(kept, name) == getattr(run, name), name
        for ours, theirs in zip(run.evaluations, kept.evaluations, strict=True):
            for key in ("epoch", "model", "domain", "n", "accuracy"):
                assert ours[key] == theirs[key]
            assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)
        terms = [epoch["loss"] for epoch in run.epochs]
        assert [epoch["loss"] for epoch in kept.epochs] == pytest.approx(terms, rel=1e-4)
    # Written again, they are the same files.
    save_runs(tmp_path / "again", load_runs(tmp_path))
    for name in ("runs.json", "evaluations.csv", "epochs.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_every_field_is_kept(tmp_path: Path):
    whole = peer(
        fields={
            "status": "failed", "batch_statistics": "trained", "peak_memory": 7,
            "collapsed": ("train",), "images": {"train": 5}, "weights_sha256": "ab",
            "models": {"teacher.model": "cd"}, "network": "n", "network_weights": "w",
            "software": ("a", "b"), "oracle": True, "folder": "photos", "row": "my row",
            "shared_with": ("x", "y"), "combined_from": ("p", "q"), "is_taken": True,
            "planned_epochs": 9, "epochs": [{"phase": "train", "epoch": 1, "member": "p-0-1"}],
        },
    )  # fmt: skip
    plain = peer(method="erm")
    for runs in ([whole], [whole, plain], [plain, whole]):
        save_runs(tmp_path, runs)
        for run, kept in zip(runs, load_runs(tmp_path), strict=True):
            for name in RunResult.__dataclass_fields__:
                if name not in ("path", "evaluations", "profile", "config"):
                    assert getattr(kept, name) == getattr(run, name), name
            assert merge(kept.config, run.config) == kept.config  # with newer options
            assert [r["accuracy"] for r in kept.evaluations] == [
                r["accuracy"] for r in run.evaluations
            ]


def test_evaluations_that_rows_share_are_stored_once(tmp_path: Path):
    shared, average = GROUPS["randaugment"][0], GROUPS["p-ens"][0]
    network = [r for r in average.evaluations if r["model"] == "model"]
    watched = replace(shared, evaluations=network)
    save_runs(tmp_path, [watched, average])
    with (tmp_path / "evaluations.csv").open() as file:
        stored = {(line["run"], line["model"]) for line in csv.DictReader(file)}
    assert stored == {("randaugment-0", "model"), ("p-ens-0", "snapshots")}
    with (tmp_path / "epochs.csv").open() as file:
        assert {line["run"] for line in csv.DictReader(file)} == {"randaugment-0"}
    first, second = load_runs(tmp_path)
    assert (first.networks, second.networks) == (["model"], ["model", "snapshots"])
    assert second.epochs == average.epochs and second.final("model") == first.final("model")


def test_runs_of_one_name_and_domains_of_any_name_are_kept_apart(tmp_path: Path):
    def named(seed: int, folder: str) -> RunResult:
        run = peer(seed)
        strange = {"art": "epoch", "sketch": 'a,"b"\nc'}
        evaluations = [{**r, "domain": strange.get(r["domain"], r["domain"])}
                       for r in run.evaluations]  # fmt: skip
        return replace(run, path=Path(folder) / "run", evaluations=evaluations)

    runs = [named(0, "a"), named(1, "b")]
    save_runs(tmp_path, runs)
    kept = load_runs(tmp_path)
    assert [run.path.name for run in kept] == ["run (1)", "run (2)"]
    assert [run.final("task") for run in kept] == [run.final("task") for run in runs]


def test_records_do_not_say_where_they_were_made(folder, runs, tmp_path: Path, monkeypatch):
    paths = {"weights": "/home/me/net.pth", "root": "/data", "method": "teacher",
             "teacher": {"model": "/home/me/teacher"}}  # fmt: skip
    save_runs(tmp_path, [*runs, peer(**paths)])
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert str(folder) not in text and "/home" not in text and "/data" not in text
    config = load_runs(tmp_path)[-1].config
    assert (config["weights"], config["teacher"]["model"]) == ("net.pth", "teacher")
    monkeypatch.chdir(tmp_path)
    photo_folder(Path("my photos"))
    arguments = ["train", "my photos", "--epochs", "1", "--method", "erm", "--pretrain.epochs", "0",
                 "--out", "run", "--crafted", "off", "--quiet"]  # fmt: skip
    assert command(arguments, debug=True) == 0
    save_runs(tmp_path / "records", [read_run(Path("run"))])
    (kept,) = load_runs(tmp_path / "records")
    assert kept.data == "my photos"
    assert kept.fingerprints == read_run(Path("run")).fingerprints != {}
    assert str(tmp_path) not in (tmp_path / "records/runs.json").read_text()


def test_damaged_records_and_other_formats_are_refused(tmp_path: Path):
    for file, old, new in (
        ("runs.json", '"format": 1', '"format": 2'),
        ("runs.json", '"name"', '"title"'),
        ("runs.json", "{", ""),
        ("evaluations.csv", "peer-0,task", "peer-9,task"),
        ("evaluations.csv", "epoch", "era"),
    ):
        save_runs(tmp_path, [peer(0), peer(1)])
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new))
        with pytest.raises(DamagedError):
            load_runs(tmp_path)
    with pytest.raises(DamagedError):
        load_runs(tmp_path / "nowhere")


def test_the_records_of_every_study_can_be_read():
    for study in sorted(path.parent for path in RESULTS.glob("*/runs.json")):
        for run in load_runs(study):
            assert run.row and run.targets and run.seconds > 0
            assert run.trained in run.networks and run.deployed in run.networks


# Time and length.


def epoch(number: int, seconds: float, *, phase: str = "train", **values: Any) -> dict[str, Any]:
    return {"phase": phase, "epoch": number, "steps": 10, "seconds": seconds, **values}


WHOLE = [epoch(1, 7.0, phase="pretrain"), epoch(1, 2.0), epoch(2, 2.0), epoch(3, 2.0)]


def test_steps_before_a_stop_count_like_the_others():
    for left in (10, 9, 4, 1):
        epochs = [*WHOLE[:2], epoch(2, 0.2 * left, timed_steps=left), WHOLE[3]]
        stopped = replace(peer(), epochs=epochs)
        assert stopped.step_seconds == pytest.approx(0.2)
        assert stopped.seconds == pytest.approx(13.0)


def test_a_stopped_and_resumed_run_counts_every_epoch_once(tmp_path: Path):
    with stopped_at(STEPS + 1):  # one step into the main phase
        fit(tmp_path / "run", "erm", {})
    fit(tmp_path / "run", "erm", {}, existing="resume")
    epochs = read_run(tmp_path / "run").epochs
    assert [(e["phase"], e["steps"], e.get("timed_steps")) for e in epochs] == [
        ("pretrain", STEPS, None), ("train", STEPS, STEPS - 1),
        ("train", STEPS, None), ("train", STEPS, None),
    ]  # fmt: skip


def test_a_run_as_of_an_epoch_is_the_run_that_ends_there():
    run = level("p-ens", 0, epochs=14)
    early = as_of(run, 8)
    expected = level("p-ens", 0, epochs=8)
    assert early.evaluations == expected.evaluations and early.epochs == expected.epochs
    assert early.config == expected.config and early.planned_epochs == 14
    assert early.variant == expected.variant
    assert as_of(run, 14).planned_epochs is None and as_of(early, 4).planned_epochs == 14
    sma = level("sma", 0, epochs=14)  # an average over a part of the whole run
    assert as_of(sma, 8).variant != level("sma", 0, epochs=8).variant


def test_fluctuation_counts_every_kth_epoch():
    run = level("randaugment", 0, epochs=14)
    assert run.fluctuation("model", burn_in_periods=12) is None  # two points
    assert run.fluctuation("model", burn_in_periods=11) is not None
    assert run.fluctuation("model", every=2, burn_in_periods=4).mean.var == 0.0  # from epoch 10
    assert run.fluctuation("model", every=2, burn_in_periods=2).mean.var > 0  # with epoch 6
    assert replace(run, config={**run.config, "evaluate_every": 3}).period == 3
