"""What is trained, what is shared, and what is refused before anything is trained."""

from pathlib import Path
from typing import Any

import pytest

from peerdg.benches.plan import make_plan, read_plan_file, sweep_rows
from peerdg.benches.rows import RecordedRows
from peerdg.cli.main import run
from peerdg.errors import ConfigError
from peerdg.methods.recipes import RECIPES, Recipe
from peerdg.methods.registry import implementation_of, method_names, settings_of
from peerdg.options import merge
from peerdg.report.runs import load_runs
from peerdg.run.config import resolve

DATA: dict[str, Any] = {"benchmark": "digits-mini", "budget": "quick"}
RESULTS = Path(__file__).parents[2] / "results"
STUDIES = [p for p in sorted(RESULTS.glob("*/plan.toml")) if p.with_name("runs.json").exists()]
ALL = ("erm", "swad", "p-ens", "peer", "randaugment", "swa", "peer-ema", "l2d")


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


def planned(*methods: str, seeds: int = 2, **options: Any):
    return make_plan(merge(DATA, options), methods=methods, seeds=range(seeds))


def variants(tables: dict[str, Any], *methods: str):
    return make_plan({**DATA, "variant": tables}, methods=(*methods, *tables), seeds=[0])


def test_methods_that_only_watch_share_a_run_and_no_others_do():
    groups = planned(*ALL).groups
    assert [group.name for group in groups] == [
        "erm", "randaugment+p-ens+swa+swad", "peer", "peer-ema", "l2d",
    ]  # fmt: skip
    shared = groups[1].config
    assert shared.average.kind == ("snapshots", "swa", "swad")
    assert (shared.method, shared.recipe) == ("randaugment", None)
    assert groups[0].config == resolve({**DATA, "method": "erm"})
    assert groups[3].config == resolve({**DATA, "method": "peer-ema"})  # it learns from its EMA


def test_runs_are_all_groups_of_a_seed_before_the_next():
    plan = planned("erm", "p-ens", "randaugment", seeds=2)
    names = [run.name for run in plan.runs]
    assert names == ["erm-0", "randaugment+p-ens-0", "erm-1", "randaugment+p-ens-1"]
    assert [run.config.seed for run in plan.runs] == [0, 0, 1, 1]


def test_options_of_an_average_go_to_the_methods_that_have_it():
    options = {"average": {"decay": 0.9}}
    plan = planned("erm", "ema", "randaugment", "p-ens", "peer-ema", **options)
    decays = {name: member.config.average.decay for name, member in plan.members.items()}
    assert decays == {"erm": 1.0, "ema": 0.9, "randaugment": 1.0, "p-ens": 1.0,
                      "peer-ema": 0.9}  # fmt: skip
    shared = next(group for group in plan.groups if len(group.members) > 1)
    assert shared.config.average.decay == 0.9
    assert [member.method for member in shared.members] == ["randaugment", "p-ens", "ema"]


def test_two_methods_with_one_kind_of_average_have_a_run_each(monkeypatch):
    late = Recipe("", "randaugment", "swa", options={"average": {"swa_start": 0.75}})
    monkeypatch.setitem(RECIPES, "late-swa", late)
    groups = planned("randaugment", "swa", "late-swa").groups
    assert [group.name for group in groups] == ["randaugment+swa", "late-swa"]
    assert [group.config.average.swa_start for group in groups] == [0.0, 0.75]


def test_a_method_with_an_average_of_its_own_is_known_by_its_settings():
    """What decides sharing without torch is what the implementation does."""
    for name in method_names():
        uses = implementation_of(name).averages_used > 0
        assert (settings_of(name).own_average is not None) == uses, name


@pytest.mark.parametrize(
    ("methods", "options", "message", "hint"),
    [
        (["erm", "pear"], {}, "Unknown method 'pear'", "peer"),
        (["erm", "erm"], {}, "twice", ""),
        ([], {}, "No method", "--methods"),
        (["erm"], {"peer": {"k": 3}}, r"peer\.k", "add a method"),
        (["erm"], {"method": "peer"}, "with --methods", ""),
        (["erm"], {"seed": 3}, "with --seeds", ""),
        (["erm"], {"train_seed": 3}, "with --seeds", ""),
        (["erm"], {"average": {"kind": ["ema"]}}, "with --methods", ""),
        (["erm", "swa"], {"average": {"decay": 0.5}}, r"average\.decay", "add a method"),
        (["erm"], {"budget": "qick"}, "Unknown budget", "quick"),
        (["erm"], {"root": "/"}, "does not read a data folder", "--root"),
        (["erm"], {"train": {"epoch": 3}}, "epoch", "epochs"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(methods, options, message, hint):
    with pytest.raises(ConfigError, match=message) as refused:
        planned(*methods, **options)
    assert hint in (refused.value.hint or "")


def test_seeds_that_cannot_be_are_refused():
    for seeds in ([], [-1], [0, 0], ["a"]):
        with pytest.raises(ConfigError, match="seed"):
            make_plan(DATA, methods=["erm"], seeds=seeds)


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


@pytest.mark.parametrize("study", STUDIES, ids=lambda p: p.parent.name)
def test_the_records_of_a_study_are_those_of_its_plan_today(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A preset that changes must not change a published study: its plan states the old value."""
    found = read_plan_file(study)
    runs = load_runs(study.parent)
    options = dict(found.options)
    for name in {r.config["weights"] for r in runs} - {"none"}:
        # The files of weights are not part of the project.
        (tmp_path / name).touch()
        options["weights"] = str(tmp_path / name)
        monkeypatch.setattr("peerdg.benches.rows.sha256", lambda _: runs[0].weights_sha256)
    plan = make_plan(options, methods=found.methods, seeds=found.seeds)
    assert found.reference in plan.methods
    # A window of P-ENS has no run of its own.
    assert not any(g.name.startswith(("p-ens-last", "p-ens-start")) for g in plan.groups)
    until = runs[0].config["train"]["epochs"] if runs[0].planned_epochs else None
    recorded = RecordedRows.read([study.parent], plan, until=until)
    assert len(recorded.results) == len(runs)


def test_variants_of_an_average_share_the_run_of_their_method():
    plan = variants(
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


@pytest.mark.parametrize(
    ("tables", "message", "hint"),
    [
        ({"peer": {"method": "peer"}}, "not a valid variant name", "name of a method"),
        ({"a": {"peer": {"k": 2}}}, "has no method", "method ="),
        ({"a": 3}, "has no method", "method ="),
        ({"a": {"method": "pear"}}, "Unknown method 'pear' in the variant 'a'", "peer"),
        ({"a": {"method": "peer", "seed": 3}}, "whole bench", ""),
        ({"a": {"method": "peer", "peer": {"kk": 3}}}, "peer.kk", "peer.k"),
        ({"../a": {"method": "peer"}}, "not a valid variant name", "letters"),
        ({"a+b": {"method": "peer"}}, "not a valid variant name", "letters"),
        ({"a": {"method": "peer", "randaugment": {"k": 3}}}, "randaugment", ""),
    ],
)
def test_what_cannot_be_a_variant_is_refused_with_the_way_out(tables, message, hint):
    with pytest.raises(ConfigError, match=message) as refused:
        variants(tables, "erm")
    assert hint in (refused.value.hint or "")


def test_two_runs_never_have_one_folder():
    """A run of DiWA, and of a variant that is called like its result."""
    with pytest.raises(ConfigError, match="'diwa-0-0' is given twice"):
        variants({"diwa-0": {"method": "erm"}}, "diwa")


def test_an_epoch_without_evaluation_is_refused():
    options = {"evaluate_every": 2, "train": {"epochs": 4}}
    for methods, until in ((("erm",), 0), (("erm",), 3), (("erm", "diwa"), 2)):
        with pytest.raises(ConfigError, match=r"--until|evaluated"):
            planned(*methods, **options).check_until(until)
    plan = planned("erm", **options)
    # Of the last epoch nothing is left out.
    assert [plan.check_until(until) for until in (None, 2, 4)] == [None, 2, None]


ROWS = "methods = ['erm', 'peer']\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 3", "Unknown key 'seed'"),
        ("methods = 3", "'methods'"),
        ("options = 3", "'options'"),
        ("seeds = 'many'", "'seeds'"),
        ("[options.variant.a]\nmethod = 'erm'", "outside 'options'"),
        ("methods = [", "plan.toml"),
        (f"{ROWS}[question]\na = [['peer', 'per']]", "no row 'per'"),
        (f"{ROWS}[question]\na = [['peer']]", "invalid"),
        (f"{ROWS}[ranking]\na = ['erm', 'peer']", "invalid"),
        (f"{ROWS}[published]\nerm = {{ svhn = 3 }}", "invalid"),
        (f"{ROWS}[published]\nsource = 'x'\nerm = {{ svhn = 'a' }}", "invalid"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_plan_file(tmp_path / "plan.toml")


def test_the_command_reads_a_plan_and_any_row_of_it_may_be_chosen(tmp_path: Path, capsys):
    (tmp_path / "plan.toml").write_text(PLAN)
    asked = ["bench", "--plan", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")]
    for rows in ("peer-w2", "newest,erm", "erm,ema"):  # whatever else the plan has options for
        assert run([*asked, "--methods", rows, "--dry-run"], debug=False) == 0
    assert run([*asked, "--methods", "peer-w3", "--dry-run"], debug=False) == 2
    assert "peer-w2" in capsys.readouterr().err
    assert run(["bench", "--methods", "erm", "--out", str(tmp_path / "out")], debug=False) == 2
    assert "No data was given" in capsys.readouterr().err
    assert run([*asked, "--reference", "peer-w3"], debug=False) == 2
    assert "'peer-w3'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sweep_that_no_row_has_is_refused():
    with pytest.raises(ConfigError, match=r"peer\.w"):
        sweep_rows({}, ["erm"], ["peer.w=0.1,0.2"])
    options, rows = sweep_rows({}, ["erm", "peer"], ["peer.w=0.1,0.2"])
    assert len(rows) == 3 and rows[0] == "erm"
    assert [options["variant"][row]["peer"]["w"] for row in rows[1:]] == [0.1, 0.2]
    with pytest.raises(ConfigError, match="twice"):
        sweep_rows({}, ["peer"], ["peer.w=0.1", "peer.w=0.2"])
