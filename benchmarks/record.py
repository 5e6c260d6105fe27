"""What a benchmark found: rows for a table, and the conditions they were measured under."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.measure import Timing

FOLDER = Path(__file__).parent.parent / "results" / "benchmarks"


@dataclass(frozen=True)
class Row:
    """One line: what was measured, the value with its spread, and what the value is."""

    what: str
    value: str
    spread: str = ""
    goal: str = ""


@dataclass(frozen=True)
class Found:
    """The result of one benchmark.

    Args:
        name: Of the module and the file, e.g. `"epoch"`.
        title: Its heading.
        conditions: What was measured, in a sentence or two.
        rows: The table.
        raw: Numbers behind it.
    """

    name: str
    title: str
    conditions: str
    rows: list[Row]
    raw: dict[str, object] = field(default_factory=dict)

    def save(self) -> None:
        """Write `results/benchmarks/<name>.json`."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        record = {**asdict(self), "machine": machine(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        (FOLDER / f"{self.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def machine() -> dict[str, object]:
    """Where it was measured."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def milliseconds(what: str, timing: Timing) -> Row:
    """A time, in milliseconds."""
    return Row(what, f"{1e3 * timing.median:.1f} ms", _span(timing, 1e3, 1))


def ratio(what: str, timing: Timing, goal: str = "") -> Row:
    """A ratio of times."""
    return Row(what, f"{timing.median:.2f}", _span(timing, 1, 2), goal)


def rate(what: str, count: float, timing: Timing) -> Row:
    """Something per second."""
    span = f"{count / timing.high:,.0f} to {count / timing.low:,.0f}"
    return Row(what, f"{count / timing.median:,.0f} /s", span)


def _span(timing: Timing, factor: float, digits: int) -> str:
    return f"{factor * timing.low:.{digits}f} to {factor * timing.high:.{digits}f}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
