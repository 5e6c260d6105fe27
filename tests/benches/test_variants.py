"""Variants of methods in a bench, and the file that names them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peerdg.benches.plan import make_plan, plan_changes
from peerdg.benches.records import RecordedRows
from peerdg.benches.variants import read_plan_file
from peerdg.benches.views import views
from peerdg.cli.main import run
from peerdg.errors import ConfigError
from peerdg.report.runs import load_runs
from peerdg.run.config import resolve
from tests.benches.tiny import images, trained, trained_run

RESULTS = Path(__file__).parents[2] / "results"
DATA: dict[str, Any] = {"benchmark": "digits-mini", "budget": "quick"}
PLAN = """
methods = ["erm", "peer"]
seeds = [3, 5]
reference = "peer"

[options]
benchmark = "digits-mini"
budget = "quick"
peer = { k = 4, w = 0.1 }

[variant.peer-w2]
method = "peer"
peer = { w = 2.0 }

[variant.newest]
method = "p-ens"
average = { last = 3 }
"""


def planned(variants: dict[str, Any], *methods: str, **options: Any):
    return make_plan(
        {**DATA, "variant": variants, **options}, methods=(*methods, *variants), seeds=[0]
    )


def test_a_variant_has_the_options_of_all_and_its_own_over_them(tmp_path: Path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    found = read_plan_file(file)
    plan = make_plan(found.options, methods=found.methods, seeds=found.seeds)
    assert plan.methods == ("erm", "peer", "peer-w2", "newest")
    assert (plan.seeds, found.reference) == ((3, 5), "peer")
    section = {name: plan.members[name].config.tables()["peer"] for name in ("peer", "peer-w2")}
    assert section["peer"]["w"] == 0.1
    assert section["peer-w2"] == {**section["peer"], "w": 2.0}
    assert plan.members["newest"].config == resolve(
        {**DATA, "method": "p-ens", "average": {"last": 3}}
    )
    assert [run.name for run in plan.runs][:3] == ["erm-3", "peer-3", "peer-w2-3"]


@pytest.mark.parametrize("study", sorted(RESULTS.glob("*/plan.toml")), ids=lambda p: p.parent.name)
def test_the_published_studies_can_be_planned(study: Path):
    found = read_plan_file(study)
    options = {"root": "somewhere", **found.options}
    if options["benchmark"] == "digits-mini":
        del options["root"]
    plan = make_plan(options, methods=found.methods, seeds=found.seeds)
    assert found.reference in plan.methods
    # A window of P-ENS has no run of its own.
    assert not any(g.name.startswith(("p-ens-last", "p-ens-start")) for g in plan.groups)


@pytest.mark.parametrize("study", sorted(RESULTS.glob("*/plan.toml")), ids=lambda p: p.parent.name)
def test_the_records_of_a_study_are_those_of_its_plan_today(
    study: Path, monkeypatch: pytest.MonkeyPatch
):
    """A preset that changes must not change a published study: its plan states the old value."""
    found = read_plan_file(study)
    runs = load_runs(study.parent / "runs.json")
    # The files of weights are not part of the project.
    digest = runs[0].inputs.weights_sha256
    monkeypatch.setattr("peerdg.benches.records._hash_of_weights", lambda *_: digest)
    weights = {run.config["weights"] for run in runs} - {"none"}
    options = {**found.options, **({"weights": weights.pop()} if weights else {})}
    plan = make_plan(options, methods=found.methods, seeds=found.seeds)
    until = runs[0].config["train"]["epochs"]
    recorded = RecordedRows.read([study.parent / "runs.json"], plan, until=until)
    assert len(recorded.results) == len(runs)


def test_any_row_of_a_plan_may_be_chosen(tmp_path: Path):
    """Options of methods that no chosen row trains by are left out, not refused."""
    file = tmp_path / "plan.toml"
    file.write_text(PLAN.replace("peer = { k = 4", "randaugment = { k = 3 }\npeer = { k = 4"))
    found = read_plan_file(file)
    for rows in (["peer-w2"], ["newest"], ["erm"], list(found.methods)):
        chosen = found.only(rows)
        plan = make_plan(chosen.options, methods=rows, seeds=[0])
        whole = make_plan(found.options, methods=found.methods, seeds=[0])
        assert plan.members == {name: whole.members[name] for name in rows}
    assert "peer" not in found.only(["erm"]).options
    assert (found.only(["erm"]).reference, found.only(["peer"]).reference) == (None, "peer")
    decay = replace(found, options={**found.options, "average": {"decay": 0.9, "k": 3}})
    assert decay.only(["erm", "newest"]).options["average"] == {"k": 3}
    assert decay.only(["ema"]).options["average"]["decay"] == 0.9
    assert found.only(["erm"]).study == found.study


def test_variants_of_an_average_share_the_run_of_their_method():
    plan = planned(
        {
            "newest": {"method": "p-ens", "average": {"last": 3}},
            "late": {"method": "p-ens", "average": {"start": 4}},
            "part": {"method": "p-ens", "average": {"start": 4, "last": 2}},
            "slow": {"method": "p-ens", "average": {"k": 9, "last": 3}},
        },
        "randaugment", "p-ens", "ema",
    )  # fmt: skip
    names = [group.name for group in plan.groups]
    assert names == ["randaugment+p-ens+newest+late+ema", "part", "slow"]
    shared = plan.groups[0].config.average
    assert (shared.kind, shared.also) == (("snapshots", "ema"), ("last-3", "start-4"))
    assert (shared.start, shared.last) == (0, None)


def test_a_window_in_a_shared_run_is_bit_for_bit_what_it_is_alone(tmp_path: Path):
    variants = {
        "newest": {"method": "p-ens", "average": {"last": 2}},
        "late": {"method": "p-ens", "average": {"start": 1}},
    }
    options = {**images(tmp_path / "images"), "randaugment": {"k": 1}, "variant": variants}
    plan = make_plan(options, methods=("randaugment", *variants), seeds=[0])
    (run,) = plan.runs
    shared = views(run, trained_run(run, tmp_path))
    for name in plan.methods:
        alone = trained(plan.members[name].config, tmp_path / "alone" / name)
        assert shared[name].records == alone.records
        assert shared[name].config == alone.config
        assert (shared[name].deployed, shared[name].trained) == (alone.deployed, alone.trained)
    losses = {
        tuple(r["loss"] for r in view.evaluations if r["model"] == view.deployed)
        for view in shared.values()
    }
    assert len(losses) == len(shared)  # they are different networks


def test_a_changed_variant_is_a_change_of_the_bench():
    old = planned({"peer-k2": {"method": "peer", "peer": {"k": 2}}})
    new = planned({"peer-k2": {"method": "peer", "peer": {"k": 3}}})
    assert [(c.key, c.old, c.new) for c in plan_changes(old, new)][-1] == ("peer.k", 2, 3)


@pytest.mark.parametrize(
    ("variants", "message", "hint"),
    [
        ({"peer": {"method": "peer"}}, "name of a method", "Rename"),
        ({"a": {"peer": {"k": 2}}}, "names no method", "method ="),
        ({"a": 3}, "names no method", "method ="),
        ({"a": {"method": "pear"}}, "Unknown method 'pear' of the variant 'a'", "peer"),
        ({"a": {"method": "peer", "seed": 3}}, "whole bench", ""),
        ({"a": {"method": "peer", "peer": {"kk": 3}}}, "peer.kk", "peer.k"),
        ({"../a": {"method": "peer"}}, "cannot be called", "letters"),
        ({"a+b": {"method": "peer"}}, "cannot be called", "letters"),
        ({"a": {"method": "peer", "randaugment": {"k": 3}}}, "randaugment", ""),
    ],
)
def test_what_cannot_be_a_variant_is_refused_with_the_way_out(variants, message, hint):
    with pytest.raises(ConfigError, match=message) as refused:
        planned(variants, "erm")
    assert hint in (refused.value.hint or "")


def test_two_runs_never_have_one_folder():
    """A run of DiWA, and of a variant that is called like its result."""
    options = {**DATA, "variant": {"diwa-0": {"method": "erm"}}}
    with pytest.raises(ConfigError, match="would be called 'diwa-0-0'"):
        make_plan(options, methods=["diwa", "diwa-0"], seeds=[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 3", "Unknown key 'seed'"),
        ("methods = 'erm'", "list of names"),
        ("seeds = 'many'", "number or a list"),
        ("seeds = [true]", "number or a list"),
        ("options = 3", "must be tables"),
        ("reference = 3", "name of a method"),
        ("[options.variant.a]\nmethod = 'erm'", "outside of 'options'"),
        ("methods = [", "plan.toml"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        read_plan_file(tmp_path / "plan.toml")


def test_the_command_reads_a_plan_and_flags_win_over_it(tmp_path: Path, capsys):
    (tmp_path / "plan.toml").write_text(PLAN)
    asked = ["bench", "--plan", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")]
    assert run([*asked, "--methods", "peer-w3", "--dry-run"], debug=False) == 2
    assert "peer-w2" in capsys.readouterr().err
    assert run(["bench", "--methods", "erm", "--out", str(tmp_path / "out")], debug=False) == 2
    assert "No data is given" in capsys.readouterr().err
    assert run([*asked, "--reference", "peer-w3"], debug=False) == 2
    assert "'peer-w3' is none of the methods" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
