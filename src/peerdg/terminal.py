"""Print text and tables, with untrusted text escaped on screen and in reports."""

import contextlib
import functools
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.protocol import is_renderable
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:  # slow to import, and not needed for --help
    import jinja2

MIN_COLUMN = 12  # cells. In a narrow column, only longer words are broken
GAP = 2  # cells between columns
_CONTINUED = re.compile(r"\n(?=  |\t|\Z)")
_MARKUP = re.compile(r"([\\`*_{}\[\]#|!~$])")


def visible(text: str) -> str:
    """Escape control characters, line breaks and direction marks."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )


def visible_message(text: str) -> str:
    """Escape a message, but keep line breaks before indented lines.

    This way, a name with a line break cannot start a line that looks like an error.
    """
    return "\n".join(visible(re.sub("^\t", "  ", line)) for line in _CONTINUED.split(text))


def storable(text: str) -> str:
    """Escape bytes of file names that are not valid UTF-8, so that files can store the text."""
    return text.encode("utf-8", "backslashreplace").decode()


def command(*words: object) -> str:
    """Format a peerdg command that can be pasted into a shell, with quoted arguments."""
    return shlex.join(["peerdg", *map(str, words)])


def one_line(error: BaseException) -> str:
    """Return an error message on one line, without its final period."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def markdown_text(text: str) -> str:
    """Escape text for a Markdown paragraph, heading or table cell."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _MARKUP.sub(r"\\\1", text)
    # GitHub turns bare URLs and @mentions into links, so escape those too.
    text = text.replace("://", "&#58;//").replace("@", "&#64;")
    return re.sub(r"(www)\.", r"\1&#46;", text, flags=re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """Column names and rows of text, for the terminal and for Markdown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_text: bool = False  # align all columns to the left, not only the first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Columns that do not fit the terminal go into another table below.
        room = options.max_width if console.is_terminal else sys.maxsize
        lines = [[visible(cell) for cell in line] for line in (self.columns, *self.rows)]
        words = [[0, *map(cell_len, " ".join(cells).split())] for cells in zip(*lines, strict=True)]
        widths = [min(MIN_COLUMN, max(lengths)) for lengths in words]
        parts = [[0]]
        for number in range(1, len(widths)):
            if len(parts[-1]) > 1 and sum(widths[n] + GAP for n in [*parts[-1], number]) > room:
                parts.append([0])
            parts[-1].append(number)
        fitted = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
        for part in parts:
            # rich does not keep both the width of the terminal and the minimum widths of columns.
            while sum(fitted[n] + GAP for n in part) > room:
                widest = max(part, key=lambda n: fitted[n] - widths[n])
                if fitted[widest] <= widths[widest]:
                    break
                fitted[widest] -= 1
            table = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
            for n in part:
                side: JustifyMethod = "left" if n == 0 or self.is_text else "right"
                name = Text(lines[0][n])
                table.add_column(name, width=fitted[n], justify=side, overflow="fold")
            for line in lines[1:]:
                table.add_row(*(Text(line[n]) for n in part))
            yield from console.render(table, options.update_width(room))

    def markdown(self) -> str:
        rule = ["---"] + ["--:"] * (len(self.columns) - 1)
        escaped = [[markdown_text(cell) for cell in line] for line in (self.columns, *self.rows)]
        lines = [escaped[0], rule, *escaped[1:]]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


@functools.cache
def markdown_environment(folder: str, **options: Any) -> "jinja2.Environment":
    """Return a Jinja environment for the page templates in a folder of the package.

    Tables are rendered as Markdown. Other values are escaped unless they are marked safe.
    """
    import jinja2

    def write(value: Any) -> Any:
        if isinstance(value, Table):
            return value.markdown()
        return value if hasattr(value, "__html__") else markdown_text(str(value))

    loader = jinja2.PackageLoader("peerdg", folder)
    undefined = jinja2.ChainableUndefined
    return jinja2.Environment(loader=loader, finalize=write, undefined=undefined, **options)  # noqa: S701


class Terminal(Console):
    """A rich console that escapes control characters and survives a broken pipe.

    After a broken pipe (`| head -1`) it prints nothing more, and the work continues.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but escape strings and ignore their markup (`visible_message`)."""
        escaped = [
            o if is_renderable(o) and not isinstance(o, str) else visible_message(str(o))
            for o in objects
        ]
        if all(isinstance(o, str) for o in escaped):
            options |= {"markup": False, "highlight": False, "soft_wrap": True}
        options.setdefault("crop", self.is_terminal)
        super().print(*escaped, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, and escape the text of tables and bars."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(visible, segment.text.split("\n"))), segment.style)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # The interpreter flushes the file again at exit, which must not fail.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


console = Terminal(soft_wrap=False, highlight=False)  # results
error_console = Terminal(stderr=True, highlight=False)  # progress, notes and errors


def is_live(console: Console) -> bool:
    """Return whether the console can update its output in place."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal
