"""A method that shares a run has the numbers of a run of its own, bit for bit."""

from dataclasses import replace
from pathlib import Path

from peerdg.averages.average_options import KINDS
from peerdg.benches.views import views
from peerdg.methods.recipes import RECIPES
from peerdg.report.compare import by_variant
from peerdg.report.runs import load_runs, save_runs
from tests.benches.tiny import plan, trained, trained_run

WATCHED = [name for name, r in RECIPES.items() if r.method == "randaugment" and not r.options]


def test_every_method_of_a_shared_run_is_bit_for_bit_what_it_is_alone(tmp_path: Path):
    methods = ("randaugment", *WATCHED)
    assert {RECIPES[name].average for name in WATCHED} == set(KINDS)
    found = plan(tmp_path / "images", *methods, randaugment={"k": 2}, average={"t0": 1})
    assert [group.members[0].method for group in found.groups] == ["randaugment"]
    run = found.runs[0]
    shared = views(run, trained_run(run, tmp_path))
    assert set(shared) == {*methods}
    accuracies = set()
    for method, view in shared.items():
        config = replace(found.members[method].config, seed=0)
        alone = trained(config, tmp_path / "alone" / method)
        assert view.evaluations == alone.evaluations
        timed = [{k: v for k, v in e.items() if k != "seconds"} for e in view.epochs]
        assert timed == [{k: v for k, v in e.items() if k != "seconds"} for e in alone.epochs]
        assert view.config == alone.config
        assert (view.deployed, view.trained) == (alone.deployed, alone.trained)
        assert view.method == alone.method == method
        assert view.variant == alone.variant
        assert set(view.shared_with) == {*methods} - {method}
        final = [r for r in view.evaluations if r["model"] == view.deployed]
        accuracies.add(tuple(record["loss"] for record in final))
    assert len(accuracies) == len(methods)  # they are different networks
    save_runs(tmp_path / "records", list(shared.values()))
    again = by_variant(load_runs(tmp_path / "records"))
    assert set(again) == {*methods}
    assert again["randaugment"][0].shared_with == shared["randaugment"].shared_with
    assert again["randaugment"][0].peak_memory == shared["randaugment"].peak_memory > 0


def test_a_method_alone_is_its_run(tmp_path: Path):
    found = plan(tmp_path / "images", "erm")
    result = trained_run(found.runs[0], tmp_path)
    assert views(found.runs[0], result) == {"erm": result}
