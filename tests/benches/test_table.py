"""The table of a bench: each number by its definition, in every format."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peerdg.benches.figures import differences_figure, name_points, steadiness_figure
from peerdg.benches.report import bench_page, explanation, write_bench
from peerdg.benches.table import BenchTable, bench_table, common_period
from peerdg.evaluate.statistics import paired_difference
from peerdg.methods.registry import settings_of
from peerdg.options import merge
from peerdg.report.figures import pyplot
from peerdg.report.result import RunResult
from peerdg.report.runs import load_runs
from peerdg.report.variants import by_variant
from peerdg.run.config import resolve
from peerdg.run.manifest import Inputs

EPOCHS = 8


def run(
    method: str,
    seed: int,
    *,
    level: float = 60.0,
    epochs: int = EPOCHS,
    step: float = 0.01,
    memory: int = 400,
    shared: Sequence[str] = (),
    targets: tuple[str, ...] = ("syn", "uci"),
    options: dict[str, Any] | None = None,
) -> RunResult:
    """A run whose accuracy on each target is known in every epoch."""
    given = {"benchmark": "digits-mini", "budget": "quick", "method": method, "seed": seed,
             "train": {"epochs": epochs}, "evaluate_every": 1}  # fmt: skip
    config = resolve(merge(given, options or {}))
    if settings_of(config.method).period_option:
        config = resolve(merge(given, {config.method: {"k": 1}}, options or {}))
    models = ("model", config.average.kind[0]) if config.average.kind else ("model",)
    records = [
        {"kind": "evaluation", "phase": "train", "epoch": epoch, "model": model, "n": 500,
         "domain": domain, "accuracy": accuracy(model, domain, epoch, seed, level)}
        for epoch in range(epochs + 1)
        for model in models
        for domain in ("validation", *targets)
    ]  # fmt: skip
    events: list[dict[str, Any]] = [
        {"event": "epoch", "phase": "train", "epoch": n + 1, "steps": 10, "seconds": 10 * step}
        for n in range(epochs)
    ]
    events.append({"event": "done", "seconds": 1.0, "peak_memory": memory * 10**6})
    return RunResult(
        Path(f"{method}-{seed}"), config.tables(), "done", records, events,
        inputs=Inputs(trained="model", deployed=models[-1]), shared_with=tuple(shared),
    )  # fmt: skip


def accuracy(model: str, domain: str, epoch: int, seed: int, level: float) -> float:
    """Validation peaks in epoch 7; the targets move up and down, and most in epoch 6."""
    if domain == "validation":
        return 90.0 + (epoch == 7)
    swing = 1.0 if model == "model" else 0.5
    moved = swing * (epoch % 2) + 4 * (epoch == 6)
    return level + seed + moved + (10.0 if domain == "uci" else 0.0)


GROUPS = {
    "erm": [run("erm", seed) for seed in range(3)],
    "randaugment": [
        run("randaugment", s, level=63 + s * s, step=0.02, shared=["p-ens"], memory=500)
        for s in range(3)
    ],
    "p-ens": [
        run("p-ens", s, level=59, step=0.02, shared=["randaugment"], memory=500) for s in range(3)
    ],
    "l2d": [run("l2d", seed, level=50) for seed in range(2)],
}  # fmt: skip


@pytest.fixture(scope="module")
def table() -> BenchTable:
    return bench_table(GROUPS, failed={"l2d": 1})


def row(table: BenchTable, name: str):
    return next(row for row in table.rows if row.method == name)


def test_scores_are_of_the_last_epoch_over_seeds(table):
    erm = row(table, "erm")
    assert erm.score.values == (65.0, 66.0, 67.0)  # mean of 60 and 70, and the seed
    assert (erm.score.mean, erm.score.std) == (66.0, 1.0)
    assert erm.targets["uci"].mean == 71.0 and erm.source_val.mean == 90.0
    assert row(table, "l2d").seeds == (0, 1) and row(table, "l2d").failed == 1


def test_differences_are_paired_with_the_reference(table):
    assert (table.reference, table.plain) == ("erm", "erm")
    found = row(table, "randaugment").difference
    assert (found.n, found.mean) == (3, pytest.approx(np.mean([3, 4, 7])))
    expected = paired_difference({0: 3.0, 1: 4.0, 2: 7.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert replace(found, margin=expected.margin) == expected
    assert row(table, "erm").difference is None
    assert row(table, "p-ens").difference.reason == "equal in all seeds"
    assert row(table, "l2d").difference.n == 2
    other = bench_table(GROUPS, reference="p-ens")
    assert row(other, "erm").difference.mean == 1.0


def test_fluctuation_is_that_of_the_deployed_network(table):
    moved = [4.0, 1.0, 0.0]  # epochs 6, 7 and 8; the first five periods are left out
    assert row(table, "erm").fluctuation.mean == pytest.approx(np.var(moved))
    assert row(table, "p-ens").fluctuation.mean == pytest.approx(np.var([4.0, 0.5, 0.0]))


def test_late_mean_is_that_of_the_last_five_evaluations(table):
    """Epochs 10 to 14 of 14, of which 11 and 13 are up by 1, the average by half of it."""
    assert all(row.late is None for row in table.rows)  # eight evaluations are too few
    assert "late mean" not in table.table().columns
    runs = {
        name: [run(name, seed, level=60 + seed, epochs=14) for seed in range(2)]
        for name in ("randaugment", "p-ens")
    }
    questions = {"Does averaging help?": [("p-ens", "randaugment")]}
    found = bench_table(runs, questions=questions)
    assert row(found, "randaugment").late.values == pytest.approx((65.4, 67.4))
    assert row(found, "p-ens").late.values == pytest.approx((65.2, 67.2))
    assert found.answers[0].differences["late mean"].mean == pytest.approx(-0.2)
    assert found.answers[0].differences["target mean"].mean == 0.0  # epoch 14 has no swing
    assert "66.4 ± 1.4" in found.table().rows[0]
    assert found.late_epochs == ((10, 14),) and "epochs 10 to 14:" in explanation(found)
    assert table.late_epochs == () and "late" not in explanation(table)
    line = next(csv.DictReader(io.StringIO(found.csv())))
    assert float(line["late mean"]) == pytest.approx(66.4)


def test_late_mean_is_over_the_same_evaluations_for_all_methods():
    """Every fourth epoch, since PEER was evaluated then: 24 to 40 of 40, none of them up."""
    often = run("randaugment", 0, epochs=40)
    seldom = run("peer", 0, epochs=40, options={"peer": {"k": 4}, "evaluate_every": 4})
    found = bench_table({"randaugment": [often], "peer": [seldom]})
    assert found.period == 4 and {row.late.mean for row in found.rows} == {65.0}
    assert found.late_epochs == ((24, 40),)
    longer = bench_table({"randaugment": [often], "p-ens": [run("p-ens", 0, epochs=60)]})
    assert longer.late_epochs == ((36, 40), (56, 60))
    assert "epochs 36 to 40, or of longer runs 56 to 60:" in explanation(longer)
    assert often.late_mean("model") == pytest.approx(65.4)  # by itself: epochs 36 to 40


def test_fluctuation_is_over_the_same_evaluations_for_all_methods():
    often, seldom = run("randaugment", 0), run("peer", 0, options={"peer": {"k": 4}})
    assert (often.period, seldom.period) == (1, 4)
    found = bench_table({"randaugment": [often], "peer": [seldom]})
    assert found.period == 1 and len({r.fluctuation.mean for r in found.rows}) == 1
    cells = list(csv.DictReader(io.StringIO(found.csv())))
    assert [line["fluctuation period"] for line in cells] == ["1", "1"]
    # The shortest k that leaves evaluations: four times five periods are more than the run has.
    alone = bench_table({"erm": GROUPS["erm"], "peer": [seldom]})
    assert alone.period == 1 and alone.rows[1].fluctuation is not None


def test_fluctuation_goes_by_k_where_evaluations_are_more_frequent():
    def config(method: str, **options: Any) -> RunResult:
        given = {"benchmark": "digits-mini", "budget": "paper", "method": method, **options}
        return RunResult(Path(method), resolve(given).tables(), "done", [], [])

    erm, peer, pden = config("erm"), config("peer"), config("pden")
    assert (erm.period, peer.period, pden.period) == (10, 10, 50)
    assert common_period([erm, peer, pden]) == common_period([erm, pden]) // 5 == 10
    frequent = config("erm", evaluate_every=1)
    assert common_period([frequent, config("peer", evaluate_every=1)]) == 10
    # An evaluation that one of them does not have is none for the others.
    assert common_period([config("peer", peer={"k": 4}), peer]) == 20


def test_source_only_selection_and_what_it_costs(table):
    erm = row(table, "erm")
    assert erm.selected.mean == 67.0  # epoch 7, the best on validation, is one above the last
    assert erm.regret.values == (3.0, 3.0, 3.0)  # the oracle takes epoch 6, four above it


def test_a_seed_beside_other_work_does_not_make_a_method_expensive():
    first, *others = GROUPS["randaugment"]
    slow = [{**e, "seconds": 9 * e["seconds"]} if "seconds" in e else e for e in first.events]
    groups = {"erm": GROUPS["erm"], "randaugment": [replace(first, events=slow), *others]}
    found = row(bench_table(groups), "randaugment")
    assert found.step_ratio == pytest.approx(2.0)
    assert found.step_seconds.mean > 0.05  # its seconds are what they were


def test_costs_are_relative_to_plain_training(table):
    assert row(table, "randaugment").step_seconds.mean == pytest.approx(0.02)
    assert row(table, "randaugment").step_ratio == pytest.approx(2.0)
    assert row(table, "randaugment").memory_ratio == pytest.approx(1.25)
    assert row(table, "erm").seconds.mean == pytest.approx(0.8)
    without = bench_table({name: GROUPS[name] for name in ("randaugment", "p-ens")})
    assert without.plain is None and without.reference == "randaugment"
    assert not any("×" in column for column in without.table().columns)


def test_the_table_says_what_is_shared_failed_or_a_reconstruction(table):
    cells = {line[0]: line for line in table.table().rows}
    columns = table.table().columns
    assert cells["l2d †"][columns.index("seeds")] == "2 (1 failed)"
    assert cells["erm"][columns.index("vs erm [95 %]")] == "reference"
    assert cells["p-ens"][columns.index("vs erm [95 %]")] == "-1.0 (equal in all seeds)"
    low, high = row(table, "randaugment").difference.low, row(table, "randaugment").difference.high
    shown = cells["randaugment"][columns.index("vs erm [95 %]")]
    assert shown == f"+4.7 [{low:+.1f}, {high:+.1f}]"
    assert cells["randaugment"][columns.index("seconds")] == "2 ± 0 shared"
    assert cells["erm"][columns.index("MB")] == "400 ± 0"
    notes = "\n".join(table.notes())
    failed, narrow = "l2d †: 1 of its runs failed", "of 2 seeds too narrow"
    for part in ("† reconstruction", failed, "shared:", narrow):
        assert part in notes


def test_a_network_from_elsewhere_is_marked():
    teacher = {"teacher": {"k": 1, "model": "runs/large"}}
    marked = bench_table({"teacher": [run("teacher", 0, options=teacher)]})
    assert marked.rows[0].marks == ("oracle",) and marked.rows[0].label == "teacher ‡"
    assert "trained elsewhere" in marked.notes()[0]


def test_a_run_that_learnt_from_targets_is_marked():
    marked = bench_table({"erm": [run("erm", 0, options={"oracle": True})]})
    assert marked.rows[0].marks == ("oracle",)
    assert "oracle: learnt from targets" in marked.notes()[0]


def test_an_oracle_is_no_reference_unless_it_is_asked_for():
    groups = {name: [run(name, 0)] for name in ("oracle-erm", "randaugment", "erm")}
    found = bench_table(groups)
    assert (found.reference, found.plain) == ("erm", "erm")
    assert bench_table({name: groups[name] for name in list(groups)[:2]}).plain is None
    assert bench_table(groups, reference="oracle-erm").reference == "oracle-erm"


def test_runs_on_other_images_are_named_wherever_the_table_is(tmp_path: Path):
    a, b = (
        [replace(r, fingerprints={"train": print_}) for r in GROUPS["erm"][:1]] for print_ in "ab"
    )
    mixed = bench_table({"erm": [*a, *(replace(r, config={**r.config, "seed": 1}) for r in b)]})
    (caution,) = mixed.cautions
    assert "trained on different images (erm: digits-mini@a; erm: digits-mini@b)" in caution
    assert "different images" in mixed.latex()
    assert bench_table({"erm": a}).cautions == ()


def test_a_method_without_a_finished_run_keeps_its_row():
    found = bench_table({"peer": [], "erm": GROUPS["erm"]}, failed={"peer": 3}, reference="peer")
    assert found.table().rows[0][:3] == ["peer", "0 (3 failed)", "-"]
    assert found.rows[1].difference is None


def test_without_targets_crafted_validation_is_the_score():
    bare = run("erm", 0, targets=("crafted:blur",))
    found = bench_table({"erm": [bare]})
    assert found.score == "crafted val" and found.rows[0].score.mean == 60.0
    assert found.rows[0].selected is None and found.rows[0].fluctuation is None


def test_the_csv_has_every_number_in_full(table):
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["method"] for row in rows] == list(GROUPS)
    aug = rows[1]
    assert float(aug["difference"]) == row(table, "randaugment").difference.mean
    assert float(aug["difference low"]) == row(table, "randaugment").difference.low
    assert float(aug["target uci"]) == row(table, "randaugment").targets["uci"].mean
    assert aug["shared with"] == "p-ens" and rows[3]["reconstruction"] == "True"
    assert rows[0]["difference"] == ""


def test_latex_has_as_many_cells_in_each_line_and_no_bare_sign(table):
    lines = table.latex().splitlines()
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == 1 + len(GROUPS)
    assert {line.count("&") for line in body} == {len(table.table().columns) - 1}
    assert "l2d $^\\dagger$" in table.latex() and "95 \\%" in table.latex()
    assert not any(sign in line for line in body for sign in "±×†")


def test_plain_data_is_json(table):
    import json

    again = json.loads(json.dumps(table.plain_data()))
    assert again["rows"][0]["score"]["mean"] == 66.0
    assert again["rows"][1]["difference"]["n"] == 3


def test_everything_is_written_and_can_be_made_again_from_the_records(table, tmp_path: Path):
    runs = [run for group in GROUPS.values() for run in group]
    write_bench(table, runs, tmp_path, title="A bench")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.md", "table.tex", "table.csv", "differences.png", "steadiness.png",
                     "overview.png", "accuracy.png", "runs.json"}  # fmt: skip
    page = (tmp_path / "report.md").read_text()
    assert page.count("](differences.png)") == page.count("](steadiness.png)") == 1
    assert "l2d †" in page and page.startswith("# A bench\n")
    groups = by_variant(load_runs(tmp_path / "runs.json"))
    unmarked = {name.removesuffix(" †"): group for name, group in groups.items()}
    again = bench_table(unmarked, failed={"l2d": 1})
    assert replace(again, rows=()) == replace(table, rows=())
    assert {r.method: r for r in again.rows} == {r.method: r for r in table.rows}


def test_a_failed_run_is_in_the_page(table):
    from peerdg.benches.children import Failure

    runs = GROUPS["erm"]
    page = bench_page(table, runs, title="t", failures={"l2d-2": Failure("The loss is NaN.")})
    assert "The run l2d-2 failed: The loss is NaN." in page


def test_one_method_alone_has_no_differences_to_draw(tmp_path: Path):
    alone = bench_table({"erm": GROUPS["erm"]})
    assert not differences_figure(alone, tmp_path / "a.png")
    assert steadiness_figure(alone, tmp_path / "b.png")
    assert not (tmp_path / "a.png").exists()


def test_names_of_close_points_do_not_cover_each_other():
    plot = pyplot()
    figure, axis = plot.subplots(figsize=(7.6, 4.6))
    points = [(1.0 + 0.02 * (n % 3), 50.0 + 0.05 * n) for n in range(10)]
    axis.plot(*zip(*points, strict=True), "o")
    axis.set(xlim=(0, 2), ylim=(45, 55))
    boxes = name_points(figure, axis, [f"method-{n}" for n in range(10)], points)
    plot.close(figure)
    overlaps = [
        (a, b) for a in range(10) for b in range(a) if boxes[a].overlaps(boxes[b])
    ]  # fmt: skip
    assert overlaps == []
