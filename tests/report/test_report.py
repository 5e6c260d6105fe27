import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import peerdg
from peerdg.errors import ConfigError, DamagedError, DataError
from peerdg.evaluate.statistics import spread
from peerdg.report.comparison import comparison_page, write_comparison
from peerdg.report.result import RunResult
from peerdg.report.runs import collect_runs, load_runs, read_run, save_runs
from peerdg.report.tables import comparison, fluctuation_table, gradients_table, targets_table
from peerdg.report.variants import by_variant, variant_differences
from peerdg.run.manifest import Inputs
from peerdg.terminal import Table
from peerdg.version import code_digest
from tests.conftest import tiny_classifier, tiny_splits

METHODS = {
    "erm": {"method": "erm"},
    "p-ens": {"method": "peer", "peer": {"k": 1, "regularizer": "none"}},
    "peer": {"method": "peer", "peer": {"k": 1}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three methods, two seeds, seven periods each."""
    folder = tmp_path_factory.mktemp("runs")
    for name, options in METHODS.items():
        for seed in (0, 1):
            peerdg.fit(
                tiny_splits(), out=folder / f"{name}-{seed}", model=tiny_classifier(seed=seed),
                seed=seed, evaluate_every=1, pretrain={"epochs": 1, "batch_size": 8},
                train={"epochs": 7, "batch_size": 8, "lr": 0.01}, **options,
            )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    return collect_runs([folder])


def test_runs_that_differ_only_in_their_seed_are_grouped_under_the_papers_names(runs):
    groups = by_variant(runs)
    assert {name: [r.seed for r in group] for name, group in groups.items()} == {
        "erm": [0, 1], "p-ens": [0, 1], "peer": [0, 1],
    }  # fmt: skip


def test_variants_of_one_method_stay_apart(folder, tmp_path):
    peerdg.fit(
        tiny_splits(), out=tmp_path / "other", model=tiny_classifier(), method="erm",
        evaluate_every=1, pretrain={"epochs": 1, "batch_size": 8},
        train={"epochs": 6, "batch_size": 8},
    )  # fmt: skip
    groups = by_variant(collect_runs([folder, tmp_path]))
    first, second = "erm epochs=7 lr=0.01", "erm epochs=6 lr=0.0001"
    assert {first, second} <= set(groups)
    sentence = "The variants of erm differ in train.epochs (7, 6); train.lr (0.01, 0.0001)."
    assert variant_differences(groups) == [sentence]
    page = comparison_page([*groups[first], *groups[second]], title="t")
    assert sentence in page
    assert f"| {second} | 1 |" in page


def by_hand(folder: Path, name: str, model: str, domain: str) -> list[list[float]]:
    """The accuracy series of each seed, straight from the files."""
    series = []
    for seed in (0, 1):
        lines = (folder / f"{name}-{seed}" / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        evaluated = [r for r in records if r["kind"] == "evaluation" and r["epoch"] > 0]
        ours = [r for r in evaluated if (r["model"], r["domain"]) == (model, domain)]
        series.append([r["accuracy"] for r in ours])
    return series


def row_of(table: Table, name: str) -> dict[str, str]:
    return dict(zip(table.columns, next(r for r in table.rows if r[0] == name), strict=True))


def test_the_table_has_the_numbers_of_the_records(folder, runs):
    row = {**row_of(comparison(runs), "peer"), **row_of(targets_table(runs), "peer")}
    finals = [s[-1] for s in by_hand(folder, "peer", "task", "one")]
    assert row["one"] == f"{np.mean(finals):.1f} ± {np.std(finals, ddof=1):.1f} (n=12)"
    variances = [
        np.mean([np.var(by_hand(folder, "peer", "task", d)[seed][5:]) for d in ("one", "two")])
        for seed in (0, 1)
    ]
    assert row["var deployed"] == f"{np.mean(variances):.2f} ± {np.std(variances, ddof=1):.2f}"
    assert row["seeds"] == "2"


def test_a_method_with_one_network_has_no_second_fluctuation(runs):
    row = row_of(comparison(runs), "erm")
    assert row["var deployed"] == "-"
    assert row["var trained"] != "-"


def test_the_fluctuation_table_lists_every_observed_model(runs):
    names = [row[0] for row in fluctuation_table(runs, burn_in_periods=0).rows]
    assert names == ["erm model", "p-ens proxy", "p-ens task", "peer proxy", "peer task"]


def test_the_page_names_budget_seeds_and_data_and_has_its_figure(runs, tmp_path):
    page = write_comparison(runs, tmp_path, title="A | <b>title</b>")
    text = page.read_text()
    for part in ("Data: own-data", "1 + 7 epochs", "Seeds: 0, 1", "Model selection: last epoch"):
        assert part in text
    figure = Image.open(tmp_path / "accuracy.png")
    assert figure.width > 600
    assert len(set(figure.convert("L").get_flattened_data())) > 20  # something is drawn


def test_the_page_names_the_software_that_runs_were_trained_with(runs, tmp_path):
    """The code, too: between releases other code has the same version."""
    ours = f"peerdg {peerdg.__version__} (code {code_digest()}), torch {torch.__version__}"
    other = "peerdg 0.0.9 (code 0123456789abcdef), torch 2.12.0"

    def named(*found: RunResult) -> str:
        page = comparison_page(found, title="t").replace("\\", "")
        return page.partition("Trained with ")[2].partition(". Model selection")[0]

    assert named(*runs) == ours
    save_runs(tmp_path / "runs.json", runs)
    assert {run.inputs.software for run in load_runs(tmp_path / "runs.json")} == {(ours,)}
    resumed = replace(runs[0], inputs=replace(runs[0].inputs, software=(other, ours)))
    assert named(resumed, *runs[1:]) == f"{other}; {ours}"
    old = replace(runs[0], inputs=Inputs())
    assert named(old, *runs[1:]) == f"{ours}; some by an earlier version"
    assert "Trained with" not in comparison_page([old], title="t")


def test_the_page_of_unfinished_runs_leaves_them_out(folder, runs, tmp_path):
    import shutil

    shutil.copytree(folder / "erm-0", tmp_path / "erm-0")
    (tmp_path / "erm-0/done.json").unlink()
    unfinished = read_run(tmp_path / "erm-0")
    assert unfinished.status == "resumable"
    assert "erm" not in by_variant([unfinished])
    assert "erm" in comparison_page([*runs, unfinished], title="t")


def test_markdown_cells_are_escaped():
    text = Table(["a", "b"], [["x|y", "<script>"]]).markdown()
    assert "x\\|y" in text and "<script>" not in text


def test_spread_is_the_sample_standard_deviation():
    assert spread([1.0, 3.0]) == "2.0 ± 1.4"
    assert spread([2.0]) == "2.0"
    assert spread([]) == "-"


def test_the_kept_records_make_the_same_page_again(runs, tmp_path):
    write_comparison(runs, tmp_path, title="t")
    again = collect_runs([tmp_path / "runs.json"])
    assert comparison_page(again, title="t") == comparison_page(runs, title="t")


def test_the_kept_records_do_not_say_where_they_were_made(folder, runs, tmp_path):
    write_comparison(runs, tmp_path, title="t")
    assert str(folder) not in (tmp_path / "runs.json").read_text()


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "runs.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match="does not hold the records"):
        load_runs(tmp_path / "runs.json")


def test_one_point_does_not_fluctuate_but_is_not_called_steady_either(folder):
    run = read_run(folder / "peer-0")
    assert run.fluctuation("task", burn_in_periods=6) is None
    assert run.fluctuation("task", burn_in_periods=5) is not None


def test_fluctuation_counts_every_kth_epoch_however_often_was_evaluated(folder):
    from dataclasses import replace

    run = read_run(folder / "peer-0")
    config = {**run.config, "peer": {**run.config["peer"], "k": 3}}
    every_third = replace(run, config=config)
    assert every_third.period == 3


def test_the_same_seed_twice_counts_once(folder, runs):
    assert all(len(g) == 2 for g in by_variant([*runs, *runs]).values())
    assert len(collect_runs([folder, folder / "erm-0"])) == len(runs)


def test_runs_with_other_targets_are_not_compared(runs, tmp_path):
    splits = tiny_splits()
    fewer = peerdg.Splits(splits.train, splits.validation, {"one": splits.targets["one"]})
    other = peerdg.fit(
        fewer, out=tmp_path / "run", model=tiny_classifier(), method="erm",
        pretrain={"epochs": 0}, train={"epochs": 1, "batch_size": 8},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="different data or targets"):
        write_comparison([*runs, read_run(other.path)], tmp_path, title="t")


def test_runs_without_targets_have_a_page_without_figure(tmp_path):
    splits = peerdg.Splits(tiny_splits().train, tiny_splits().validation, {})
    run = peerdg.fit(
        splits, out=tmp_path / "run", model=tiny_classifier(), method="erm",
        pretrain={"epochs": 0}, train={"epochs": 1, "batch_size": 8},
    )  # fmt: skip
    page = write_comparison([read_run(run.path)], tmp_path, title="t")
    assert "targets none" in page.read_text()
    assert not (tmp_path / "accuracy.png").exists()


def test_gradients_are_compared_with_those_of_cross_entropy(runs):
    peers = [run for run in runs if run.method == "peer"]
    norms = [[r["gradients"] for r in run.records if "gradients" in r] for run in peers]
    firsts = [n[0]["regularizer"] / n[0]["cross_entropy"] for n in norms]
    table = gradients_table(runs)
    assert table is not None
    assert [row[:2] for row in table.rows] == [["peer", "regularizer"]]
    assert row_of(table, "peer")["first period"] == f"{sum(firsts) / 2:.3g}"
    assert "pulls at the encoder" in comparison_page(runs, title="x")


def test_runs_without_gradients_have_no_part_about_them(runs):
    others = [run for run in runs if run.method != "peer"]
    assert gradients_table(others) is None
    assert "pulls at the encoder" not in comparison_page(others, title="x")


def test_a_profiled_run_shows_where_its_time_went(runs):
    run = runs[0]
    profile = {"seconds": 4.0, "stages": {"augment": {"seconds": 1.0, "calls": 2},
                                          "backward": {"seconds": 3.0, "calls": 2}}}  # fmt: skip
    profiled = replace(run, profile=profile)
    page = comparison_page([profiled], title="t")
    rows = [line for line in page.splitlines() if line.startswith(("| augment", "| backward"))]
    assert rows == [
        "| backward | 3.00 | 75.0 % | 1500.00 |",
        "| augment | 1.00 | 25.0 % | 500.00 |",
    ]
    assert "Where the time went" not in comparison_page([run], title="t")


def test_kept_runs_do_not_say_where_their_files_were(tmp_path: Path):
    config = {
        "method": "erm", "weights": "/home/me/net.pth", "root": "/data", "benchmark": "own-data",
        "backbone": "resnet18", "budget": "quick", "seed": 0, "evaluate_every": 1,
        "pretrain": {"epochs": 1}, "train": {"epochs": 1},
    }  # fmt: skip
    run = RunResult(Path("/runs/a"), config, "done", [], [])
    save_runs(tmp_path / "runs.json", [run])
    text = (tmp_path / "runs.json").read_text()
    assert "/home" not in text
    assert "/data" not in text
    assert load_runs(tmp_path / "runs.json")[0].config["weights"] == "net.pth"


def test_a_finished_run_without_its_last_record_is_damaged(folder, tmp_path):
    shutil.copytree(folder / "erm-0", tmp_path / "run")
    records = tmp_path / "run/metrics.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    # Even if the accuracies of the evaluation before it are the same.
    lines = [re.sub(r'"accuracy": [0-9.]+', '"accuracy": 50.0', line) for line in lines]
    done = json.loads((tmp_path / "run/done.json").read_text())
    done["accuracy"] = {m: dict.fromkeys(v, 50.0) for m, v in done["accuracy"].items()}
    (tmp_path / "run/done.json").write_text(json.dumps(done))
    records.write_text("".join(lines))
    read_run(tmp_path / "run")
    records.write_text("".join(lines[:-1]))
    with pytest.raises(DamagedError, match="not complete"):
        read_run(tmp_path / "run")
