"""Make tables and figures of the paper: train missing runs, and write our values.

docs/paper.md describes the files. All items on a data set and budget share one bench.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from peerdg.benches.execute import train_runs
from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import PlannedMethod
from peerdg.benches.rows import RecordedRows, collect_rows
from peerdg.data.benchmarks import BENCHMARKS, find_entry
from peerdg.errors import ConfigError, DataError, PeerdgError
from peerdg.evaluate.statistics import spread
from peerdg.files import read_json, replace_atomically, write_json
from peerdg.models.names import BACKBONES
from peerdg.models.weights import weights_file
from peerdg.options import dotted
from peerdg.paper.catalogue import ORACLE, Item, Panel, PaperPlan, columns, items, paper_plan
from peerdg.paper.cells import MEASURES
from peerdg.report.compare import require_comparable
from peerdg.report.html import HTML
from peerdg.report.pages import write_paper_page
from peerdg.report.runs import RECORDS, RunResult, save_runs
from peerdg.terminal import Table, markdown_environment, one_line


@dataclass(frozen=True, eq=False)
class Results:
    """Runs of the shared bench on one data set."""

    data: str
    root: Path | None
    bench: Path
    reason: str | None = None  # why the data are not available
    plan: PaperPlan | None = None
    runs: Mapping[str, Sequence[RunResult]] = field(default_factory=dict)  # by row of the plan
    missing: Mapping[str, str] = field(default_factory=dict)  # reason, by row of the catalogue
    recorded: RecordedRows = field(default_factory=RecordedRows)

    def of(self, row: str) -> Sequence[RunResult]:
        """Return the finished runs of a row of the catalogue, one per seed."""
        return () if self.plan is None else self.runs.get(self.plan.same.get(row, ""), ())

    def folders(self, row: str) -> dict[int, Path]:
        """Return the run folders of a row by seed. Other rows may share them."""
        if self.plan is None:
            return {}
        name, found = self.plan.same[row], {}
        for seed in (run.seed for run in self.of(row)):
            here = self.bench / "runs" / self.plan.group(row).result(seed)
            folder = here if here.exists() else self.recorded.run_folder(name, seed)
            if folder is not None:
                found[seed] = folder
        return found


def run_items(
    wanted: Sequence[Item],
    out: Path,
    *,
    options: Mapping[str, Any],
    data: str | None = None,
    root: Path | None = None,
    seeds: Sequence[int],
    **how: Any,
) -> dict[str, str]:
    """Train the missing runs of some items, and write their pages.

    Args:
        wanted: Items to make.
        out: Folder for pages and runs.
        options: Options of all runs, nested as in a config file, with the budget.
        data: Data set to use instead of those in the paper.
        root: Folder with one data set, or with several, each in a folder with its name.
        seeds: Seeds of each row.
        how: `until`, `records` and `train`, as in `run_bench`, and options of `train_runs`. A
            recorded row is reused if its options are the same, whatever its name.

    Returns:
        Missing parts and the reasons, by item. Empty if everything was made.
    """
    if any("source" in options.get(name, {}) for name in BENCHMARKS):
        raise ConfigError("The paper fixes the source domain.", hint="Leave out the option source.")
    results = {}
    for name in dict.fromkeys(name for item in wanted for name in _data_of(item, data)):
        users = [item for item in wanted if name in _data_of(item, data)]
        rows = dict.fromkeys(row for item in users for row in item.rows(name))
        bench = out / "runs" / f"{name}-{options['budget']}"
        results[name] = _train(name, rows, bench, root, options, seeds, **how)
    given = dotted({**options, "until": how.get("until")})
    stated = [f"{n} = {v}" for n, v in given.items() if n != "budget" and v is not None]
    budget = ", ".join([options["budget"], *stated])
    gaps = {}
    for item in wanted:
        made = _make(item, [results[name] for name in _data_of(item, data)], out)
        made |= {"budget": budget, "seeds": made["figure"].pop("seeds", list(seeds))}
        write_json(out / f"{item.id}.json", made)
        page = markdown_environment("paper", trim_blocks=True).get_template("item.md.jinja")
        tables = [_table(block) for block in made["panels"]]
        _write(out / f"{item.id}.md", page.render(item=item, made=made, tables=tables))
        if made["missing"]:
            gaps[item.id] = "\n    ".join(made["missing"])
    _write_index(out)
    return gaps


def _data_of(item: Item, data: str | None) -> tuple[str, ...]:
    """Return the data sets that an item is made on. A schematic has none."""
    return item.data if data is None or not item.data else (data,)


def _train(
    data: str,
    rows: Iterable[str],
    bench: Path,
    root: Path | None,
    options: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    until: int | None = None,
    records: Sequence[Path] = (),
    train: bool = True,
    **how: Any,
) -> Results:
    """Train the missing runs of some rows on one data set."""
    benchmark = BENCHMARKS[data]
    if root is not None:
        root = (find_entry([root], f"{data}/") or root) if benchmark.needs_root else None
    try:
        benchmark.require_source(benchmark.settings(), root)
    except (ConfigError, DataError) as error:
        return Results(data, root, bench, one_line(error))
    given = {**options, "root": None if root is None else str(root)}
    if until is not None:
        given.setdefault("train", {})  # all rows have the same schedule
    plan = paper_plan(data, given, seeds=seeds, bench=bench)
    recorded = RecordedRows.read(records, plan.plan, until=until, by_options=True)
    weights = {row: _weights(plan.plan.members[plan.same[row]]) for row in rows}
    problems = {}
    for each in {*chain(*weights.values())}:
        try:
            weights_file(*each)
        except PeerdgError as error:
            problems[each] = one_line(error)
    missing = {row: problems[each] for row in rows for each in weights[row] if each in problems}
    present = [row for row in rows if row not in missing]
    stages = [plan.only(present)] if present else []
    if any(guide.endswith(f"{ORACLE}-0") for row in present for guide, _ in weights[row]):
        stages.insert(0, replace(plan.only([ORACLE]), seeds=(0,)))
    runs: dict[str, list[RunResult]] = {}
    failures: dict[str, str] = {}
    for stage in stages:
        folder = BenchFolder(bench, until=stage.check_until(until), recorded=recorded)
        folder.check(stage)
        if train:
            with folder.locked(stage):
                folder.write_plan(stage)
            failures |= train_runs(stage, folder, **how)
        runs |= collect_rows(stage, folder)
    if complete := [run for group in runs.values() for run in group]:
        require_comparable(complete)
        read = {(file.parent if file.is_file() else file).resolve() for file in records}
        is_whole = train and until is None and bench.resolve() not in read
        if is_whole or not (bench / RECORDS).exists():
            with contextlib.suppress(ConfigError):  # rows of other calls may have other options
                folder.check(plan.plan)
                save_runs(bench, [*chain(*collect_rows(plan.plan, folder).values())])
    for row in present:
        if not runs.get(plan.same[row]):
            missing[row] = f"{row} is not trained."
        for name in {plan.group(row).result(seed) for seed in seeds} & failures.keys():
            missing[row] = f"{name} failed. {failures[name]}"
    return Results(data, root, bench, None, plan, runs, missing, recorded)


def _weights(member: PlannedMethod) -> list[tuple[str, str]]:
    """Return the networks whose weights a row needs: its own, and the one that guides it."""
    guide = getattr(member.config.method_settings, "model", None)
    own = (member.config.backbone, member.config.weights)
    return [own] if guide is None else [own, (guide, "imagenet" if guide in BACKBONES else "none")]


def _make(item: Item, used: Sequence[Results], out: Path) -> dict[str, Any]:
    """Collect the numbers of an item, or draw it."""
    is_other = item.data != tuple(results.data for results in used)
    blocks = [
        _block(panel, results)
        for panel in item.panels
        for results in used
        if is_other or results.data in panel.data
    ]
    missing = [reason for block in blocks for reason in block["missing"]]
    figure: dict[str, Any] = {}
    if item.analysis is not None:
        from peerdg.paper.figures import draw, draw_schematic

        for results in used:  # every figure of the paper is about one data set
            gaps = [results.missing[row] for row in item.methods if row in results.missing]
            gaps = gaps if results.reason is None else [results.reason]
            try:
                if any(map(results.of, item.methods)) or not (item.methods or gaps):
                    figure = draw(item, results, out / f"{item.id}.png")
            except PeerdgError as error:  # for example, an extra is not installed
                gaps = [one_line(error)]
            missing += [f"{results.data}: {reason}" for reason in gaps]
        if not used:
            draw_schematic(item, out / f"{item.id}.png")
    return {"id": item.id, "panels": blocks, "figure": figure, "missing": [*dict.fromkeys(missing)]}


def _block(panel: Panel, results: Results) -> dict[str, Any]:
    """Collect the cells of a panel on one data set, by seed."""
    is_other = results.data not in panel.data
    reason = panel.only if is_other and panel.only else results.reason
    missing = {results.missing[row.row]: None for row in panel.rows if row.row in results.missing}
    rows: list[dict[str, Any]] = []
    networks: dict[str, None] = {}
    for row in panel.rows:
        ours: dict[str, dict[int, float]] = {}
        if panel.measure == "distance" and reason is None:
            from peerdg.paper.figures import distances

            try:
                ours = distances(results)
            except PeerdgError as error:
                reason = one_line(error)
        for run in results.of(row.row) if reason is None else ():
            networks[run.config["backbone"]] = None
            values = MEASURES[panel.measure](run, run.trained if row.trained else run.deployed)
            for column, value in values.items():
                ours.setdefault(column, {})[run.seed] = value
        paper = row.published if is_other else {results.data: row.published[results.data]}
        name = f"{row.row}:trained" if row.trained else row.row
        label = row.label + " (inert)" * any(run.inert for run in results.of(row.row))
        if results.of(row.row) and not ours:
            missing[f"{row.row} has too few evaluations for a variance (--evaluate-every)."] = None
        rows.append({"label": label, "row": name, "ours": ours, "paper": paper})
    present = {column for row in rows for column in row["ours"]}
    absent = [name for name in columns(panel.measure, results.data) if name not in present]
    return {
        "title": panel.title or panel.measure,
        "measure": panel.measure,
        "data": results.data,
        "paper": [] if not is_other else panel.data,  # data sets of the paper, if others
        "networks": list(networks),
        "rows": rows,
        "absent": absent if present else [],  # targets without images
        "missing": [f"{results.data}: {text}" for text in ([reason] if reason else missing)],
    }


def _table(block: Mapping[str, Any]) -> Table:
    """Tabulate a panel. On data that the paper did not use, show only the paper's last column."""
    names, lines = columns(block["measure"], block["data"]), []
    head = [text for name in names for text in ((name,) if block["paper"] else (name, "paper"))]
    for row in block["rows"]:
        seeds = max((len(values) for values in row["ours"].values()), default=0)
        line = [row["label"], f"{seeds}"]
        for name in names:
            values = list(row["ours"].get(name, {}).values())
            line.append(spread(values, digits=2) if values else "not available")
            if not block["paper"]:
                line.append(_number(row["paper"][block["data"]][name]))
        line += [_number(list(row["paper"][data].values())[-1]) for data in block["paper"]]
        lines.append(line)
    return Table(["", "seeds", *head, *(f"paper, {data}" for data in block["paper"])], lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _write_index(out: Path) -> None:
    """Write the index of all items made so far, and a page that shows them."""
    lines, shown = [], []
    for name, item in items().items():
        if (out / f"{name}.json").is_file():
            made = read_json(out / f"{name}.json")
            shown.append((item, made, [_table(block) for block in made["panels"]]))
            state = "; ".join(made["missing"]) or "complete"
            budget = made["budget"].partition(",")[0]  # the pages have the other options
            lines.append([name, item.title, budget, f"{len(made['seeds']) or '-'}", state])
    table = Table(["item", "title", "budget", "seeds", "state"], lines, is_text=True)
    text = re.sub(r"^\| (\w\d+) ", r"| [\1](\1.md) ", table.markdown(), flags=re.MULTILINE)
    _write(out / "README.md", f"# Tables and figures of the PEER paper\n\n{text}")
    write_paper_page(out / HTML, shown)


def _write(path: Path, text: str) -> None:
    with replace_atomically(path) as temporary:
        temporary.write_text(text, "utf-8")
