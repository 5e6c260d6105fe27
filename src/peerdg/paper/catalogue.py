"""List the 24 numbered items of the PEER paper, and plan one bench that makes all of them.

Each file in `items/` is a table or figure: the rows of a bench or the analysis that makes each
cell, the published values, and known inconsistencies of the paper. A variant is defined in one
file and can be a row of any item. Items share runs, because their rows belong to the same plan:

    [variant.peer-k-20]              # as in a plan of `peerdg bench`
    method = "peer"
    peer = { k = 20 }

    [on.quick.variant.peer-k-20]     # changed for a budget, a data set, or both (digits-mini-quick)
    peer = { k = 4 }

    [[panel]]
    measure = "accuracy"             # a key of `peerdg.paper.cells.MEASURES`
    data = ["pacs"]
    rows = [["k = 20", "peer-k-20", 63.45, 47.11, 62.23, 57.60]]

A row has a label, a row of the plan (`peer:trained` is the trained network instead of the deployed
one), and for each data set a value for each target and their mean, as in the paper.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from peerdg.benches.plan import VARIANT, Plan, SharedRun, known_methods, make_plan
from peerdg.data.benchmarks import BENCHMARKS
from peerdg.errors import ConfigError
from peerdg.options import did_you_mean, merge

ORACLE = "oracle-erm"  # teacher's model that stands for a network trained on source and targets
COLUMNS = {  # columns of measures that are not one value per target
    "selected": ("by source-val", "by crafted-val"),
    "crafted": ("crafted val", "target mean"),
}
MEAN = "mean"


@dataclass(frozen=True)
class Row:
    """A row of a published table."""

    label: str
    row: str  # row of the plan, empty for a distance between data sets
    trained: bool  # whether to use the trained network instead of the deployed one
    published: Mapping[str, Mapping[str, float | None]]  # by data set and column


@dataclass(frozen=True)
class Panel:
    """A block of a published table: one measure for several rows."""

    measure: str
    data: tuple[str, ...]
    rows: tuple[Row, ...]
    title: str = ""
    only: str | None = None  # why it can only be made on the paper's data


@dataclass(frozen=True, kw_only=True)
class Item:
    """A numbered table or figure of the paper."""

    id: str
    label: str  # its label in the LaTeX source
    title: str
    notes: tuple[str, ...] = ()  # known inconsistencies, and differences from our protocol
    panels: tuple[Panel, ...] = ()
    caption: str = ""  # what a figure shows, in one sentence
    analysis: str | None = None  # function that makes a figure
    data: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # rows of the plan that a figure needs
    settings: Mapping[str, Any]  # arguments of the analysis

    def rows(self, data: str) -> tuple[str, ...]:
        """Return the rows of the plan that the item needs on a data set."""
        panels = [panel for panel in self.panels if panel.only is None or data in panel.data]
        rows = [row.row for panel in panels for row in panel.rows if row.row]
        return tuple(dict.fromkeys((*rows, *self.methods)))


def columns(measure: str, data: str) -> tuple[str, ...]:
    """Return the columns of a measure on a data set, in the order of the paper."""
    return COLUMNS.get(measure, (*BENCHMARKS[data].targets, MEAN))


@cache
def _tables() -> dict[str, dict[str, Any]]:
    folder = files("peerdg.paper").joinpath("items")
    read = [tomllib.loads(file.read_text("utf-8")) for file in folder.iterdir()]
    return {t["id"]: t for t in sorted(read, key=lambda t: (t["id"][0] == "F", int(t["id"][1:])))}


@cache
def items() -> dict[str, Item]:
    """Read all items, tables first."""
    return {name: _read_item(table) for name, table in _tables().items()}


def find_items(names: Sequence[str]) -> list[Item]:
    """Return the named items. `all` is all of them."""
    known = items()
    for name in names:
        if name.upper() not in known and name != "all":
            raise ConfigError(
                f"The paper has no item '{name}'.", hint=did_you_mean(name, [*known, "all"])
            )
    wanted = {name.upper() for name in names}
    return [item for name, item in known.items() if "all" in names or name in wanted]


def _read_item(table: Mapping[str, Any]) -> Item:
    own = {k: v for k, v in table.items() if k not in ("panel", "on", VARIANT)}
    named = {k: own.pop(k) for k in ("id", "label", "title", "caption", "analysis") if k in own}
    notes, data, methods = (tuple(own.pop(k, ())) for k in ("notes", "data", "methods"))
    panels = tuple(map(_read_panel, table.get("panel", ())))
    data += tuple(dict.fromkeys(name for panel in panels for name in panel.data))
    return Item(**named, notes=notes, data=data, methods=methods, panels=panels, settings=own)


def _read_panel(table: Mapping[str, Any]) -> Panel:
    rows, measure = [], table["measure"]
    names = [(data, column) for data in table["data"] for column in columns(measure, data)]
    for label, row, *values in table["rows"]:
        published: dict[str, dict[str, float | None]] = {data: {} for data in table["data"]}
        for (data, column), value in zip(names, values, strict=True):
            published[data][column] = None if value == "--" else float(value)
        name, _, model = row.partition(":")
        rows.append(Row(label, name, model == "trained", published))
    title, only = table.get("title", ""), table.get("only")
    return Panel(measure, tuple(table["data"]), tuple(rows), title, only)


@dataclass(frozen=True)
class PaperPlan:
    """The rows of all items on one data set, and which of them are the same."""

    plan: Plan  # without rows that are the same as an earlier one
    same: Mapping[str, str]  # each row of the catalogue -> the row of `plan` that trains it

    def group(self, row: str) -> SharedRun:
        """Return the run that trains a row of the catalogue."""
        groups = {m.method: group for group in self.plan.groups for m in group.members}
        return groups[self.same[row]]

    def only(self, rows: Iterable[str]) -> Plan:
        """Select rows, with all rows that share their runs, so that runs keep their names."""
        names = dict.fromkeys(m.method for row in rows for m in self.group(row).members)
        return self.plan.only([*names])


def paper_plan(
    data: str, options: Mapping[str, Any], *, seeds: Sequence[int], bench: Path
) -> PaperPlan:
    """Plan all rows of the catalogue on a data set, in the bench folder `bench`.

    Args:
        data: Name of the data set.
        options: Options of all runs, nested as in a config file, with the budget.
        seeds: Seeds of each row.
        bench: Folder of the bench, which holds the oracle that guides some rows.
    """
    budget, oracle = str(options["budget"]), str((bench / "runs" / f"{ORACLE}-0").absolute())
    keys = [data, budget, *(() if "train" in options else (f"{data}-{budget}",))]  # own schedules
    variants: dict[str, Any] = {}
    for table in _tables().values():
        changes = [table.get("on", {}).get(key, {}) for key in keys]
        layers = [table.get(VARIANT, {}), *(change.get(VARIANT, {}) for change in changes)]
        variants = merge(variants, *layers)
    for name, own in variants.items():
        if own.get("teacher", {}).get("model") == ORACLE:
            variants[name] = merge(own, {"teacher": {"model": oracle}})
    rows = dict.fromkeys(row for item in items().values() for row in item.rows(data))
    ordered = sorted(rows, key=lambda row: row not in known_methods())  # methods before variants
    common = {key: value for key, value in options.items() if key == data or key not in BENCHMARKS}
    crafted: dict[str, Any] = {"crafted": "disjoint"}
    if budget == "quick":  # evaluations take a third of such a short run
        crafted["crafted_images"] = 200
    given = merge(crafted, common, {"benchmark": data})
    given[VARIANT] = {name: variants[name] for name in ordered if name in variants}
    plan = make_plan(given, methods=[*ordered, ORACLE], seeds=seeds)
    same: dict[str, str] = {}
    first: dict[str, str] = {}  # by options
    for row, member in plan.members.items():
        tables = {**member.config.tables(unset=True), "recipe": None}
        same[row] = first.setdefault(json.dumps(tables, sort_keys=True, default=str), row)
    plan = plan.only([row for row in same if same[row] == row])
    drawn = [item for item in items().values() if item.analysis in ("cka", "connectivity")]
    watched = {same[row] for item in drawn for row in item.methods}
    members = dict(plan.members)
    for group in plan.groups:
        if any(member.method in watched for member in group.members):
            for member in group.members:
                config = replace(member.config, keep_snapshots=True)
                members[member.method] = replace(member, config=config)
    return PaperPlan(replace(plan, members=members), same)
