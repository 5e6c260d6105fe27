"""The console that everything is printed with: outside names are shown, never obeyed."""

import contextlib
import importlib.util
import io
import os
from collections.abc import Iterable
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.protocol import is_renderable
from rich.segment import Segment

from peerdg.text import visible, visible_lines, visible_message


class Terminal(Console):
    """A rich console that writes control characters out, breaks no word and outlives its reader.

    A file may be named after a terminal command (`ESC ] 0 ; ...`); whoever prints its name, the
    terminal must not see more than text. When the reader has left (`| head -1`), the console falls
    silent and the work goes on.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, with these differences.

        A string is a message, without markup: see `visible_message`. On a terminal it is wrapped
        between words: see `wrap`. (rich's `Text` keeps all its line breaks, for texts of several
        lines.) A file gets lines of any length.
        """
        shown = [_visible(printed) for printed in objects]
        if all(isinstance(printed, str) for printed in shown):
            shown = [self._wrapped(options.pop("sep", " ").join(shown))] if shown else []
            options |= {"markup": False, "highlight": False, "soft_wrap": True}
        options.setdefault("crop", self.is_terminal)
        super().print(*shown, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does; whatever a table or a bar still holds is written out here."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Print nothing from here on."""
        self.quiet = True
        # The interpreter flushes what is left when it ends; that must not fail again.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())

    def _wrapped(self, message: str) -> str:
        if not self.is_terminal:
            return message
        return "\n".join(part for line in message.split("\n") for part in wrap(line, self.width))


def wrap(line: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words; an indented one hangs by two more.

    A word that is longer than a line, and a command to copy, stay whole.
    """
    if line.startswith("  peerdg "):
        return [line]
    indent = len(line) - len(line.lstrip(" "))
    lines, shown = [], ""
    for word in line[indent:].split(" "):
        longer = f"{shown} {word}" if shown else " " * indent + word
        if shown and cell_len(longer) > width:
            lines.append(shown)
            longer = " " * (indent and indent + 2) + word
        shown = longer
    return [*lines, shown]


def is_live(console: Console) -> bool:
    """Whether a block can be updated in place there."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal


class VisibleRows(io.TextIOBase):
    """Writes rows of data to a terminal, one row a call, with control characters written out."""

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def write(self, row: str) -> int:
        """Write one row with its line break."""
        return self.terminal.write(visible(row.removesuffix("\n")) + "\n")

    def flush(self) -> None:
        """Write what is held back."""
        self.terminal.flush()


def _visible(printed: Any) -> Any:
    """Text and what rich would turn into text; renderables are cleaned while they are rendered."""
    if isinstance(printed, str) or not is_renderable(printed):
        return visible_message(str(printed))
    return printed
