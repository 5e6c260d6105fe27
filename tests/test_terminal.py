"""What arrives at a terminal, byte by byte."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from peerdg.terminal import Terminal, VisibleRows
from peerdg.text import abridge, one_line, visible, visible_message

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
def test_no_control_character_arrives_however_it_is_printed(kind, terminal: bool):
    shown = printed(kind(HOSTILE), terminal=terminal, width=400)
    assert all(c.isprintable() for c in shown.rstrip("\n"))
    assert "[red]x[/red]" in shown


def test_what_a_table_holds_is_written_out_too():
    table = Table()
    table.add_column(Text(HOSTILE))
    table.add_row(Text(HOSTILE))
    assert all(c.isprintable() or c == "\n" for c in printed(table, width=400))


@given(st.text(max_size=80))
def test_a_message_has_only_line_breaks_before_indented_lines(text: str):
    shown = visible_message(text)
    assert all(c.isprintable() or c == "\n" for c in shown)
    for line in shown.removesuffix("\n").split("\n")[1:]:
        assert line.startswith("  ")


def test_our_lines_survive_and_those_of_a_name_do_not():
    message = f"2 images cannot be used:\n  {'x' + chr(10) + 'Error: y'}\n  z"
    assert visible_message(message) == "2 images cannot be used:\n  x\\nError: y\n  z"


def test_the_text_of_a_librarys_error_ends_a_message_on_one_line():
    error = RuntimeError("Couldn't read it:\ndon't know what type: \x0f\n\tat 3.\n")
    message = f"Cannot read the list a.parquet: {one_line(error)}."
    assert visible_message(message) == (
        "Cannot read the list a.parquet: Couldn't read it: don't know what type: \\x0f at 3."
    )
    assert one_line(KeyError()) == "KeyError"


@given(st.lists(st.text("abc/.-", min_size=1, max_size=30), min_size=1, max_size=20))
def test_messages_wrap_between_words_only(words: list[str]):
    message = " ".join(words)
    lines = printed(message, width=24).rstrip("\n").split("\n")
    assert " ".join(lines).split() == message.split()
    assert all(cell_len(line) <= 24 or " " not in line for line in lines)


def test_commands_to_copy_stay_on_their_line():
    command = "  peerdg resume " + "folder/" * 10
    assert command in printed(f"Stopped in epoch 3. Saved; go on with:\n{command}", width=30)


def test_entries_of_a_list_hang_below_their_beginning():
    shown = printed("Chosen:\n  --transform.flip 0.5: mirrored photos are photos", width=30)
    assert shown == "Chosen:\n  --transform.flip 0.5:\n    mirrored photos are photos\n"


def test_a_file_gets_every_message_on_one_line():
    message = "word " * 60
    assert printed(message, terminal=False).count("\n") == 1


def test_rows_for_a_terminal_stay_rows():
    text = io.StringIO()
    VisibleRows(text).write('"a\nb\x1b[1m",1\n')
    assert text.getvalue() == '"a\\nb\\x1b[1m",1\n'


@given(st.text(max_size=60), st.integers(3, 40))
def test_an_abridged_name_fits_and_keeps_both_ends(text: str, cells: int):
    name = visible(text)
    short = abridge(name, cells)
    assert cell_len(short) <= cells
    if short != name:
        head, _, tail = short.partition("…")
        assert name.startswith(head)
        assert "…" in name or name.endswith(tail)
