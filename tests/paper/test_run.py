"""`peerdg paper run` on small digits, with runs of a few steps."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from peerdg.benches import execute
from peerdg.benches.bench import run_bench
from peerdg.benches.plan import make_plan
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError
from peerdg.paper.catalogue import columns, find_items
from peerdg.paper.run import run_items
from peerdg.report.runs import read_run
from tests.benches.tiny import SameProcess

TINY: dict[str, Any] = {
    "budget": "quick",
    "pretrain": {"epochs": 1, "steps_per_epoch": 1, "batch_size": 8},
    "train": {"epochs": 2, "steps_per_epoch": 1, "batch_size": 8},
    "evaluate_every": 1,
    "crafted": "off",
    "threads": 1,
    "digits-mini": {"train": 40},
}


class Trained:
    """Makes items in this process, and counts the runs that it trains."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
        self.out, self.runs, self.fail_after = out, list[str](), 100
        monkeypatch.setattr(execute, "_peerdg", self._train)

    def _train(self, words: list[str], *_: object) -> int:
        if len(self.runs) == self.fail_after:
            raise KeyboardInterrupt
        self.runs.append(Path(words[1]).name)
        return command([*words], debug=False)

    def __call__(self, *names: str, data: str | None = "digits-mini", **options: Any):
        how = {"options": TINY, "seeds": (0,), "connect": SameProcess, **options}
        return run_items(find_items(names), self.out, data=data, **how)

    def numbers(self, name: str) -> Any:
        return json.loads((self.out / f"{name}.json").read_text())


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trained:
    return Trained(monkeypatch, tmp_path)


@pytest.mark.runs
def test_cells_are_the_accuracies_of_the_runs_and_items_share_them(trained):
    assert trained("T7") == {}
    assert sorted(trained.runs) == ["peer-0", "peer-info-nce-0"]
    (block,) = trained.numbers("T7")["panels"]
    folder = trained.out / "runs" / "digits-mini-quick" / "runs"
    for row in block["rows"]:
        final = read_run(folder / f"{row['row']}-0").final("task")
        for target in columns("accuracy", "digits-mini")[:-1]:
            assert row["ours"][target] == {"0": final[target]}
    assert block["rows"][0]["paper"]["pacs"]["sketch"] == 68.21
    trained.runs.clear()
    trained("T7", "T15", "F6")
    assert trained.runs == ["peer-no-head-0"]
    assert "T15" in (trained.out / "README.md").read_text()
    # The records of the bench have the rows of all calls, and stand for its run folders.
    shutil.move(folder.parent, trained.out / "earlier")
    before = trained.numbers("T7"), trained.numbers("T15")
    trained("T7", "T15", records=[trained.out / "earlier"], train=False)
    assert (trained.numbers("T7"), trained.numbers("T15")) == before


@pytest.mark.runs
def test_an_interrupted_call_continues_where_it_was(trained):
    trained.fail_after = 1
    with pytest.raises(KeyboardInterrupt):
        trained("T7")
    assert not (trained.out / "T7.json").exists()
    trained.fail_after = 100
    assert trained("T7") == {}
    assert sorted(trained.runs) == ["peer-0", "peer-info-nce-0"]


@pytest.mark.runs
def test_records_are_reused_by_their_options_and_their_snapshots_are_drawn(trained, tmp_path):
    study = tmp_path / "study"
    own = {"benchmark": "digits-mini", "crafted_images": 200, "keep_snapshots": True}
    own["variant"] = {
        "mine": {"method": "peer"},
        "other": {"method": "peer", "peer": {"w": 7.0}},
    }
    plan = make_plan({**TINY, **own}, methods=["randaugment", "mine", "other"], seeds=[0])
    run_bench(plan, study, connect=SameProcess)
    trained.runs.clear()
    gaps = trained("T7", "F1", "F4", records=[study], train=False)
    assert trained.runs == []
    assert "peer-info-nce" in gaps["T7"] and "pden" in gaps["F1"]
    peer, info_nce = trained.numbers("T7")["panels"][0]["rows"]
    final = read_run(study / "runs" / "mine-0").final("task")
    assert peer["ours"]["uci"] == {"0": final["uci"]}
    assert info_nce["ours"] == {}
    gain = trained.numbers("F4")["figure"]["gain"]
    assert gain.keys() == {"randaugment", "peer"} and gain["peer"].keys() == {"0"}
    (study / "runs").rename(study / "elsewhere")
    assert "snapshots" in trained("F4", records=[study], train=False)["F4"]


@pytest.mark.runs
def test_a_call_without_training_checks_the_options_and_keeps_the_records(trained):
    trained("T7", seeds=(0, 1))
    bench = trained.out / "runs" / "digits-mini-quick"
    before = (bench / "evaluations.csv").read_bytes()
    with pytest.raises(ConfigError):
        trained("T7", options={**TINY, "peer": {"w": 7.0}}, train=False)
    trained("T7", train=False)
    trained("T7", until=1, seeds=(0, 1))
    shutil.rmtree(bench / "runs")
    trained("T7", records=[bench])
    assert len(trained.runs) == 4
    assert (bench / "evaluations.csv").read_bytes() == before


@pytest.mark.runs
def test_figures_leave_out_missing_rows_and_seeds_that_not_all_rows_have(trained):
    trained("F4", seeds=(0, 1))
    runs = trained.out / "runs" / "digits-mini-quick" / "runs"
    (folder,) = runs.glob("randaugment*-0")
    shutil.rmtree(folder / "snapshots")
    assert trained("F4", seeds=(0, 1), train=False) == {}
    made = trained.numbers("F4")
    assert made["seeds"] == [1]
    assert [list(seeds) for seeds in made["figure"]["gain"].values()] == [["1"]] * 2
    for folder in runs.glob("peer-*"):
        shutil.rmtree(folder)
    assert "peer is not trained" in trained("F4", seeds=(0, 1), train=False)["F4"]
    assert list(trained.numbers("F4")["figure"]["gain"]) == ["randaugment"]


def test_missing_data_are_named_and_the_rest_goes_on(trained, tmp_path):
    gaps = trained("T3", "F2", data=None, root=tmp_path / "nowhere")
    assert list(gaps) == ["T3"]
    assert "office-home" in gaps["T3"] and "vlcs" in gaps["T3"]
    page = (trained.out / "T3.md").read_text()
    assert "not available" in page and "79.10" in page
    assert (trained.out / "F2.png").exists()


def test_missing_weights_are_named_before_anything_is_trained(trained, tmp_path, monkeypatch):
    from peerdg.paper import run

    def no_weights(backbone: str, weights: str) -> None:
        if weights != "none":
            raise ConfigError(f"No weights of {backbone}.")

    monkeypatch.setattr(run, "weights_file", no_weights)
    monkeypatch.setattr(type(run.BENCHMARKS["vlcs"]), "require_source", lambda *_: None)
    gaps = trained("T3", data="vlcs", root=tmp_path)
    assert "No weights of resnet18" in gaps["T3"]
    assert trained.runs == []


@pytest.mark.parametrize("name", ["F2", "F6"])
def test_schematics_are_drawn_without_data(trained, name):
    assert trained(name, data=None) == {}
    with Image.open(trained.out / f"{name}.png") as picture:
        assert picture.width >= 1000
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
    assert (trained.out / f"{name}.svg").stat().st_size > 1000


def test_the_command_line_lists_shows_and_explains(capsys):
    assert command(["paper", "list"], debug=False) == 0
    assert command(["paper", "show", "T9"], debug=False) == 0
    shown = capsys.readouterr().out
    assert "24 items" in shown and "57.56" in shown
    assert command(["paper", "run", "T99"], debug=False) == 2
    assert command(["paper", "run"], debug=False) == 2
    assert command(["paper", "run", "T2", "--data", "digits-mimi"], debug=False) == 2
