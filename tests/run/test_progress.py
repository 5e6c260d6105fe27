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
from peerdg.crafted import FAMILIES
from peerdg.report.runs import RunResult
from peerdg.run.progress import (
    EVALUATING,
    ConsoleProgress,
    ProgressDisplay,
    ReadingBar,
    choose_progress,
    duration,
    summarize,
)
from peerdg.terminal import Terminal
from peerdg.train.settings import Phase, PhaseSettings
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.tiny_run import OPTIONS

OPTIONS = {key: OPTIONS[key] for key in ("pretrain", "train", "peer", "threads")}
LOSS = {"loss": torch.tensor(1.5)}
HOSTILE = (
    "\x1b]0;title\x07\x1b[31mred",
    "回転寿司の写真を集めた長い名前の領域",
    "back\b\b\b\bspace\rcarriage\nline",
    "\u202eright to left\u202c",
    "[bold red]markup[/]",
)


def fit(out: Path, console: Console | None = None, **options) -> None:
    progress = None if console is None else ConsoleProgress(console)
    peerdg.fit(
        tiny_splits(),
        out=out,
        model=tiny_classifier(),
        **{"progress": progress, **OPTIONS} | options,
    )


class FakeTerminal:
    """A progress of 10 + 20 epochs of 4 steps, with a clock that the test moves."""

    def __init__(self, *, width: int = 100, **console) -> None:
        self.now, self.text = 0.0, io.StringIO()
        terminal = Terminal(file=self.text, width=width, color_system=None, **console)
        self.progress = ConsoleProgress(terminal, clock=lambda: self.now)
        phases = [("pretrain", 10, None), ("train", 20, 5)]
        self.progress.start_run(
            [(Phase(n, PhaseSettings(epochs=e), every), 4) for n, e, every in phases],
            evaluation_steps=8.0,
        )

    def step(self, epoch: int, step: int, seconds: float) -> None:
        self.now += seconds
        self.progress.step(epoch, step, images=8, terms=LOSS)

    @property
    def left(self) -> float | None:
        return self.progress._bar.tasks[0].time_remaining

    def lines(self) -> list[str]:
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text.getvalue()).replace("\r", "\n")
        return [line for line in drawn.splitlines() if line.strip()]


def test_a_log_has_all_evaluations_and_a_terminal_shows_the_last_one(tmp_path: Path):
    log, screen = io.StringIO(), io.StringIO()
    fit(tmp_path / "log", Console(file=log, width=80))
    terminal = Terminal(file=screen, width=80, force_terminal=True, color_system=None)
    fit(tmp_path / "screen", terminal)
    evaluations = 5  # before the first epoch, and after every second of eight
    for text in (log, screen):
        lines = [line for line in text.getvalue().splitlines() if "epoch " in line and "/8" in line]
        assert len(lines) == 2 * evaluations if text is log else len(lines) >= 2
        assert "proxy" in lines[-2] and "task" in lines[-1] and "epoch    8/8" in lines[-1]
        assert all("one " in line and "two " in line and "mean " in line for line in lines)
    assert "━" in screen.getvalue() and "━" not in log.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")  # the bar is removed


def test_the_method_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build, built = peerdg.PEER.build, []
    monkeypatch.setattr(peerdg.PEER, "build", lambda *args: built.append(1) or build(*args))
    fit(tmp_path / "run", progress=False)  # on a terminal, an estimate builds another one
    assert len(built) == 1


def test_the_time_left_counts_steps_and_evaluations():
    shown = FakeTerminal()
    shown.progress.start_phase("pretrain", epoch=0, step=0)
    for epoch in range(10):
        for step in range(1, 5):
            shown.step(epoch, step, 1.0)
    assert shown.left == pytest.approx(20 * 4 + 5 * 8)
    shown.progress.start_phase("train", epoch=0, step=0)
    for share in (0.0, 0.5):
        shown.now += 4.0
        shown.progress.work(EVALUATING, share)
    shown.progress.evaluated(0, [])
    for step in range(1, 5):
        shown.step(0, step, 1.0)
    assert shown.left == pytest.approx(19 * 4 + 4 * 8, rel=0.25)


def test_a_resumed_run_starts_where_it_was():
    shown = FakeTerminal()
    shown.progress.start_phase("train", epoch=10, step=2)
    assert shown.progress._bar.tasks[0].completed == 10 * 4 + 10 * 4 + 2 + 3 * 8
    assert "continued after epoch 10" in shown.text.getvalue()


def test_a_log_has_a_line_now_and_then():
    shown = FakeTerminal()
    shown.progress.start_phase("train", epoch=0, step=0)
    for step in range(1, 5):
        shown.step(0, step, 20.0)
    shown.now += 40
    shown.progress.work("perturbing", 0.5)
    assert [line.split("  ")[0] for line in shown.lines()[1:]] == ["train 1/20"] * 3
    assert "loss 1.500" in shown.lines()[1] and "images/s" in shown.lines()[1]
    assert "perturbing 50 %" in shown.lines()[3] and "left" in shown.lines()[3]


@pytest.mark.parametrize("width", [40, 60, 120])
def test_the_bar_fits_on_one_line(width: int):
    shown = FakeTerminal(width=width, force_terminal=True)
    shown.progress.start_phase("train", epoch=0, step=0)
    for step in range(1, 5):
        shown.step(0, step, 1.0)
    shown.progress.close()
    assert max(map(cell_len, shown.lines())) <= width
    assert any("train 1/20" in line for line in shown.lines())


def test_nothing_is_shown_to_scripts_and_progress_to_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert isinstance(choose_progress(True), ConsoleProgress)
    own = ProgressDisplay()
    assert choose_progress(own) is own
    fit(tmp_path / "script")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    fit(tmp_path / "terminal")
    out, shown = capsys.readouterr()
    assert out == "" and "epoch    8/8" in shown
    fit(tmp_path / "off", progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    shown = FakeTerminal(force_terminal=True)
    shown.progress.start_phase("train", epoch=1, step=0)
    records = [{"model": n, "domain": "a", "accuracy": 50.0} for n in ("first", "snapshots")]
    shown.progress.evaluated(2, records)
    shown.progress.close()
    assert shown.text.getvalue().splitlines() == [
        "train: 20 epochs of 4 steps, continued after epoch 1",
        "epoch    2/20  first     a 50.0",
        "epoch    2/20  snapshots a 50.0",
    ]


@pytest.mark.parametrize("force_terminal", [True, False])
def test_hostile_names_are_shown_and_not_obeyed(force_terminal: bool):
    shown = FakeTerminal(width=400, force_terminal=force_terminal)
    shown.progress.start_phase("train", epoch=0, step=0)
    records = [{"model": "model", "domain": name, "accuracy": 1.0} for name in HOSTILE]
    shown.progress.evaluated(0, records)
    shown.progress.close()
    (line,) = [line for line in shown.lines() if "epoch    0/20" in line]
    assert line.isprintable() and "[bold red]markup[/]" in line


def test_the_bar_of_reading_fits_on_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peerdg.run.progress.MIN_READING_SECONDS", -1.0)
    for width in (60, 80, 120):
        shown = FakeTerminal(width=width, force_terminal=True)
        bar = ReadingBar(shown.progress.console)
        for done in (1, 123_456, 999_999):
            bar(done, 1_000_000, "[red]decoding\x1b]0;x\x07 回転寿司の写真を集めた長い名前")
        bar.close()
        assert max(map(cell_len, shown.lines())) <= width
        assert all("/1000000" in line and "[red]" in line for line in shown.lines())
        assert all(line.isprintable() for line in shown.lines())


def test_the_crafted_mean_is_over_the_families_of_the_final_tables():
    record = {"kind": "evaluation", "phase": "train", "epoch": 1, "model": "model"}
    accuracy = {f"crafted:{name}": 7.0 * n for n, name in enumerate(FAMILIES)}
    records = [{**record, "domain": d, "accuracy": a} for d, a in accuracy.items()]
    final = RunResult(path=Path("run"), config={}, evaluations=records).score("model")
    assert summarize(accuracy) == [("crafted", pytest.approx(final))]


def test_durations_have_a_unit():
    seconds = (0.2, 59.4, 250, 2520, 7500, 273_000)
    expected = ["0 s", "59 s", "4 min 10 s", "42 min", "2 h 05 min", "75 h 50 min"]
    assert [duration(value) for value in seconds] == expected
