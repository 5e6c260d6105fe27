"""Tables on narrow terminals: everything is there, and nothing is broken."""

import io

import pytest
from rich.cells import cell_len

from peerdg.tables import FittedTable, Table, plain_table
from peerdg.terminal import Terminal

FINAL = Table(
    ["accuracy %", "validation", "street", "mnist-m", "syn", "uci", "target mean"],
    [
        ["peer proxy", "95.9 (95.1-96.6)", "50.3", "72.8", "41.6", "62.5", "56.8 ± 1.2"],
        ["peer task (deployed)", "94.9", "48.0", "66.1", "36.0", "64.2", "53.6 ± 10.2"],
    ],
).rich()
RUNS = plain_table(
    ["run", "data", "method", "seed", "status", "epochs", "target mean"],
    [["/data/" + "long/" * 12 + "peer-0", "digits-mini", "randaugment", "0", "resumable",
      "10/1000", "34.5"]],
)  # fmt: skip
WIDE = Table(["class", *(f"class-{n}" for n in range(30))], [["a", *(f"{n}" for n in range(30))]])
HELP = plain_table(["option", "meaning"], [["--peer.head-grad-target", "a sentence " * 20]])
TABLES = {"final": FINAL, "runs": RUNS, "wide": WIDE.rich(), "help": HELP}


def shown(table: FittedTable, width: int, *, terminal: bool = True) -> str:
    text = io.StringIO()
    Terminal(file=text, width=width, force_terminal=terminal, color_system=None).print(table)
    return text.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_no_line_is_wider_and_every_word_is_whole(name: str, width: int):
    table, text = TABLES[name], shown(TABLES[name], width)
    assert max(map(cell_len, text.splitlines())) <= width
    words = {word for row in (table.columns, *table.rows) for cell in row for word in cell.split()}
    assert {word for word in words if len(word) <= 12} <= set(text.split())
    for row in table.rows:
        for cell in row:
            if cell[0].isdigit():  # a number with its spread stays on one line
                assert any(cell in line for line in text.splitlines())


def test_a_long_path_is_shortened_in_the_middle():
    assert "/data/…eer-0" in shown(RUNS, 60)


def test_columns_that_do_not_fit_follow_below_with_the_first_column():
    lines = shown(WIDE.rich(), 60).splitlines()
    tables = [line for line in lines if line.startswith("class ")]
    assert len(tables) > 3
    assert [name for line in tables for name in line.split()[1:]] == WIDE.columns[1:]
    values = [value for line in lines if line.startswith("a ") for value in line.split()[1:]]
    assert values == WIDE.rows[0][1:]


def test_a_file_gets_whole_lines():
    assert RUNS.rows[0][0] in shown(RUNS, 40, terminal=False)
    assert len(shown(RUNS, 40, terminal=False).splitlines()) == 2
