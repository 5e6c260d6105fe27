"""Every example runs from top to bottom and does what its first line says."""

import importlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

import peerdg
from tests.cli.stored_models import save_photos
from tests.conftest import import_timm

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
pytestmark = pytest.mark.runs


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    return tmp_path


def run(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_says_what_it_shows(script: Path):
    text = script.read_text("utf-8")
    assert len(text.splitlines()) <= 80
    assert text.startswith('"""')


def test_all_examples_are_listed_and_tested():
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    listed = re.findall(r"^\| \[(.+?)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    tests = Path(__file__).read_text()
    assert files == set(listed)
    assert all(f'"{name}")' in tests for name in files)


def test_the_loop_with_peer_ships_the_mean_of_two_snapshots(empty_folder: Path):
    scope = run("peer_loop.py")
    assert scope["peer"].average.count == 2
    weights = torch.load(empty_folder / "task.pt")
    assert torch.equal(weights["head.weight"], scope["peer"].task.head.weight)
    assert scope["before"].keys() == scope["after"].keys() == scope["data"].targets.keys()
    # It has learned: a guess is right in 10 percent of the cases.
    assert scope["after"]["uci"] > 30


def test_an_own_network_gets_the_trained_weights():
    import_timm()
    scope = run("own_network.py")
    images = torch.rand(4, 3, 32, 32)
    logits = scope["model"].classifier(images)
    torch.testing.assert_close(scope["network"](images), logits)


def test_folders_of_photos_are_trained_on_and_predicted(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    save_photos(empty_folder / "photos", per_class=10)
    save_photos(empty_folder / "paintings", per_class=4, seed=1)
    monkeypatch.setattr("sys.argv", ["folder_of_photos.py", "photos/", "paintings/"])
    scope = run("folder_of_photos.py")
    assert scope["run"].accuracy["task"].keys() >= {"paintings"}
    assert "paintings/cat" in capsys.readouterr().out


def test_a_comparison_has_a_row_for_each_method():
    scope = run("compare_methods.py")
    rows = {row["method"]: row for row in scope["table"]["rows"]}
    assert list(rows) == ["erm", "p-ens", "peer"]
    assert not scope["table"]["failures"]
    assert Path(scope["table"]["page"]).is_file()


def test_a_custom_method_is_trained_as_a_plugin():
    scope = run("custom_method.py")
    assert scope["run"].config.method == "custom-method"
    assert scope["run"].config.method_settings.alpha == 0.4


def test_averages_follow_any_loop():
    scope = run("average_any_model.py")
    averages = scope["averages"]
    assert averages["ema"].count == 60 and averages["snapshots"].count == 6
    assert all(percent > 90 for percent in scope["results"].values())
    images = scope["images"][:8]
    expected = averages["ema"].deployed(images)
    torch.testing.assert_close(scope["network"].eval()(images), expected)


def test_runs_are_analyzed(empty_folder: Path):
    scope = run("analyze_runs.py")
    assert set(scope["runs"]) == {"erm", "peer"}
    assert all(0 < value <= 1.01 for value in scope["similarity"].values())
    assert (empty_folder / "runs/analyzed-peer/drift.png").is_file()


@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # lightning's own call
def test_lightning_ships_the_mean_of_two_snapshots(empty_folder: Path):
    importlib.import_module("peerdg._vision")  # lightning imports torchvision
    pytest.importorskip("lightning")
    scope = run("lightning_module.py")
    assert scope["peer"].average.count == 2
    assert 0 < scope["result"]["accuracy"] <= 1
    assert (empty_folder / "task.pt").is_file()


def test_a_grid_search_chooses_one_of_its_options():
    scope = run("sklearn_grid_search.py")
    assert scope["search"].best_params_["options"] in scope["options"]
    assert scope["search"].best_score_ > 0.2


def test_the_notebook_runs_from_top_to_bottom():
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text("utf-8"))
    scope: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            exec("".join(cell["source"]), scope)
    assert isinstance(scope["model"], peerdg.model.Model)
    assert len(scope["predictions"]) == 8
