"""Tables for the terminal and for Markdown, from the same rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from peerdg.text import abridge, markdown_text, visible

GAP = 2
LEAST_WORD = 12  # cells that a shortened word keeps
_NUMBER = re.compile(r"[\d\s.,:%±()/+–-]*\d[\d\s.,:%±()/+–-]*")  # with its spread or interval


@dataclass(frozen=True)
class FittedTable:
    """Columns as wide as they need, or as the terminal allows.

    What is too wide is made to fit in this order: text is wrapped between words; long words (paths,
    names) are shortened in the middle; the columns are spread over several tables, each beginning
    with the first column. Numbers are always whole. In a file, nothing is shortened.

    Args:
        columns: Their names.
        rows: Text of each cell.
        justify: Where the text of each column stands.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    justify: Sequence[JustifyMethod]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for the console's width."""
        cells = [[visible(cell) for cell in line] for line in (self.columns, *self.rows)]
        whole = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        if not console.is_terminal:
            yield _table(cells, whole, self.justify)
            return
        longest = max(LEAST_WORD, *whole)
        while longest > LEAST_WORD and _total(_least(cells, longest)) > options.max_width:
            longest -= 1
        cells = [[_short_words(cell, longest) for cell in line] for line in cells]
        for part in _parts(_least(cells, longest), options.max_width):
            shown = [[line[number] for number in part] for line in cells]
            whole = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
            widths = _shrink(whole, _least(shown, longest), options.max_width)
            yield _table(shown, widths, [self.justify[number] for number in part])


def _table(
    cells: Sequence[Sequence[str]], widths: Sequence[int], justify: Sequence[JustifyMethod]
) -> RichTable:
    table = RichTable(box=None, pad_edge=False, width=_total(widths))
    for name, width, side in zip(cells[0], widths, justify, strict=True):
        table.add_column(Text(name), width=width, justify=side)
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    return table


def _least(cells: Sequence[Sequence[str]], longest: int) -> list[int]:
    """Cells that each column needs so that no word is broken, if none is longer than `longest`."""
    return [
        max(cell_len(word) for cell in column for word in _words(_short_words(cell, longest)))
        for column in zip(*cells, strict=True)
    ]


def _words(cell: str) -> list[str]:
    """What must stay on one line; a number with its spread does as a whole."""
    return [cell] if _is_number(cell) else cell.split() or [""]


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def _short_words(cell: str, longest: int) -> str:
    if _is_number(cell):
        return cell
    return " ".join(abridge(word, longest) for word in cell.split(" "))


def _parts(least: Sequence[int], width: int) -> list[list[int]]:
    """Which columns stand in which table; the first one in each."""
    parts, part = [], [0]
    for number in range(1, len(least)):
        if len(part) > 1 and _total([least[n] for n in (*part, number)]) > width:
            parts.append(part)
            part = [0]
        part.append(number)
    return [*parts, part]


def _shrink(whole: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Take cells from the widest columns until all fit; none gets fewer than its least."""
    widths = list(whole)
    while _total(widths) > width:
        spare = [number for number, cells in enumerate(widths) if cells > least[number]]
        if not spare:
            break
        widths[max(spare, key=lambda number: widths[number])] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


@dataclass(frozen=True)
class Table:
    """Column names and rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self) -> FittedTable:
        """For the terminal: the first column to the left, the others to the right."""
        others: list[JustifyMethod] = ["right"] * (len(self.columns) - 1)
        return FittedTable(self.columns, self.rows, ["left", *others])

    def markdown(self) -> str:
        """For a report."""
        rule = ["---"] + ["--:"] * (len(self.columns) - 1)
        names = [markdown_text(column) for column in self.columns]
        lines = [names, rule, *([markdown_text(cell) for cell in row] for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> FittedTable:
    """A terminal table, all columns to the left."""
    return FittedTable(columns, rows, ["left"] * len(columns))
