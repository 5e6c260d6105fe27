"""Comparisons name the rule for batch statistics, and refuse to mix two."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peerdg.errors import ConfigError
from peerdg.report.comparison import comparison_page, require_comparable
from peerdg.report.result import RunResult
from peerdg.report.runs import load_runs, save_runs
from peerdg.report.tables import comparison
from peerdg.report.variants import by_variant, variant_differences
from peerdg.run.config import resolve


def run(
    method: str = "erm",
    *,
    rule: str | None = "clean",
    backbone: str = "resnet18",
    seed: int = 0,
    old: bool = False,
    **options: Any,
) -> RunResult:
    """A finished run; `rule` is what its records name, `old` one of a version without the rule."""
    named: dict[str, Any] = {} if rule is None or old else {"batch_statistics": rule}
    config = resolve({"benchmark": "pacs", "method": method, "backbone": backbone, "seed": seed})
    tables = {**config.tables(), **named, **options}
    if old:
        del tables["batch_statistics"]
    models = ["proxy", "task"] if method == "peer" else ["model"]
    records = [
        {"kind": "evaluation", "phase": "train", "epoch": epoch, "model": model, "domain": "sketch",
         "n": 200, "correct": 100, "accuracy": 50.0, "loss": 1.0, **named}
        for epoch in (0, 10) for model in models
    ]  # fmt: skip
    return RunResult(Path(f"{method}-{seed}"), tables, "done", records, [])


def test_the_table_and_the_page_name_the_rule():
    for rule, words in (("clean", "recomputed on the clean"), ("trained", "as training left them")):
        runs = [run("erm", rule=rule), run("peer", rule=rule)]
        table = comparison(runs)
        assert table.columns[-1] == "batch statistics"
        assert [row[-1] for row in table.rows] == [rule, rule]
        assert f"Batch statistics of every network: {words}" in comparison_page(runs, title="t")


def test_without_batch_normalisation_nothing_is_printed():
    runs = [run("erm", rule=None, backbone="alexnet"), run("peer", rule=None, backbone="alexnet")]
    assert "batch statistics" not in comparison(runs).columns
    assert "Batch statistics" not in comparison_page(runs, title="t")


def test_two_rules_are_not_compared():
    with pytest.raises(ConfigError, match=r"different batch statistics \(clean; trained\)"):
        require_comparable([run("erm", rule="clean"), run("peer", rule="trained")])
    require_comparable([run("erm", rule="clean"), run("peer", rule="clean")])
    require_comparable([run("erm", rule="clean"), run("peer", rule=None, backbone="alexnet")])


@pytest.mark.parametrize("rule", ["clean", "trained"])
def test_frozen_statistics_stand_beside_any_rule_and_are_named(rule):
    runs = [run("erm", rule=rule), run("advst", rule="frozen")]
    require_comparable(runs)
    assert [row[-1] for row in comparison(runs).rows] == [rule, "frozen"]
    page = comparison_page(runs, title="t")
    assert "Batch statistics of advst: frozen while the network was trained." in page
    assert "Batch statistics of every other network: " in page
    with pytest.raises(ConfigError, match="different batch statistics"):
        require_comparable([run("erm", rule="clean"), run("peer", rule="trained"), runs[1]])
    alone = comparison_page(runs[1:], title="t")
    assert "of advst: frozen" in alone
    assert "every" not in alone.partition("Batch statistics")[2].partition("Model selection")[0]


def test_runs_of_one_method_under_two_rules_are_not_one_variant():
    groups = by_variant([run(rule="clean"), run(rule="trained", seed=1)])
    assert list(groups) == ["erm batch_statistics=clean", "erm batch_statistics=trained"]


def test_old_runs_are_compared_with_each_other_as_what_they_were():
    runs = [run("randaugment", old=True), run("peer", old=True)]
    require_comparable(runs)
    assert [row[-1] for row in comparison(runs).rows] == ["trained", "trained, task clean"]
    said = "those of the deployed average (task): of clean training images"
    assert said in comparison_page(runs, title="t")


def test_old_runs_are_not_compared_with_runs_by_another_rule():
    require_comparable([run("erm", old=True), run("randaugment", rule="trained")])
    for other in (run("randaugment", rule="clean"), run("peer", rule="trained", seed=1)):
        with pytest.raises(ConfigError, match="different batch statistics"):
            require_comparable([run("peer", old=True), other])


def test_old_and_new_runs_without_batch_normalisation_are_seeds_of_one_variant():
    runs = [
        run(rule=None, backbone="alexnet", seed=0, old=True),
        run(rule=None, backbone="alexnet", seed=1),
    ]
    groups = by_variant(runs)
    assert [r.seed for r in groups["erm"]] == [0, 1]
    assert variant_differences(groups) == []


def test_the_rule_survives_the_file_of_kept_records(tmp_path):
    save_runs(tmp_path / "runs.json", [run(rule="trained")])
    (kept,) = load_runs(tmp_path / "runs.json")
    assert kept.batch_statistics == "trained"
    assert replace(kept, records=[]).batch_statistics is None  # nothing was evaluated
