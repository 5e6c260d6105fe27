"""Bytes that are written to a terminal."""

import io
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from peerdg.terminal import (
    Table,
    Terminal,
    command,
    one_line,
    visible_message,
)

HOSTILE = "a\x1b]0;t\x07\r\b\x9b1m\u202e\u2028[red]x[/red]"


def printed(*objects: object, width: int = 40, terminal: bool = True, **options: object) -> str:
    text = io.StringIO()
    Terminal(file=text, width=width, force_terminal=terminal, color_system=None).print(
        *objects, **options
    )
    return text.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "kind", [str, Text, lambda t: RuntimeError(t), lambda t: Path(t), lambda t: {"key": t}]
)
def test_control_characters_are_always_escaped(kind, terminal: bool):
    shown = printed(kind(HOSTILE), terminal=terminal, width=400)
    assert all(c.isprintable() for c in shown.rstrip("\n"))
    assert "[red]x[/red]" in shown


def test_table_cells_are_escaped():
    table = RichTable()
    table.add_column(Text(HOSTILE))
    table.add_row(Text(HOSTILE))
    assert all(c.isprintable() or c == "\n" for c in printed(table, width=400))


@given(st.text(max_size=80))
def test_messages_have_line_breaks_before_indented_lines_only(text: str):
    shown = visible_message(text)
    assert all(c.isprintable() or c == "\n" for c in shown)
    for line in shown.removesuffix("\n").split("\n")[1:]:
        assert line.startswith("  ")


def test_line_breaks_are_escaped_in_names_only():
    message = f"2 images cannot be used:\n  {'x' + chr(10) + 'Error: y'}\n  z"
    assert visible_message(message) == "2 images cannot be used:\n  x\\nError: y\n  z"


def test_an_error_of_a_library_is_shown_on_one_line():
    error = RuntimeError("Couldn't read it:\ndon't know what type: \x0f\n\tat 3.\n")
    message = f"Cannot read the list a.parquet: {one_line(error)}."
    assert visible_message(message) == (
        "Cannot read the list a.parquet: Couldn't read it: don't know what type: \\x0f at 3."
    )
    assert one_line(KeyError()) == "KeyError"


def test_files_have_every_message_on_one_line():
    message = "word " * 60
    assert printed(message, terminal=False).count("\n") == 1


FINAL = Table(
    ["accuracy %", "validation", "street", "mnist-m", "syn", "uci", "target mean"],
    [
        ["peer proxy", "95.9 (95.1-96.6)", "50.3", "72.8", "41.6", "62.5", "56.8 ± 1.2"],
        ["peer task (deployed)", "94.9", "48.0", "66.1", "36.0", "64.2", "53.6 ± 10.2"],
    ],
)
RUNS = Table(["run", "data", "seed"], [["/data/" + "long/" * 30, "digits-mini", "0"]], is_text=True)
WIDE = Table(["class", *(f"class-{n}" for n in range(30))], [["a", *(f"{n}" for n in range(30))]])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_fits_a_narrow_terminal_and_breaks_only_long_words(width: int):
    for table in (FINAL, RUNS, WIDE):
        text = printed(table, width=width)
        assert max(map(cell_len, text.splitlines())) <= width
        words = {w for row in (table.columns, *table.rows) for cell in row for w in cell.split()}
        assert {word for word in words if len(word) <= 12} <= set(text.split())


def test_columns_that_do_not_fit_follow_below_with_the_first_column():
    lines = printed(WIDE, width=60).splitlines()
    tables = [line for line in lines if line.startswith("class ")]
    assert len(tables) > 3
    assert [name for line in tables for name in line.split()[1:]] == WIDE.columns[1:]


def test_files_have_whole_rows():
    text = printed(RUNS, width=40, terminal=False)
    assert RUNS.rows[0][0] in text
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize("path", ["runs/my photos ü", "it's", "a;b", "plain"])
def test_a_printed_command_can_be_pasted(path):
    assert shlex.split(command("resume", Path(path))) == ["peerdg", "resume", path]


def test_a_table_shows_all_characters_at_any_width():
    names = ["epoch", "distance", "churn train", "churn validation", "churn uci", "forgetting"]
    table = Table(names, [["10", "0.123", "36.1", "25.0", "36.2", "1.0"]])
    for width in range(20, 90):
        terminal = Terminal(force_terminal=True, width=width, file=io.StringIO(), color_system=None)
        terminal.print(table)
        shown = terminal.file.getvalue().split()
        assert {*" ".join((*names, *table.rows[0])).split()} <= {*shown}, width
