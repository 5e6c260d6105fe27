"""The console that everything is printed with: outside names are shown, never obeyed."""

import contextlib
import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from peerdg.text import visible_lines


class Terminal(Console):
    """A rich console that writes control characters out and outlives its reader.

    A file may be named after a terminal command (`ESC ] 0 ; ...`); whoever prints its name, the
    terminal must not see more than text. When the reader has left (`| head -1`), the console falls
    silent and the work goes on.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does; control characters in text are written out, line breaks stay."""
        super().print(*map(_visible, objects), **options)

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


def _visible(printed: Any) -> Any:
    return visible_lines(printed) if isinstance(printed, str) else printed
