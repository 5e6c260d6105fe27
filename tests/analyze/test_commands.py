import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from peerdg.analyze.networks import AnalyzedRun
from peerdg.cli.main import run
from peerdg.report.runs import collect_runs
from tests.cli.stored_models import save_photos, save_small_model


def analyze(*arguments: object) -> int:
    return run(["analyze", *map(str, arguments)], debug=False)


def results(folder: Path, name: str) -> dict:
    """Check both figures and return the numbers."""
    with Image.open(folder / f"{name}.png") as picture:
        assert picture.width >= 600
        assert len(picture.convert("RGB").getcolors(2**24)) > 20
    assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    return json.loads((folder / f"{name}.json").read_text())


def test_cka_writes_into_the_run_and_leaves_it_intact(runs, tmp_path: Path, capsys):
    folder = tmp_path / "peer"
    shutil.copytree(runs["peer"], folder)
    assert analyze("cka", folder, "--max-images", 20) == 0
    made = results(folder / "analysis", "cka")
    assert [each["a"] for each in made["results"]] == [f"{folder}@2", f"{folder}@4"]
    assert (
        all(len(each["layers"]) == 7 for each in made["results"])
        and made["images"] == 20
        and made["with"] == "init"
    )
    shown = capsys.readouterr().out
    for each in made["results"]:
        matrix = torch.tensor(each["matrix"])
        assert matrix.shape == (7, 7)
        assert list(each["diagonal"].values()) == pytest.approx(matrix.diagonal().tolist())
        assert f"{each['diagonal']['fc1']:.3f}" in shown
    assert [each.path for each in collect_runs([tmp_path])] == [folder]


def test_cka_compares_any_two_networks(runs, tmp_path: Path):
    peer, other = runs["peer"], runs["randaugment"]
    assert (
        analyze("cka", f"{peer}@last", f"{other}@2", "--with", f"{peer}@last", "-o", tmp_path) == 0
    )
    first, second = results(tmp_path, "cka")["results"]
    assert first["diagonal"] == pytest.approx(dict.fromkeys(first["diagonal"], 1.0))
    assert second["diagonal"] != pytest.approx(first["diagonal"], abs=1e-4)
    assert (
        analyze("cka", peer, other, "--with", "task", "--epochs", "2,4", "--full", "-o", tmp_path)
        == 0
    )
    made = results(tmp_path, "cka")
    assert len(made["results"]) == 4 and "full" in made["estimate"]


def test_connectivity_of_a_path_and_of_all_pairs(runs, tmp_path: Path):
    peer, other = runs["peer"], runs["randaugment"]
    assert analyze("connectivity", peer, other, "--points", 3, "-o", tmp_path) == 0
    made = results(tmp_path, "connectivity")["results"]
    assert [(each["run"], each["a"], each["b"]) for each in made] == [
        (str(peer), "init", "last"),
        (str(other), "init", "last"),
    ]
    done = json.loads((peer / "done.json").read_text())["accuracy"]["proxy"]
    for domain, accuracy in done.items():
        assert made[0]["accuracy"][domain][0] == accuracy
    assert {"gain", "loss_barrier_linear"} <= made[0]["summary"]["paintings"].keys()
    options = ("--points", 3, "--max-images", 6, "-o", tmp_path)
    assert analyze("connectivity", peer, other, "--between", "all", *options) == 0
    made = results(tmp_path, "connectivity")["results"]
    assert [each["b"] for each in made] == ["2", "4", "4"] * 2
    between = f"{peer}@last,{other}@last"
    assert analyze("connectivity", peer, "--between", between, *options) == 0


def test_drift_writes_figures_and_numbers(runs, tmp_path: Path):
    assert analyze("drift", runs["peer"], "-o", tmp_path) == 0
    made = results(tmp_path, "drift")
    assert made["epochs"] == [0, 2, 4] and len(made["forgetting"]) == 2
    assert made["geometry"]["layers"].keys() == {"conv1", "conv2", "fc1", "fc2", "head"}


@pytest.mark.parametrize("command", ["cka", "connectivity", "drift"])
def test_a_run_without_snapshots_ends_with_the_option_that_keeps_them(runs, command, capsys):
    assert analyze(command, runs["plain"]) == 2
    shown = capsys.readouterr().err
    assert "--keep-snapshots" in shown and "@task" in shown


def test_the_deployed_models_of_runs_without_snapshots_can_be_compared(runs, tmp_path: Path):
    plain = runs["plain"]
    task = f"{runs['peer']}@task"
    assert analyze("cka", f"{plain}@task", "--with", task, "-o", tmp_path) == 0
    assert len(results(tmp_path, "cka")["results"]) == 1


def test_bad_networks_end_with_one_message(runs, tmp_path: Path, capsys):
    peer = runs["peer"]
    model = save_small_model(tmp_path / "other", classes=("a", "b"))
    damaged = tmp_path / "damaged"
    shutil.copytree(peer, damaged)
    file = damaged / "snapshots/000004.safetensors"
    save_file({name: value * torch.nan for name, value in load_file(file).items()}, file)
    for arguments, code, part in (
        (("cka", f"{peer}@5"), 2, "epochs 0, 2, 4"),
        (("cka", peer, "--with", f"{model}@task"), 2, "different classes"),
        (("connectivity", peer, "--between", "last"), 2, "two different networks"),
        (("connectivity", peer, "--points", "4"), 2, "middle"),
        (("drift", damaged), 6, "000004"),
        (("drift", tmp_path / "missing"), 5, "missing"),
        (("cka", f"{model}@task", "--with", f"{model}@task"), 2, "not a run folder"),
    ):
        assert analyze(*arguments) == code
        shown = capsys.readouterr().err
        assert part in shown and "Traceback" not in shown


def test_an_overwritten_run_loses_its_analyses(runs, tmp_path: Path):
    from peerdg.run.config import resolve
    from peerdg.run.folder import RunFolder, read_run_config

    folder = tmp_path / "peer"
    shutil.copytree(runs["peer"], folder)
    (folder / "analysis").mkdir()
    opened = RunFolder.open(folder, resolve(read_run_config(folder)), existing="overwrite")
    opened.begin()
    opened.close()
    assert not (folder / "analysis").exists()


def test_networks_of_different_image_sizes_are_not_compared(runs, capsys, monkeypatch):
    other, init = runs["randaugment"], AnalyzedRun.__init__

    def larger(self: AnalyzedRun, path: str, **options: Any) -> None:
        init(self, path, **options)
        self.size = 64 if path == str(other) else 32

    monkeypatch.setattr(AnalyzedRun, "__init__", larger)
    assert analyze("cka", f"{runs['peer']}@task", "--with", f"{other}@task") == 2
    assert "32, 64 pixels" in capsys.readouterr().err
    assert analyze("cka", f"{runs['peer']}@task", f"{other}@task", "--with", "init") == 2


def test_folders_with_the_same_name_stay_different_domains(tmp_path: Path):
    for name in "abc":
        save_photos(tmp_path / name / "photos", per_class=3, seed=ord(name))
    folders = [tmp_path / name / "photos" for name in "abc"]
    assert analyze("otdd", *folders, "--size", 8, "-o", tmp_path / "made") == 0
    assert len(results(tmp_path / "made", "otdd")["distances"]) == 3
