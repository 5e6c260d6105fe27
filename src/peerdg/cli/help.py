"""Help pages whose option names are never broken."""

import math
from typing import TYPE_CHECKING, Any

from cyclopts.help import DefaultFormatter
from cyclopts.help.specs import AsteriskColumn, ColumnSpec, DescriptionColumn, NameRenderer

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

SHARE = 0.35  # of the width that names have, as in cyclopts, unless one of them is longer
INDENT = 2  # of a name that does not fit beside the one before it


class HelpFormatter(DefaultFormatter):
    """cyclopts' own pages, but the column of names is as wide as its longest name.

    cyclopts limits it to a share of the width and breaks what is longer.
    """

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Render one panel."""
        formatter = DefaultFormatter(
            column_specs=None if panel.format == "command" else _columns_for_parameters
        )
        formatter(console, options, panel)


def _columns_for_parameters(
    console: "Console", options: "ConsoleOptions", entries: "list[HelpEntry]"
) -> tuple[ColumnSpec, ...]:
    labels: list[Any] = [label for entry in entries for label in entry.display_labels_with_metavar]
    longest = max((len(word) for label in labels for word in str(label).split()), default=0)
    width = max(math.ceil(console.width * SHARE), INDENT + longest)
    names = ColumnSpec(
        renderer=NameRenderer(max_width=width),
        header="Option",
        justify="left",
        style="cyclopts.name",
        max_width=width,
        no_wrap=True,  # the renderer has wrapped it
    )
    required = (AsteriskColumn,) if any(entry.required for entry in entries) else ()
    return (*required, names, DescriptionColumn)
