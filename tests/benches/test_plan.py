"""What is trained, what is shared, and what is refused before anything is trained."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peerdg.benches.estimate import Progress, RunTime, count_pretrainings, time_left
from peerdg.benches.plan import make_plan, plan_changes
from peerdg.errors import ConfigError
from peerdg.methods.recipes import RECIPES, Recipe
from peerdg.methods.registry import implementation_of, method_names, settings_of
from peerdg.options import merge
from peerdg.report.result import RunResult
from peerdg.run.config import resolve

DATA: dict[str, Any] = {"benchmark": "digits-mini", "budget": "quick"}
ALL = ("erm", "swad", "p-ens", "peer", "randaugment", "swa", "peer-ema", "l2d")


def planned(*methods: str, seeds: int = 2, **options: Any):
    return make_plan(merge(DATA, options), methods=methods, seeds=range(seeds))


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


def test_a_config_survives_its_way_to_another_process():
    for run in planned(*ALL, average={"decay": 0.9}).runs:
        assert resolve(json.loads(json.dumps(run.config.tables()))) == run.config


def test_options_of_an_average_go_to_the_methods_that_have_it():
    options = {"average": {"decay": 0.9}}
    plan = planned("erm", "ema", "randaugment", "p-ens", "peer-ema", **options)
    decays = {name: member.config.average.decay for name, member in plan.members.items()}
    assert decays == {"erm": 0.999, "ema": 0.9, "randaugment": 0.999, "p-ens": 0.999,
                      "peer-ema": 0.9}  # fmt: skip
    shared = next(group for group in plan.groups if group.is_shared)
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
        (["erm", "erm"], {}, "'erm' is named twice", ""),
        ([], {}, "No method", "--methods"),
        (["erm"], {"peer": {"k": 3}}, "Options of 'peer' are given", "erm,peer"),
        (["erm"], {"method": "peer"}, "decided by --methods", ""),
        (["erm"], {"seed": 3}, "decided by --seeds", ""),
        (["erm"], {"train_seed": 3}, "decided by --seeds", ""),
        (["erm"], {"average": {"kind": ["ema"]}}, "decided by --methods", "average"),
        (["erm", "swa"], {"average": {"decay": 0.5}}, "no method of the bench has", "decay"),
        (["erm"], {"budget": "qick"}, "Unknown budget", "quick"),
        (["erm"], {"root": "/"}, "reads no folder", "--root"),
        (["erm"], {"train": {"epoch": 3}}, "epoch", "epochs"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(methods, options, message, hint):
    with pytest.raises(ConfigError, match=message) as refused:
        planned(*methods, **options)
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize("seeds", [[], [-1], [0, 0]])
def test_seeds_that_cannot_be_are_refused(seeds):
    with pytest.raises(ConfigError, match="seed"):
        make_plan(DATA, methods=["erm"], seeds=seeds)


def test_planning_needs_no_torch():
    code = (
        "import sys; from peerdg.benches.plan import make_plan; "
        "make_plan({'benchmark': 'digits-mini'}, methods=['erm', 'p-ens'], seeds=[0]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_changes_are_those_that_decide_results():
    old = planned("erm", "peer", train={"epochs": 3})
    same = planned("peer", "erm", train={"epochs": 3}, threads=1, checkpoint_minutes=5.0)
    assert plan_changes(old, same) == []
    epochs = old.members["erm"].config.evaluate_every
    stated = planned("erm", "peer", train={"epochs": 3}, evaluate_every=epochs)
    assert plan_changes(old, stated) == []  # what the preset says, said again
    new = planned("erm", "p-ens", seeds=3, train={"epochs": 4})
    assert list(map(str, plan_changes(old, new))) == ["train.epochs: 3 -> 4"]


def test_a_bench_may_have_more_methods_and_seeds_but_not_only_others():
    old = planned("erm", "peer", seeds=2)
    assert plan_changes(old, planned("erm", "peer", "l2d", seeds=3)) == []
    assert plan_changes(old, planned("peer", seeds=1)) == []
    assert list(map(str, plan_changes(old, planned("l2d")))) == ["methods: 'erm,peer' -> 'l2d'"]


def test_a_row_that_becomes_a_combination_is_another_bench():
    alone, six = (
        make_plan({**DATA, "variant": {"row": {"method": method}}}, methods=["row"], seeds=[0])
        for method in ("randaugment", "diwa")
    )
    assert list(map(str, plan_changes(alone, six))) == ["row.method: 'randaugment' -> 'diwa'"]


def finished(name: str, seconds: float, *, own: bool, kinds: tuple[str, ...] = ()) -> RunResult:
    """A run of `seconds`, 4 of them (or those of another run) for pre-training."""
    config = resolve({**DATA, "method": "erm", "train": {"epochs": 10}}).tables()
    events = [{"event": "start"}, {"event": "epoch", "phase": "pretrain", "seconds": 4.0}]
    events += [] if own else [{"event": "shared_pretraining"}]
    events += [{"event": kind} for kind in kinds]
    events += [{"event": "epoch", "phase": "train", "seconds": 9.0, "steps": 3}]
    events += [{"event": "done", "seconds": seconds}]
    return RunResult(Path(name), config, "done", [], events)


def test_finished_runs_say_how_long_others_take():
    runs = [finished("a-0", 24.0, own=True), finished("a-1", 18.0, own=False)]
    assert RunTime.of_runs(runs) == RunTime(4.0, 19.0, measured=True)
    assert RunTime.of_runs([finished("a-0", 5.0, own=True, kinds=("resume",))]) is None
    assert RunTime.of_runs([]) is None


def test_time_left_counts_each_pretraining_once_and_what_is_done_not_at_all():
    plan = planned("erm", "randaugment", "l2d", seeds=2)
    times = {
        "erm": RunTime(5.0, 10.0, measured=True),
        "randaugment": RunTime(5.0, 20.0, measured=True),
        "l2d": RunTime(7.0, 30.0, measured=False),  # its bottleneck is pre-trained, too
    }
    assert count_pretrainings(plan.runs) == 4
    nothing = Progress({})
    assert time_left(plan, nothing, times, jobs=1) == 2 * (5 + 10 + 20 + 7 + 30)
    assert time_left(plan, nothing, times, jobs=2) == 72
    assert time_left(plan, nothing, times, jobs=100) == 37  # the longest run
    some = Progress({"erm-0": finished("erm-0", 15.0, own=True)})
    assert time_left(plan, some, times, jobs=1) == 20 + 7 + 30 + 72
    half = finished("randaugment-0", 0.0, own=True)
    half.records.append({"kind": "epoch", "phase": "train", "epoch": 10})
    begun = Progress({"randaugment-0": RunResult(half.path, half.config, "resumable",
                                                 half.records, half.events)})  # fmt: skip
    assert time_left(plan, begun, times, jobs=1) == 5 + 10 + 10 + 7 + 30 + 72
    assert time_left(plan, nothing, times, jobs=1, without={"l2d-0", "l2d-1"}) == 2 * 35
    assert time_left(plan, nothing, {"erm": times["erm"]}, jobs=1) is None
