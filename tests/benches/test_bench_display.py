"""Progress of a bench fits any width, and a log has plain lines."""

import io

import pytest
from rich.cells import cell_len

from peerdg.benches.display import LINE_SECONDS, BenchDisplay, RunLine
from peerdg.terminal import Terminal

LONG = "randaugment+p-ens+swa+ema+sma+swad-4"
MESSAGE = {"kind": "progress", "phase": "train", "epoch": 12, "epochs": 60, "share": 0.45,
           "left": 4210.0, "images_per_second": 12345.6, "activity": ""}  # fmt: skip


def drawn(width: int, renderable: object, *, terminal: bool = True) -> list[str]:
    out = io.StringIO()
    console = Terminal(file=out, width=width, force_terminal=terminal, color_system=None)
    console.print(renderable)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("name", ["erm-0", LONG, "回転寿司-0", "\x1b[31mred-0"])
def test_a_run_has_one_line_that_fits(width: int, name: str):
    line = RunLine(name)
    line.update(MESSAGE)
    (shown,) = drawn(width, line)
    assert cell_len(shown) <= width
    assert "\x1b" not in shown
    if width >= 60:
        assert "45 %" in shown and "1 h 10 min left" in shown and "━" in shown
    if width >= 80:
        assert "12,346" in shown
    if width >= 120:
        assert "12,346 images/s" in shown and "train 12/60" in shown


def test_a_log_has_a_line_at_start_and_end_and_now_and_then():
    now = [0.0]
    out = io.StringIO()
    console = Terminal(file=out, width=80)
    display = BenchDisplay(console, total=3, done=1, left=None, clock=lambda: now[0])
    display.started("erm-0")
    for second in range(100):
        now[0] = float(second)
        display.progressed("erm-0", MESSAGE)
    display.note("Once.")
    display.note("Once.")
    display.ended("erm-0", "done in 2 min, model 61.0 %", left=30.0)
    display.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "erm-0: started"
    assert lines.count("Once.") == 1
    assert sum("images/s" in line for line in lines) == int(99 // LINE_SECONDS)
    assert lines[-1] == "[2/3] erm-0: done in 2 min, model 61.0 %"
    now[0] += 10
    assert display.summary() == "2 of 3 runs, about 20 s left"
