"""The rows of a bench: from shared runs, and from the records of an earlier bench."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from peerdg.averages.average_options import KINDS
from peerdg.benches.bench import Bench, run_bench
from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan
from peerdg.benches.rows import RecordedRows, views
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError, DamagedError
from peerdg.files import sha256
from peerdg.methods.recipes import RECIPES
from peerdg.models.stored import require_model
from peerdg.report.compare import by_variant
from peerdg.report.runs import load_runs, save_runs
from tests.benches.tiny import TRAIN, images, plan, trained, trained_run
from tests.benches.tiny import bench as bench

METHODS = ("erm", "randaugment", "p-ens")
K: dict[str, Any] = {"randaugment": {"k": 1}}


def trained_bench(folder: Path, found: Plan, **options: Any) -> Bench:
    """A bench whose runs were trained in this process."""
    for run in found.runs:
        trained_run(run, folder / "runs")
    BenchFolder(folder).write_plan(found)
    return tabulated(found, folder, **options)


def tabulated(found: Plan, out: Path, **options: Any) -> Bench:
    return run_bench(found, out, train=False, **options)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete bench of `METHODS` beside its images."""
    folder = tmp_path_factory.mktemp("earlier")
    trained_bench(folder / "bench", plan(folder / "images", *METHODS, **K))
    return folder / "bench"


def changed(earlier: Path, out: Path, **changes: Any) -> Path:
    """Copy records of an earlier bench, with changes of the row `erm`."""
    runs = load_runs(earlier)
    save_runs(out, [replace(run, **changes) if run.row == "erm" else run for run in runs])
    return out


def test_every_method_of_a_shared_run_is_bit_for_bit_what_it_is_alone(tmp_path: Path):
    averaged = [name for name, r in RECIPES.items() if r.method == "randaugment" and not r.options]
    windows = {
        "newest": {"method": "p-ens", "average": {"last": 1}},
        "late": {"method": "p-ens", "average": {"start": 1}},
    }
    methods = ("randaugment", *averaged, *windows)
    assert {RECIPES[name].average for name in averaged} == set(KINDS)
    options = {"randaugment": {"k": 2}, "average": {"t0": 1}, "variant": windows}
    found = plan(tmp_path / "images", *methods, train={**TRAIN, "epochs": 6}, **options)
    (run,) = found.runs
    shared = views(run, trained_run(run, tmp_path))
    assert set(shared) == {*methods}
    losses = set()
    for method, view in shared.items():
        alone = trained(found.members[method].config, tmp_path / "alone" / method)
        for name in ("evaluations", "config", "deployed", "trained", "method", "variant"):
            assert getattr(view, name) == getattr(alone, name), name
        strip = {"seconds", "timed_steps"}
        assert [{k: v for k, v in e.items() if k not in strip} for e in view.epochs] == [
            {k: v for k, v in e.items() if k not in strip} for e in alone.epochs
        ]
        assert set(view.shared_with) == {*methods} - {method}
        losses.add(tuple(r["loss"] for r in view.evaluations if r["model"] == view.deployed))
    assert len(losses) == len(methods)  # they are different networks
    (kept,) = (view for view in shared.values() if view.stored)
    stored = require_model(kept.stored)["training"]["accuracy"]
    assert {name: each["accuracy"] for name, each in stored.items()} == kept.final(kept.deployed)
    save_runs(tmp_path, list(shared.values()))
    again = by_variant(load_runs(tmp_path))
    assert len(again) == len(methods)
    assert again["randaugment"][0].shared_with == shared["randaugment"].shared_with
    assert again["randaugment"][0].peak_memory == shared["randaugment"].peak_memory > 0


def test_a_page_is_made_again_from_its_records_alone(earlier: Path, tmp_path: Path):
    found = plan(earlier.parent / "images", *METHODS, **K)
    again = tabulated(found, tmp_path / "again", records=[earlier])
    assert again.table == tabulated(found, earlier).table
    for name in ("report.md", "table.csv", "runs.json", "evaluations.csv", "epochs.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (earlier / name).read_bytes()


def test_a_bench_with_records_trains_only_what_they_do_not_have(bench, earlier, tmp_path: Path):
    out = tmp_path / "second"
    more = plan(earlier.parent / "images", *METHODS, "peer", **K, peer={"k": 1})
    made = bench(more, out, records=[earlier])
    assert not made.failures and [p.name for p in (out / "runs").iterdir()] == ["peer-0"]
    rows = {row.method: row.score.values for row in made.table.rows}
    assert rows == {run.row: (run.score(run.deployed),) for run in load_runs(out)}
    assert rows.keys() == set(more.methods)
    assert "records of another bench (erm, seed 0; randaugment, seed 0; p" in made.page.read_text()
    # With the records of the second nothing is left to do; without any, rows are missing.
    recorded = RecordedRows.read([out], more)
    assert all(BenchFolder(tmp_path / "x", recorded=recorded).is_done(run) for run in more.runs)
    assert {r.method: r.seeds for r in tabulated(more, out).table.rows}["erm"] == ()
    assert RecordedRows.read([earlier, out], more).results.keys() == recorded.results.keys()


def test_a_shared_run_is_trained_unless_all_its_rows_are_recorded(earlier, tmp_path: Path):
    found = plan(earlier.parent / "images", *METHODS, **K)
    few = [run for run in load_runs(earlier) if run.row != "p-ens"]
    save_runs(tmp_path / "few", few)
    folder = BenchFolder(tmp_path, recorded=RecordedRows.read([tmp_path / "few"], found))
    assert [folder.is_done(run) for run in found.runs] == [True, False]
    # Where nothing is trained, a row that is there counts, whatever else would share its run.
    table = tabulated(found, tmp_path / "page", records=[tmp_path / "few"]).table
    assert [row.method for row in table.rows if row.seeds] == ["erm", "randaugment"]


def test_a_run_that_was_trained_here_wins_over_its_record(earlier: Path, tmp_path: Path):
    found = plan(earlier.parent / "images", *METHODS, **K)
    (erm,) = (run for run in load_runs(earlier) if run.row == "erm")
    wrong = [{**record, "accuracy": 0.0} for record in erm.evaluations]
    records = [changed(earlier, tmp_path / "wrong", evaluations=wrong)]
    assert tabulated(found, earlier, records=records).table == tabulated(found, earlier).table
    table = tabulated(found, tmp_path / "elsewhere", records=records).table
    assert table.rows[0].score.values == (0.0,)
    with pytest.raises(ConfigError, match="erm"):
        RecordedRows.read([earlier, *records], found)


def test_rows_with_other_options_are_refused_with_the_difference(earlier):
    for options, message in (
        ({"train": {**TRAIN, "lr": 0.1}}, r"train\.lr"),
        ({"train": {**TRAIN, "steps_per_epoch": None}}, r"train\.steps_per_epoch"),
        ({"randaugment": {"k": 2}}, r"average\.k|randaugment\.k"),
    ):
        other = plan(earlier.parent / "images", "randaugment", **{**K, **options})
        with pytest.raises(ConfigError, match=rf"(?s)'randaugment' of .*options:.*{message}"):
            RecordedRows.read([earlier], other)
        assert not RecordedRows.read([earlier], replace(other, seeds=(7,))).results  # not asked for


def test_an_option_newer_than_the_records_counts_as_its_default(earlier, tmp_path: Path):
    usual, other = (
        plan(earlier.parent / "images", "peer", peer={"k": 1, "normalize": normalize})
        for normalize in ("columns", "rows")
    )
    config = usual.members["peer"].config.tables()
    config["peer"] = {k: v for k, v in config["peer"].items() if k != "normalize"}
    records = changed(earlier, tmp_path, row="peer", config=config)
    assert RecordedRows.read([records], usual).results
    with pytest.raises(ConfigError, match="normalize"):
        RecordedRows.read([records], other)


def test_what_an_epoch_is_one_of_is_compared_only_where_it_matters(earlier, tmp_path: Path):
    """Of a pool that grows it decides the number of steps."""
    passes = {name: value for name, value in TRAIN.items() if name != "steps_per_epoch"}
    for method, steps, matters in (("ada", passes, True), ("ada", TRAIN, False)):
        source, pool = (
            plan(earlier.parent / "images", method, train={**steps, "epoch_of": epoch_of})
            for epoch_of in ("source", "pool")
        )
        config = source.members[method].config.tables()
        records = changed(earlier, tmp_path / str(matters), row=method, config=config)
        assert RecordedRows.read([records], source).results
        if matters:
            with pytest.raises(ConfigError, match=r"train\.epoch_of"):
                RecordedRows.read([records], pool)
        else:
            assert RecordedRows.read([records], pool).results


def test_a_row_made_of_several_runs_is_not_one_of_a_single_run(earlier, tmp_path: Path):
    single = plan(earlier.parent / "images", *METHODS, **K)
    six = plan(earlier.parent / "images", "erm-six", variant={"erm-six": {"method": "diwa"}})
    config = six.members["erm-six"].config.tables()
    with pytest.raises(ConfigError, match="from 6 runs, not from 1"):
        RecordedRows.read([changed(earlier, tmp_path, combined_from=tuple("abcdef"))], single)
    options = {"row": "erm-six", "config": config}
    with pytest.raises(ConfigError, match="from 1 runs, not from 6"):
        RecordedRows.read([changed(earlier, tmp_path, **options)], six)
    records = changed(earlier, tmp_path, combined_from=tuple("abcdef"), **options)
    assert RecordedRows.read([records], six).has(six.groups[0], 0)


def test_rows_that_began_with_other_weights_are_refused(earlier: Path, tmp_path: Path):
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"one")
    asked = plan(earlier.parent / "images", "erm", weights=str(weights))
    config = asked.members["erm"].config.tables()
    records = changed(earlier, tmp_path, config=config, weights_sha256=sha256(weights))
    assert load_runs(records)[0].config["weights"] == "weights.pth"
    assert RecordedRows.read([records], asked).results
    weights.write_bytes(b"two")
    with pytest.raises(ConfigError, match="not started from the weights"):
        RecordedRows.read([records], asked)
    weights.unlink()
    with pytest.raises(ConfigError, match="not started from the weights"):
        RecordedRows.read([records], asked)


def test_rows_as_of_an_epoch_are_no_finished_rows(tmp_path: Path):
    found = plan(tmp_path / "images", "randaugment", "sma", **K)
    out = tmp_path / "first"
    early = trained_bench(out, found, until=2)
    assert {run.planned_epochs for run in load_runs(out)} == {4}
    for until, rows in ((None, 0), (3, 0), (2, 2), (1, 2)):
        assert len(RecordedRows.read([out], found, until=until).results) == rows
    assert tabulated(found, tmp_path / "again", until=2, records=[out]).table == early.table
    short = plan(tmp_path / "images", "randaugment", "sma", **K, train={**TRAIN, "epochs": 2})
    with pytest.raises(ConfigError, match=r"train\.epochs"):  # its averages may differ
        RecordedRows.read([out], short)
    # An SMA begins after a part of the whole, so half of a long run is no short run.
    trained_bench(tmp_path / "short", short)
    long, brief = ({r.row: r.variant for r in load_runs(f)} for f in (out, tmp_path / "short"))
    assert [long[row] == brief[row] for row in ("randaugment", "sma")] == [True, False]


def test_rows_of_two_files_are_named_in_the_page_and_stay_marked(tmp_path: Path):
    both = plan(tmp_path / "images", "erm", seeds=2)
    for seed in both.seeds:
        trained_bench(tmp_path / str(seed), replace(both, seeds=(seed,)))
    page = tabulated(
        both, tmp_path / "both", records=[tmp_path / "0", tmp_path / "1"]
    ).page.with_name("report.md")
    assert "records of another bench (erm, seed 0, 1)" in page.read_text()
    again = tabulated(both, tmp_path / "again", records=[tmp_path / "both"]).page.with_name(
        "report.md"
    )
    assert again.read_bytes() == page.read_bytes()  # one file: as it was, marks and all


def test_the_command_takes_records_and_keeps_them(earlier: Path, tmp_path: Path, capsys):
    options = {**images(earlier.parent / "images"), **K}
    tables = {"methods": METHODS, "seeds": [0], "options": options}
    (tmp_path / "plan.toml").write_text(tomli_w.dumps(tables))
    asked = ["bench", "--plan", str(tmp_path / "plan.toml"), "--records", str(earlier), "--out"]
    again = tmp_path / "again"
    assert command([*asked, str(again), "--dry-run"], debug=False) == 0
    assert not again.exists()
    assert command([*asked, str(again), "--no-train"], debug=False) == 0
    assert (again / "report.md").read_bytes() == (earlier / "report.md").read_bytes()
    assert command([*asked, str(earlier), "--no-train"], debug=False) == 2
    assert "overwritten" in capsys.readouterr().err
    assert not {"root", "threads", "device"} & load_runs(earlier)[0].config.keys()


def test_a_file_without_records_is_refused(tmp_path: Path):
    for content in ("", "{}"):
        (tmp_path / "runs.json").write_text(content)
        with pytest.raises(DamagedError, match=r"runs\.json"):
            RecordedRows.read([tmp_path], plan(tmp_path / "images", "erm"))
