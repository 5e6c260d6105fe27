"""Rows of an earlier bench, taken from its records in place of training them again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from peerdg.benches.bench import Bench, run_bench
from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan
from peerdg.benches.records import RecordedRows
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError, DamagedError, PeerdgWarning
from peerdg.files import sha256
from peerdg.report.runs import load_runs, save_runs
from tests.benches.tiny import TRAIN, images, plan, trained_run
from tests.benches.tiny import bench as bench
from tests.data.image_files import write_picture

METHODS = ("erm", "randaugment", "p-ens")
OPTIONS: dict[str, Any] = {"randaugment": {"k": 1}}


def trained_bench(folder: Path, found: Plan, *, until: int | None = None) -> Bench:
    """A bench whose runs were trained in this process."""
    out = folder / "first"
    for run in found.runs:
        trained_run(run, out / "runs")
    BenchFolder(out).write_plan(found)
    return tabulated(found, out, until=until)


def tabulated(found: Plan, out: Path, **options: Any) -> Bench:
    return run_bench(found, out, train=False, **options)


def rewritten(file: Path, **changes: Any) -> Path:
    """Change the first run of a file of records."""
    first, *others = load_runs(file)
    save_runs(file, [replace(first, **changes), *others])
    return file


def test_a_page_is_made_again_from_its_records_alone(tmp_path: Path):
    found = plan(tmp_path / "images", *METHODS, seeds=2, **OPTIONS)
    first = trained_bench(tmp_path, found)
    again = tabulated(found, tmp_path / "again", records=[tmp_path / "first"])
    assert again.table == first.table
    for name in ("report.md", "table.csv", "runs.json", "evaluations.csv", "epochs.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


def test_a_bench_with_records_trains_only_what_they_do_not_have(bench, tmp_path: Path):
    few = plan(tmp_path / "images", *METHODS, **OPTIONS)
    trained_bench(tmp_path, few)
    records, out = tmp_path / "first", tmp_path / "second"
    more = plan(tmp_path / "images", *METHODS, "peer", **OPTIONS, peer={"k": 1})
    found = bench(more, out, records=[records])
    assert not found.failures and [p.name for p in (out / "runs").iterdir()] == ["peer-0"]
    rows = {row.method: row.score.values for row in found.table.rows}
    assert rows == {run.row: (run.score(run.deployed),) for run in load_runs(out)}
    assert rows.keys() == set(more.methods)
    assert found.table.remarks[-1] == (
        "Taken from the records of another bench (erm, seed 0; randaugment, seed 0; p-ens, seed "
        "0): time and memory are those of where it was trained."
    )
    assert "- Taken from the records of another bench" in found.page.read_text()
    # With the records of the second nothing is left to do; without any, rows are missing.
    assert RecordedRows.read([out], more).runs == {run.name for run in more.runs}
    assert {r.method: r.seeds for r in tabulated(more, out).table.rows}["erm"] == ()


@pytest.mark.parametrize("epoch_of", ["source", "pool"])
def test_what_an_epoch_is_one_of_is_compared_only_where_it_matters(tmp_path: Path, epoch_of: str):
    """Steps of the tiny bench are counted, so it does not."""
    found = plan(tmp_path / "images", "erm", train={**TRAIN, "epoch_of": epoch_of})
    trained_bench(tmp_path, found)
    assert RecordedRows.read([tmp_path / "first"], found).runs == {"erm-0"}


def test_a_network_that_learnt_nothing_is_named_also_by_records(tmp_path: Path):
    dead = {"epochs": 50, "batch_size": 8, "steps_per_epoch": 2, "lr": 1e-12}
    found = plan(tmp_path / "images", "erm", "randaugment", pretrain=dead, **OPTIONS)
    with pytest.warns(PeerdgWarning, match="Pre-training"):
        first = trained_bench(tmp_path, found)
    notes = [f"{name}, seed 0: pre-training collapsed" for name in ("erm", "randaugment")]
    again = tabulated(found, tmp_path / "again", records=[tmp_path / "first"])
    for made in (first, again):
        assert [note.partition(", the network")[0] for note in made.table.cautions[:2]] == notes
        assert all(note in made.page.read_text() for note in notes)


def test_a_run_that_was_trained_here_wins_over_its_record(tmp_path: Path):
    found = plan(tmp_path / "images", "erm")
    first = trained_bench(tmp_path, found)
    (run,) = load_runs(tmp_path / "first")
    copy = tmp_path / "copy"
    save_runs(copy, [replace(run, evaluations=[{**r, "accuracy": 0.0} for r in run.evaluations])])
    assert tabulated(found, tmp_path / "first", records=[copy]).table == first.table
    elsewhere = tabulated(found, tmp_path / "elsewhere", records=[copy]).table
    assert elsewhere.rows[0].score.values == (0.0,)


def test_a_shared_run_is_trained_unless_all_its_rows_are_recorded(tmp_path: Path):
    trained_bench(tmp_path, plan(tmp_path / "images", "erm", "randaugment", **OPTIONS))
    found = plan(tmp_path / "images", *METHODS, **OPTIONS)
    recorded = RecordedRows.read([tmp_path / "first"], found)
    assert recorded.runs == {"erm-0"}
    bench = BenchFolder(tmp_path / "bench", recorded=recorded)
    assert [bench.is_done(run) for run in found.runs] == [True, False]
    # Where nothing is trained, a row that is there counts, whatever else would share its run.
    table = tabulated(found, tmp_path / "page", records=[tmp_path / "first"]).table
    assert {row.method for row in table.rows if row.seeds} == {"erm", "randaugment"}
    assert {row.method for row in table.rows} == {*METHODS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": {**TRAIN, "lr": 0.1}}, r"train\.lr"),
        ({"train": {**TRAIN, "epochs": 8}}, r"train\.epochs"),
        ({"randaugment": {"k": 2}}, r"average\.k|randaugment\.k"),
    ],
)
def test_rows_with_other_options_are_refused_with_the_difference(
    tmp_path: Path, options: dict[str, Any], message: str
):
    trained_bench(tmp_path, plan(tmp_path / "images", "randaugment", **OPTIONS))
    other = plan(tmp_path / "images", "randaugment", **{**OPTIONS, **options})
    with pytest.raises(ConfigError, match=rf"(?s)'randaugment' of .*other options.*{message}"):
        RecordedRows.read([tmp_path / "first"], other)


def test_a_row_made_of_several_runs_is_not_one_of_a_single_run(tmp_path: Path):
    found = plan(tmp_path / "images", "randaugment", **OPTIONS)
    trained_bench(tmp_path, found)
    file = tmp_path / "first"
    rewritten(file, combined_from=tuple("abcdef"))
    with pytest.raises(ConfigError, match="made of 6 runs, not of 1"):
        RecordedRows.read([file], found)
    combined = plan(tmp_path / "images", "x", variant={"x": {"method": "diwa"}})
    rewritten(file, row="x", config=combined.members["x"].config.tables())
    assert RecordedRows.read([file], combined).has(combined.groups[0], 0)
    rewritten(file, combined_from=())
    with pytest.raises(ConfigError, match="made of 1 runs, not of 6"):
        RecordedRows.read([file], combined)


@pytest.mark.parametrize(
    ("option", "planned", "is_taken"),
    [
        ("steps_per_epoch", 2, False),  # without it, whole passes
        ("steps_per_epoch", None, True),
        ("momentum", 0.9, True),  # its default: the option may be newer than the record
        ("momentum", 0.5, False),
    ],
)
def test_an_option_that_a_record_lacks_had_its_default_and_no_preset(
    tmp_path: Path, option: str, planned: Any, is_taken: bool
):
    trained_bench(tmp_path, plan(tmp_path / "images", "erm"))
    file = tmp_path / "first"
    config = load_runs(file)[0].config
    train = {name: value for name, value in config["train"].items() if name != option}
    rewritten(file, config={**config, "train": train})
    asked = plan(tmp_path / "images", "erm", train={**TRAIN, option: planned})
    if is_taken:
        assert RecordedRows.read([file], asked).runs == {"erm-0"}
    else:
        with pytest.raises(ConfigError, match=option):
            RecordedRows.read([file], asked)


def test_rows_of_two_files_are_named_in_the_page_and_stay_marked(tmp_path: Path):
    both = plan(tmp_path / "images", "erm", seeds=2)
    for seed in both.seeds:
        trained_bench(tmp_path / str(seed), replace(both, seeds=(seed,)))
    files = [tmp_path / str(seed) / "first" for seed in both.seeds]
    page = tabulated(both, tmp_path / "both", records=files).page
    assert "Taken from the records of another bench (erm, seed 0, 1)" in page.read_text()
    again = tabulated(both, tmp_path / "again", records=[tmp_path / "both"]).page
    assert again.read_bytes() == page.read_bytes()  # one file: as it was, marks and all


def test_a_table_with_records_leaves_the_options_of_a_bench_alone(tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "randaugment", **OPTIONS)
    trained_bench(tmp_path, found)
    copy = tmp_path / "copy"
    save_runs(copy, load_runs(tmp_path / "first"))
    before = (tmp_path / "first/bench.toml").read_bytes()
    tabulated(plan(tmp_path / "images", "erm"), tmp_path / "first", records=[copy])
    assert (tmp_path / "first/bench.toml").read_bytes() == before


def test_other_rows_and_seeds_of_a_file_are_left_alone(tmp_path: Path):
    trained_bench(tmp_path, plan(tmp_path / "images", "erm", "randaugment", **OPTIONS))
    other = plan(tmp_path / "images", "erm", seeds=1, **{"train": {**TRAIN, "lr": 0.1}})
    other = replace(other, seeds=(7,))
    assert not RecordedRows.read([tmp_path / "first"], other).results


def test_rows_as_of_an_epoch_are_no_finished_rows(tmp_path: Path):
    found = plan(tmp_path / "images", "randaugment", "p-ens", **OPTIONS)
    early = trained_bench(tmp_path, found, until=2)
    records = [tmp_path / "first"]
    assert {run.planned_epochs for run in load_runs(records[0])} == {4}
    assert not RecordedRows.read(records, found).runs
    assert not RecordedRows.read(records, found, until=3).runs
    assert tabulated(found, tmp_path / "again", until=2, records=records).table == early.table
    assert RecordedRows.read(records, found, until=1).runs == {"randaugment+p-ens-0"}
    short = plan(
        tmp_path / "images", "randaugment", "p-ens", **OPTIONS, train={**TRAIN, "epochs": 2}
    )
    with pytest.raises(ConfigError, match=r"train\.epochs"):  # its averages may differ
        RecordedRows.read(records, short)
    whole = tabulated(found, tmp_path / "first").table
    later = tabulated(found, tmp_path / "again", until=2, records=records).table
    assert whole != early.table == later
    assert {run.planned_epochs for run in load_runs(records[0])} == {None}


def test_rows_of_other_data_are_named(bench, tmp_path: Path):
    trained_bench(tmp_path, plan(tmp_path / "images", "erm"))
    write_picture(tmp_path / "images/source/cat/more.png", 99, (16, 16))
    more = plan(tmp_path / "images", "erm", "mixstyle")
    table = bench(more, tmp_path / "second", records=[tmp_path / "first"]).table
    assert any("different images" in caution for caution in table.cautions)


def test_rows_that_began_with_other_weights_are_refused(tmp_path: Path):
    found = plan(tmp_path / "images", "erm")
    trained_bench(tmp_path, found)
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"one")
    first = load_runs(tmp_path / "first")[0]
    file = rewritten(
        tmp_path / "first",
        config={**first.config, "weights": str(weights)},
        weights_sha256=sha256(weights),
    )
    assert load_runs(file)[0].config["weights"] == "weights.pth"
    asked = plan(tmp_path / "images", "erm", weights=str(weights))
    assert RecordedRows.read([file], asked).runs == {"erm-0"}
    weights.write_bytes(b"two")
    with pytest.raises(ConfigError, match="began with other weights"):
        RecordedRows.read([file], asked)
    weights.unlink()
    with pytest.raises(ConfigError, match=r"weights\.pth: No such file"):
        RecordedRows.read([file], asked)


def test_a_row_that_two_files_have_is_refused(tmp_path: Path):
    found = plan(tmp_path / "images", "erm")
    trained_bench(tmp_path, found)
    with pytest.raises(ConfigError, match="'erm' with seed 0 is given twice"):
        RecordedRows.read([tmp_path / "first"] * 2, found)


def test_records_that_the_bench_would_overwrite_are_refused(tmp_path: Path):
    found = plan(tmp_path / "images", "erm", "randaugment", **OPTIONS)
    trained_bench(tmp_path, found)
    records, few = tmp_path / "first", plan(tmp_path / "images", "erm")
    before = (records / "runs.json").read_bytes()
    with pytest.raises(ConfigError, match="would be overwritten"):
        tabulated(few, tmp_path / "first/../first", records=[records])
    assert (records / "runs.json").read_bytes() == before


@pytest.mark.parametrize("content", [None, "", "[]x", '[{"name": 3}]', "{}"])
def test_a_file_without_records_is_refused(tmp_path: Path, content: str | None):
    file = tmp_path / "runs.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DamagedError, match=r"runs\.json"):
        RecordedRows.read([file], plan(tmp_path / "images", "erm"))


def test_the_command_takes_records(tmp_path: Path, capsys):
    found = plan(tmp_path / "images", "erm")
    trained_bench(tmp_path, found)
    options = images(tmp_path / "images")
    records, out = tmp_path / "first", tmp_path / "again"
    file = tmp_path / "plan.toml"
    file.write_text(tomli_w.dumps({"methods": ["erm"], "seeds": [0], "options": options}))
    asked = ["bench", "--plan", str(file), "--records", str(records), "--out", str(out)]
    assert command([*asked, "--dry-run"], debug=False) == 0
    assert not out.exists()
    assert command([*asked, "--no-train"], debug=False) == 0
    assert (out / "report.md").read_bytes() == (tmp_path / "first/report.md").read_bytes()
    asked[4] = str(tmp_path / "nothing")
    assert command(asked, debug=False) != 0
    assert "runs.json" in capsys.readouterr().err
    assert not {"root", "threads", "device"} & load_runs(records)[0].config.keys()


def test_a_part_of_a_long_run_is_no_short_run_where_the_length_matters(tmp_path: Path):
    """An SMA begins after a part of the whole; a mean of snapshots does not look ahead."""
    found = plan(tmp_path / "images", "p-ens", "sma", **OPTIONS)
    short = plan(tmp_path / "images", "p-ens", "sma", **OPTIONS, train={**TRAIN, "epochs": 2})
    trained_bench(tmp_path / "long", found, until=2)
    trained_bench(tmp_path / "short", short)
    variants = {
        name: {run.row: run.variant for run in load_runs(tmp_path / name / "first")}
        for name in ("long", "short")
    }
    assert variants["long"]["p-ens"] == variants["short"]["p-ens"]
    assert variants["long"]["sma"] != variants["short"]["sma"]
