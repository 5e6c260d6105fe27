"""The block that a terminal shows while a run trains; it fits any width and never wraps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED, is_target
from peerdg.run.forecast import duration
from peerdg.terminal import abridge, visible

GAP = 2  # cells between columns
NUMBER = 5  # cells of an accuracy: 100.0
LEAST_NAME = 6  # cells that a shortened name keeps
LONGEST_MODEL = 12  # cells of the name of an observed model
LEAST_BAR, LONGEST_BAR = 6, 40
NARROW = 50  # columns; below, the time left is not shown
TIME = 16  # cells of the time left, so that the bar keeps its length while it shrinks


@dataclass
class Block:
    """What is shown: where the run is, how fast it goes, and how good it is so far.

    Attributes:
        label: Which of several runs it is, if there are several.
        phase: Name of the phase.
        epoch: Epoch of the phase that is under way, counted from 1.
        epochs: Epochs of the phase.
        share: Part of the whole run's work that is done.
        left: Seconds until the whole run is over; None if not known yet.
        images_per_second: None before the first step.
        terms: Loss and its terms.
        activity: What is being done, if that is not training.
        evaluated: After how many epochs the accuracies were measured.
        accuracy: By observed model and domain.
    """

    label: str = ""
    phase: str = ""
    epoch: int = 0
    epochs: int = 0
    share: float = 0.0
    left: float | None = None
    images_per_second: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    activity: str = ""
    evaluated: int = 0
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render at the console's width."""
        width = max(1, options.max_width)
        yield self._first_line(width, ascii_only=options.ascii_only)
        yield self._second_line(width)
        yield from accuracy_lines(self, width)

    def _first_line(self, width: int, *, ascii_only: bool) -> Text:
        """Label, phase, epoch, bar, share of the whole run, time left."""
        where = f"{self.phase} {self.epoch}/{self.epochs}"
        share = f"{int(100 * self.share):3d} %"
        left = "" if self.left is None else f"{duration(self.left)} left"
        right = f"{share}  {left:<{TIME}}" if width >= NARROW else share
        room = width - cell_len(where) - cell_len(right) - 3 * GAP - LEAST_BAR
        label = shorten(visible(self.label), room) if room >= LEAST_NAME else ""
        begin = f"{label}  {where}" if self.label and label else where
        cells = min(LONGEST_BAR, width - cell_len(begin) - cell_len(right) - 2 * GAP)
        if cells < LEAST_BAR:
            return Text(shorten(f"{where}  {share}", width))
        done = round(cells * self.share)
        full, rest = ("#", "-") if ascii_only else ("━", "─")
        bar = (full * done, "bar.complete"), (rest * (cells - done), "bar.back")
        return Text.assemble(f"{begin}  ", *bar, f"  {right.rstrip()}")

    def _second_line(self, width: int) -> Text:
        """Activity, images per second, then as many loss terms as have room, the loss first."""
        parts = [self.activity] if self.activity else []
        if self.images_per_second is not None:
            parts.append(f"{self.images_per_second:,.0f} images/s")
        parts += [f"{name} {value:.3f}" for name, value in self.terms.items()]
        return Text(_as_many_as_fit(parts, width), "dim")


Column = tuple[str, str]
"""Kind and name of a column: a domain may be called like one of the means."""

MEAN: Column = ("mean", "mean")  # over the targets
CRAFTED_MEAN: Column = ("crafted", CRAFTED.rstrip(":"))  # over the families that have a vote


def in_short(accuracy: Mapping[str, float]) -> dict[Column, float]:
    """Validation and targets, one mean for the crafted families that have a vote, one for targets.

    The families are those of the final tables, however many were evaluated.
    """
    short: dict[Column, float] = {}
    for name, value in accuracy.items():
        if not name.startswith(CRAFTED):
            short["target" if is_target(name) else "validation", name] = value
    crafted = [accuracy[CRAFTED + name] for name in DISJOINT if CRAFTED + name in accuracy]
    targets = [value for (kind, _), value in short.items() if kind == "target"]
    if crafted:
        short[CRAFTED_MEAN] = sum(crafted) / len(crafted)
    if len(targets) > 1:
        short[MEAN] = sum(targets) / len(targets)
    return short


def accuracy_lines(block: Block, width: int) -> list[Text]:
    """A small table: a row for each observed model, a column for each domain.

    Where there is no room, names are shortened; then columns are hidden: targets from the last on,
    then crafted validation, then validation. The mean of the targets stays, and the number of
    hidden columns is shown.
    """
    if not block.accuracy:
        return []
    rows = {model: in_short(values) for model, values in block.accuracy.items()}
    heading = f"epoch {block.evaluated}, %"
    first = max(cell_len(heading), *(min(LONGEST_MODEL, cell_len(visible(name))) for name in rows))
    columns = list(dict.fromkeys(column for values in rows.values() for column in values))
    shown, widths = fit_columns(columns, width - first)
    names = [abridge(visible(name), cells) for (_, name), cells in zip(shown, widths, strict=True)]
    more = f"  +{len(columns) - len(shown)}" if len(shown) < len(columns) else ""
    lines = [Text(shorten(_row(heading, first, names, widths) + more, width), "dim")]
    for model, values in rows.items():
        cells = [f"{values[column]:.1f}" if column in values else "-" for column in shown]
        name = shorten(visible(model), LONGEST_MODEL)
        lines.append(Text(shorten(_row(name, first, cells, widths), width)))
    return lines


def fit_columns(columns: Sequence[Column], room: int) -> tuple[list[Column], list[int]]:
    """Which columns are shown, in order, and how many cells each has, of `room` for all."""
    whole = {column: max(NUMBER, cell_len(visible(column[1]))) for column in columns}
    shown = list(columns)
    while len(shown) > 1 and _cells_of(shown, whole, LEAST_NAME, len(columns)) > room:
        shown.remove(_least_important(shown))
    limit = max(whole[column] for column in shown)
    while limit > LEAST_NAME and _cells_of(shown, whole, limit, len(columns)) > room:
        limit -= 1
    return shown, [min(limit, whole[column]) for column in shown]


def shorten(text: str, cells: int) -> str:
    """At most so many cells of `text`; what is cut off leaves an ellipsis."""
    cut = Text(text)
    cut.truncate(max(1, cells), overflow="ellipsis")
    return cut.plain


def _cells_of(
    shown: Sequence[Column], whole: Mapping[Column, int], limit: int, columns: int
) -> int:
    """Cells of the shown columns, none wider than `limit`, and of the number of missing ones."""
    missing = columns - len(shown)
    note = len(f"  +{missing}") if missing else 0
    return sum(GAP + min(limit, whole[column]) for column in shown) + note


def _least_important(shown: Sequence[Column]) -> Column:
    order = ("target", "crafted", "validation", "mean")
    return min(reversed(shown), key=lambda column: order.index(column[0]))


def _row(first: str, cells: int, values: Sequence[str], widths: Sequence[int]) -> str:
    """The first column to the left, the others to the right."""
    row = first + " " * (cells - cell_len(first))
    for value, width in zip(values, widths, strict=True):
        row += " " * (GAP + width - cell_len(value)) + value
    return row


def _as_many_as_fit(parts: Sequence[str], width: int) -> str:
    """Whole parts only: half a number is a wrong number."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if cell_len(longer) > width:
            break
        line = longer
    return line
