"""A method that is made of several runs: planned, combined, and a row like any other."""

import shutil
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.benches.bench import run_bench
from peerdg.benches.execute import _combinations
from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import make_plan
from peerdg.benches.rows import collect_rows
from peerdg.methods.recipes import COMBINATIONS, Combination
from peerdg.report.compare import by_variant
from peerdg.report.page import PAGE, compose_pages
from peerdg.report.runs import load_runs, read_run, save_runs
from peerdg.report.table import make_table
from peerdg.run.prepare import load_splits
from tests.benches.tiny import TRAIN, bench_here, plan

PAIR = Combination("", "randaugment", 2, "uniform", lr_scales=(1.0, 0.5), weight_decays=(0.01,))
DATA = {"benchmark": "digits-mini", "budget": "quick"}


def test_each_seed_has_the_runs_that_the_combination_asks_for(monkeypatch):
    monkeypatch.setitem(COMBINATIONS, "pair", PAIR)
    found = make_plan(DATA, methods=["randaugment", "pair", "eoa"], seeds=[0, 1])
    pair = found.groups[1]
    assert [run.name for run in pair.runs(1)] == ["pair-1-0", "pair-1-1"]
    configs = [run.config for run in pair.runs(1)]
    assert [(c.seed, c.train_seed) for c in configs] == [(1, 2), (1, 3)]
    lr = found.members["randaugment"].config.train.lr
    assert [(c.train.lr, c.train.weight_decay) for c in configs] == [(lr, 0.01), (lr / 2, 0.01)]
    eoa = [run.config for run in found.groups[2].runs(1)]
    assert [c.seed for c in eoa] == [6, 7, 8, 9, 10, 11]  # each has a start of its own
    assert {c.recipe for c in eoa} == {"sma"}
    assert len(found.runs) == 2 * (1 + 2 + 6)
    assert len({run.config.hash for run in found.runs}) == len(found.runs)


def test_options_of_the_members_average_reach_them():
    found = make_plan({**DATA, "average": {"t0": 3}}, methods=["erm", "eoa"], seeds=[0])
    assert {run.config.average.t0 for run in found.groups[1].runs(0)} == {3}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """Two runs of a seed, trained and combined in this process."""
    path = tmp_path_factory.mktemp("combined")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMBINATIONS, "pair", PAIR)
        found = plan(path / "images", "randaugment", "pair", train={**TRAIN, "lr": 0.01},
                     randaugment={"k": 1})  # fmt: skip
        folder = BenchFolder(path / "bench")
        assert _combinations(found, folder) == []  # not before its runs are complete
        assert not bench_here(patch)(found, path / "bench").failures
        assert _combinations(found, folder) == []
        yield found, folder


def test_a_combination_has_the_accuracy_of_the_mean_of_its_runs(made, tmp_path: Path):
    found, folder = made
    groups = collect_rows(found, folder)
    (pair,) = groups["pair"]
    first, second = (peerdg.load_model(folder.run_folder(run)) for run in found.groups[1].runs(0))
    ours, theirs = first.classifier.state_dict(), second.classifier.state_dict()
    assert not all(torch.equal(ours[name], theirs[name]) for name in ours)
    first.classifier.load_state_dict({name: (ours[name] + theirs[name]) / 2 for name in ours})
    target = load_splits(found.runs[0].config).targets["target"]
    assert pair.final("combined")["target"] == first.evaluate(target)["accuracy"]


def test_it_is_a_row_of_its_own_with_the_time_of_all_its_runs(made, tmp_path: Path):
    found, folder = made
    groups = collect_rows(found, folder)
    (pair,), (alone,) = groups["pair"], groups["randaugment"]
    assert pair.method == "pair" and pair.variant != alone.variant
    assert pair.combined_from == ("pair-0-0", "pair-0-1")
    table = make_table(groups)
    row = table.rows[1]
    assert row.method == "pair" and row.values["seconds"].mean == pytest.approx(pair.seconds)
    steps, own = (
        sum(e["steps"] for e in result.epochs if e["phase"] == "train") for result in (pair, alone)
    )
    assert steps == 2 * own
    members = [read_run(folder.run_folder(run)) for run in found.groups[1].runs(0)]
    first, second = ([e["seconds"] for e in m.epochs] for m in members)
    assert [e["phase"] for e in members[1].epochs][:2] == ["pretrain", "train"]
    assert pair.seconds == pytest.approx(sum(first) + sum(second[1:]))  # one pre-training
    assert not any(row.values[name] for name in ("steadiness", "by source-val", "regret"))
    assert row.difference.n == 1
    save_runs(tmp_path, [alone, pair])
    again = by_variant(load_runs(tmp_path))
    assert set(again) == {"randaugment", "pair"}
    assert again["pair"][0].seconds == pytest.approx(pair.seconds)
    assert "| pair |" in compose_pages(table, groups, title="t")[PAGE]


def test_a_combined_model_that_is_not_of_its_runs_is_made_again(made, tmp_path: Path):
    found, shared = made
    folder = BenchFolder(shutil.copytree(shared.path, tmp_path / "bench"))
    group = found.groups[1]
    model = folder.combined_folder(group, 0)
    weights = (model / "model.safetensors").read_bytes()
    one, two = (folder.run_folder(run) / "model" for run in group.runs(0))
    one.rename(one.with_name("aside"))
    shutil.copytree(two, one)  # the weights of a run are others now
    assert not folder.has_result(group, 0) and len(_combinations(found, folder)) == 1
    shutil.rmtree(one)
    one.with_name("aside").rename(one)
    assert folder.has_result(group, 0)

    (model / "model.json").write_text("{")
    (task,) = _combinations(found, folder)
    assert task.call() == 0
    assert folder.has_result(group, 0)
    assert (model / "model.safetensors").read_bytes() == weights
    folder.run_folder(group.runs(0)[0]).joinpath("done.json").unlink()
    assert not folder.has_result(group, 0)  # and the run is trained before


def test_runs_that_an_array_has_trained_are_combined_for_the_report(made, tmp_path: Path):
    found, shared = made
    folder = BenchFolder(shutil.copytree(shared.path, tmp_path / "bench"))
    shutil.rmtree(folder.combined_folder(found.groups[1], 0))
    bench = run_bench(found, folder.path, train=False)
    assert [row.label for row in bench.table.rows if row.seeds] == ["randaugment", "pair"]
