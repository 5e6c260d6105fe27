"""What a run prints, on a terminal and in a log."""

import io
import re
import sys
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import peerdg
from peerdg.run.forecast import Costs, PhaseCosts, PhasePlan, RunPlan
from peerdg.run.progress import ConsoleProgress, Silent, choose_progress
from peerdg.run.reading import ReadingBar
from peerdg.terminal import Terminal
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.tiny_run import OPTIONS

PLAN = RunPlan(
    (
        PhasePlan("pretrain", epochs=20, steps=4),
        PhasePlan("train", epochs=240, steps=4, period=5, evaluations=tuple(range(0, 241, 5))),
    )
)
COSTS = Costs(
    {"pretrain": PhaseCosts(1.0), "train": PhaseCosts(4.0, 5.0)}, evaluation=50.0, finish=10.0
)
OPTIONS = {key: OPTIONS[key] for key in ("pretrain", "train", "peer", "threads")}


def fit(out: Path, console: Console | None = None, **options) -> None:
    progress = None if console is None else ConsoleProgress(console)
    peerdg.fit(
        tiny_splits(),
        out=out,
        model=tiny_classifier(),
        **{"progress": progress, **OPTIONS} | options,
    )


def test_a_log_has_a_line_for_each_evaluated_model_and_a_terminal_has_none(tmp_path: Path):
    log, screen = io.StringIO(), io.StringIO()
    fit(tmp_path / "log", Console(file=log, width=80))
    terminal = Terminal(file=screen, width=80, force_terminal=True, color_system=None)
    fit(tmp_path / "screen", terminal)
    evaluations = 5  # before the first epoch, and after every second of eight
    lines = [line for line in log.getvalue().splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2 * evaluations
    assert all("one " in line and "two " in line and "mean " in line for line in lines)
    assert "\nepoch    2/8  task" not in screen.getvalue()
    assert "left" in screen.getvalue()
    assert screen.getvalue().rstrip("\n").endswith("\x1b[2K")  # the block is taken away


def test_the_whole_time_is_announced_before_the_first_step():
    text = io.StringIO()
    progress = ConsoleProgress(Console(file=text, width=200))
    progress.start_run(PLAN, COSTS, spent=16.0)
    progress.start_phase("pretrain", epochs=20, steps=4, done=0)
    progress.start_phase("train", epochs=240, steps=4, done=0)
    # 16 + 80 + 240 * (16 + 1) + 49 * 50 + 10 seconds
    expected = (
        "About 1 h 51 min in all on this machine: 20 + 240 epochs (pretrain + train), "
        "49 evaluations. --minutes N fits it to N minutes."
    )
    assert text.getvalue().count("About") == 1
    assert expected in text.getvalue()


def test_a_resumed_run_announces_what_is_left():
    text = io.StringIO()
    progress = ConsoleProgress(Console(file=text, width=200))
    progress.start_run(PLAN, COSTS, spent=16.0)
    progress.start_phase("train", epochs=240, steps=4, done=235)
    # 5 * (16 + 1) + 50 + 10 seconds
    assert "About 2 min 25 s left on this machine." in text.getvalue()
    assert "in all" not in text.getvalue()


def test_silence_is_the_default_for_scripts_and_progress_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert isinstance(choose_progress(None, console=Console(file=io.StringIO())), Silent)
    person = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(choose_progress(None, console=person), ConsoleProgress)
    assert isinstance(choose_progress(False, console=person), Silent)
    notebook = Console(force_jupyter=True)
    assert isinstance(choose_progress(None, console=notebook), ConsoleProgress)
    assert isinstance(choose_progress(True, console=Console(file=io.StringIO())), ConsoleProgress)
    given = Silent()
    assert choose_progress(given) is given
    fit(tmp_path / "script")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    fit(tmp_path / "terminal")
    out, shown = capsys.readouterr()
    assert out == "" and "pretrain 1/2" in shown
    fit(tmp_path / "off", progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    text = io.StringIO()
    progress = ConsoleProgress(Console(file=text, force_terminal=True, width=80))
    progress.start_phase("train", epochs=2, steps=3, done=1)
    progress.evaluated(2, [{"model": "model", "domain": "a", "accuracy": 50.0}])
    progress.close()
    assert text.getvalue().splitlines() == [
        "train: 2 epochs of 3 steps, going on after epoch 1",
        "epoch    2/2  model a 50.0",
    ]


def test_a_log_has_a_column_for_the_longest_name():
    text = io.StringIO()
    progress = ConsoleProgress(Console(file=text, force_terminal=False, width=80))
    progress.start_phase("train", epochs=2, steps=3, done=0)
    names = ("first", "snapshots")
    progress.evaluated(2, [{"model": name, "domain": "a", "accuracy": 50.0} for name in names])
    assert text.getvalue().splitlines()[1:] == [
        "epoch    2/2  first     a 50.0",
        "epoch    2/2  snapshots a 50.0",
    ]


def test_the_bar_never_goes_back_when_an_estimate_changes():
    now = 0.0
    progress = ConsoleProgress(Console(file=io.StringIO()), clock=lambda: now)
    progress.start_run(PLAN, COSTS, spent=0.0)
    progress.start_phase("pretrain", epochs=20, steps=4, done=0)
    shares = []
    progress.enter("training")
    for step, seconds in enumerate([0.1] * 20 + [30.0] * 20):
        now += seconds
        terms = {"loss": torch.tensor(1.0)}
        progress.step(step // 4, step % 4 + 1, images=8, terms=terms)
        shares.append(progress._updated_block().share)
    assert shares == sorted(shares)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bar_of_reading_fits_on_one_line(width: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peerdg.run.reading.PATIENCE", -1.0)
    text = io.StringIO()
    console = Terminal(file=text, width=width, force_terminal=True, color_system=None)
    bar = ReadingBar(console, "[3/12] [red]peer\x1b]0;x\x07-0  ")
    for done in (1, 123_456, 999_999):
        bar("decoding 回転寿司の写真を集めた長い名前", done, 1_000_000)
    bar.close()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue()).replace("\r", "\n")
    lines = [line for line in drawn.splitlines() if line.strip()]
    assert max(map(cell_len, lines)) <= width
    assert all("/1000000" in line for line in lines)
    assert all(line.isprintable() and "[red]" in line for line in lines)
