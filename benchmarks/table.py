"""`docs/performance.md`: its tables are written from `results/benchmarks/*.json`."""

import json
from typing import Any

from benchmarks.record import FOLDER, Found

PAGE = FOLDER.parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- tables: written by `make bench` -->", "<!-- end of tables -->"
NAMES = (
    "epoch",
    "photos",
    "photo_files",
    "sharing",
    "augmentation",
    "evaluation",
    "startup",
    "scaling",
    "folder",
    "processes",
)


def show(found: Found) -> str:
    """For the terminal."""
    lines = [f"\n{found.title}", found.conditions]
    for row in found.rows:
        goal = f"  (goal: {row.goal})" if row.goal else ""
        lines.append(f"  {row.what:<52}{row.value:>16}  {row.spread}{goal}")
    return "\n".join(lines)


def write_page() -> None:
    """Put the tables of all kept results into the page, in place of the old ones."""
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables()}{END}{after}", "utf-8")


def tables() -> str:
    """Every kept result, as Markdown."""
    kept = [FOLDER / f"{name}.json" for name in NAMES]
    return "".join(_section(json.loads(path.read_text("utf-8"))) for path in kept if path.exists())


def _section(record: dict[str, Any]) -> str:
    rows = "".join(
        f"| {row['what']} | {row['value']} | {row['spread']} | {row['goal']} |\n"
        for row in record["rows"]
    )
    return (
        f"## {record['title']}\n\n{record['conditions']} {_machine(record)}\n\n"
        f"| | median | 10th to 90th percentile | goal |\n|---|--:|--:|--:|\n{rows}\n"
    )


def _machine(record: dict[str, Any]) -> str:
    where = record["machine"]
    return (
        f"Measured {record['date']} on {where['cores']} cores ({where['cpu']}), "
        f"{where['threads']} threads, torch {where['torch']}."
    )
