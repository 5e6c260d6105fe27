"""Tables for the terminal and for Markdown, from the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from peerdg.data import VALIDATION
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.report.escape import markdown_text
from peerdg.report.runs import RunResult, by_variant, read_run
from peerdg.text import visible


@dataclass(frozen=True)
class Table:
    """Column names and rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self) -> RichTable:
        """For the terminal."""
        table = RichTable(box=None, pad_edge=False)
        for number, column in enumerate(self.columns):
            table.add_column(Text(visible(column)), justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*(Text(visible(cell)) for cell in row))
        return table

    def markdown(self) -> str:
        """For a report."""
        rule = ["---"] + ["--:"] * (len(self.columns) - 1)
        names = [markdown_text(column) for column in self.columns]
        lines = [names, rule, *([markdown_text(cell) for cell in row] for row in self.rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> RichTable:
    """A terminal table, all columns to the left."""
    table = Table(columns, rows).rich()
    for column in table.columns:
        column.justify = "left"
    return table


def final_table(path: Path) -> RichTable:
    """Final accuracy of each observed model of one run on each domain."""
    run = read_run(path)
    domains = [VALIDATION, *run.targets] if VALIDATION in run.final(run.deployed) else run.targets
    rows = []
    for model in run.models:
        final = run.final(model)
        name = f"{run.method} {model}" + (" (deployed)" if model == run.deployed else "")
        cells = [f"{final[d]:.1f}" for d in domains]
        mean = [f"{run.target_mean(model):.1f}"] if run.targets else []
        rows.append([name, *cells, *mean])
    mean_column = ["target mean"] if run.targets else []
    return Table(["accuracy %", *domains, *mean_column], rows).rich()


def runs_table(runs: Sequence[RunResult]) -> RichTable:
    """One row per run folder."""
    rows = []
    for run in runs:
        epochs = max((r["epoch"] for r in run.records if r.get("phase") == "train"), default=0)
        whole = run.targets and run.status != "running"  # evaluations may be half written
        mean = f"{run.target_mean(run.deployed):.1f}" if whole else "-"
        done = f"{epochs}/{run.config['train']['epochs']}"
        rows.append([str(run.path), run.config["benchmark"], run.method, str(run.seed),
                     run.status, done, mean])  # fmt: skip
    columns = ["run", "data", "method", "seed", "status", "epochs", "target mean"]
    return plain_table(columns, rows)


def comparison(runs: Sequence[RunResult]) -> Table:
    """One row per method: accuracy of the deployed model, fluctuation, seconds.

    Mean ± sample standard deviation over seeds. Fluctuation is the variance of the accuracy over
    evaluations every k epochs, the first five left out, mean over targets.
    """
    rows = []
    for name, group in by_variant(runs).items():
        source = [final[VALIDATION] for final in _finals(group) if VALIDATION in final]
        rows.append(
            [
                name,
                str(len(group)),
                spread([run.target_mean(run.deployed) for run in group if run.targets]),
                spread(source),
                _fluctuation(group, "trained"),
                _fluctuation(group, "deployed"),
                spread([run.seconds for run in group], digits=0),
            ]
        )
    columns = ["method", "seeds", "target mean", "source val", "var proxy", "var task", "seconds"]
    return Table(columns, rows)


def targets_table(runs: Sequence[RunResult]) -> Table:
    """Methods against targets: accuracy of the deployed model."""
    groups = by_variant(runs)
    targets = list(dict.fromkeys(t for group in groups.values() for t in group[0].targets))
    rows = [
        [name, *(spread([f[t] for f in _finals(group) if t in f]) for t in targets)]
        for name, group in groups.items()
    ]
    return Table(["accuracy %", *targets], rows)


def fluctuation_table(runs: Sequence[RunResult], *, burn_in_periods: int) -> Table:
    """Every fluctuation statistic of each observed model, mean over targets and seeds."""
    shown = ("var", "std", "range", "max_drawdown", "mean_abs_step", "detrended_var", "gap")
    rows = []
    for name, group in by_variant(runs).items():
        for model in group[0].models:
            found = [run.fluctuation(model, burn_in_periods=burn_in_periods) for run in group]
            stats = [f.mean for f in found if f is not None]
            whole = [f.of_mean.var for f in found if f is not None]
            cells = [spread([getattr(s, field) for s in stats], digits=2) for field in shown]
            rows.append([f"{name} {model}", *cells, spread(whole, digits=2)])
    return Table(["model", *(s.replace("_", " ") for s in shown), "var of mean"], rows)


def spread(values: Sequence[float], *, digits: int = 1) -> str:
    """Mean ± sample standard deviation; the mean alone for one value."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def _finals(group: Sequence[RunResult]) -> list[dict[str, float]]:
    return [run.final(run.deployed) for run in group]


def _fluctuation(group: Sequence[RunResult], which: str) -> str:
    """Variance of the trained or deployed model; a method with one network has no second."""
    if which == "deployed" and group[0].deployed == group[0].trained:
        return "-"
    found = [run.fluctuation(getattr(run, which), burn_in_periods=BURN_IN_PERIODS) for run in group]
    return spread([f.mean.var for f in found if f is not None], digits=2)
