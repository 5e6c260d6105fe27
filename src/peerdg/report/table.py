"""Make the tables of a report, as numbers and text, and tables of single runs."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from peerdg.crafted import DISJOINT, FAMILIES
from peerdg.data import CRAFTED, VALIDATION
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS, LATE_PERIODS, MINIMUM
from peerdg.evaluate.selection import RULES
from peerdg.evaluate.statistics import (
    Difference,
    accuracy_spread,
    accuracy_text,
    few_images,
    paired_difference,
    spread,
)
from peerdg.report.compare import (
    CRAFTED_MEAN,
    LATE,
    SELECTED,
    STEADINESS,
    Answer,
    Groups,
    answer,
    cautions,
    choices,
    difference_text,
    measure,
)
from peerdg.report.runs import MARK, RunResult
from peerdg.terminal import Table

if TYPE_CHECKING:
    from peerdg.benches.plan import Questions

RECONSTRUCTION, ORACLE, INERT = "reconstruction", "oracle", "inert"
MARKS = {RECONSTRUCTION: MARK, ORACLE: "‡", INERT: "(inert)"}
_EXPLAINED = {
    RECONSTRUCTION: f"{MARK} reconstruction: no code or values were published for this data.",
    ORACLE: "‡ oracle: trained on targets, or given a network that was trained elsewhere.",
    INERT: "(inert): the method did not do its work, so the row does not measure it.",
}
_MB = 1e6
_CROSS_ENTROPY = "cross_entropy"  # term whose gradient others are compared with


@dataclass(frozen=True)
class Spread:
    """Values of one measure over seeds."""

    by_seed: Mapping[int, float]
    mean: float
    std: float | None  # sample standard deviation, None for one seed

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.by_seed.values())


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of a method over its seeds."""

    method: str
    seeds: tuple[int, ...] = ()  # seeds of finished runs
    failed: int = 0  # number of failed runs
    marks: tuple[str, ...] = ()  # "reconstruction", "oracle", "inert"
    inert: str = ""  # why the method had no effect, from the first such run
    score: Spread | None = None  # target or crafted mean of the deployed network, last epoch
    targets: dict[str, Spread] = field(default_factory=dict)
    values: dict[str, Spread | None] = field(default_factory=dict)  # columns by name
    difference: Difference | None = None  # difference between the score and the reference's score
    # Step time relative to plain training, from the fastest seeds: other load only slows runs.
    step_ratio: float | None = None
    memory_ratio: float | None = None  # memory relative to plain training
    shared_with: tuple[str, ...] = ()  # other methods that share the run

    @property
    def label(self) -> str:
        """Name with marks."""
        return " ".join([self.method, *(MARKS[mark] for mark in self.marks)])


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """All rows of a report."""

    data: str
    score: str  # measure that rows are compared by: "target mean" or "crafted val"
    reference: str  # row to compare the others with
    plain: str | None  # row of plain training, the baseline for costs
    rows: tuple[Row, ...]
    period: int = 1  # epochs between the evaluations used for steadiness
    late_epochs: tuple[tuple[int, int], ...] = ()  # (first, last) of late means, per run length
    cautions: tuple[str, ...] = ()  # differences between rows besides the method
    remarks: tuple[str, ...] = ()  # notes on the whole table
    answers: tuple[Answer, ...] = ()  # compared pairs of rows

    def labeled(self, groups: Groups) -> Groups:
        """Rename groups to the labels of their rows, and drop empty groups."""
        return {row.label: group for row in self.rows if (group := groups.get(row.method))}

    def table(self) -> Table:
        """Tabulate accuracy, difference and steadiness: mean ± standard deviation over seeds."""
        return _as_table([self._cells(row) for row in self.rows])

    def further(self) -> Table:
        """Tabulate the other columns, except empty ones."""
        return _as_table([self._further(row) for row in self.rows])

    def _cells(self, row: Row) -> dict[str, str]:
        failed = f" ({row.failed} failed)" if row.failed else ""
        difference = difference_text(row.difference)
        return {
            "method": row.label,
            "seeds": f"{len(row.seeds)}{failed}",
            self.score: _text(row.score),
            f"vs {self.reference}": "" if row.method == self.reference else difference,
            STEADINESS: _text(row.values.get(STEADINESS)),
        }

    def _further(self, row: Row) -> dict[str, str]:
        ratios = ["-" if r is None else f"{r:.2f}" for r in (row.step_ratio, row.memory_ratio)]
        costs = {
            "seconds": _text(row.values.get("seconds"), 0),
            f"step × {self.plain}": ratios[0],
            "MB": _text(row.values.get("memory bytes"), 0, _MB),
            f"MB × {self.plain}": ratios[1],
        }
        if row.shared_with:
            costs = {k: text if text == "-" else f"{text} shared" for k, text in costs.items()}
        names = (LATE, "source val", CRAFTED_MEAN, SELECTED, "regret")
        texts = {name: _text(row.values.get(name)) for name in names}
        return {"method": row.label, **texts, **costs}

    def notes(self) -> list[str]:
        """Explain marks and failures."""
        notes = [_EXPLAINED[m] for m in dict.fromkeys(m for row in self.rows for m in row.marks)]
        notes += [
            f"{row.label}: {row.failed} runs failed. The row shows the other {len(row.seeds)}."
            for row in self.rows
            if row.failed
        ]
        notes += [f"{row.label}: {row.inert}." for row in self.rows if row.inert]
        return [*notes, *self.remarks]

    def csv(self) -> str:
        """Format all numbers with full precision as CSV."""
        out = io.StringIO()
        records = [self._record(row) for row in self.rows]
        writer = csv.DictWriter(out, list(dict.fromkeys(key for r in records for key in r)))
        writer.writeheader()
        writer.writerows(records)
        return out.getvalue()

    def _record(self, row: Row) -> dict[str, Any]:
        d = row.difference
        difference = (d.mean, d.margin, d.n) if d else (None, None, None)
        names = ("", " t margin", " pairs")
        targets = {f"target {target}": values for target, values in row.targets.items()}
        return {
            "method": row.method,
            "reconstruction": RECONSTRUCTION in row.marks,
            "oracle": ORACLE in row.marks,
            "inert": row.inert,
            "seeds": len(row.seeds),
            "failed": row.failed,
            **_numbers({self.score: row.score}),
            "reference": self.reference,
            **{f"difference{name}": v for name, v in zip(names, difference, strict=True)},
            **_numbers({**row.values, **targets}),
            "steadiness period": self.period if row.values.get(STEADINESS) else None,
            "step ratio": row.step_ratio,
            "memory ratio": row.memory_ratio,
            "shared with": " ".join(row.shared_with),
        }


def _as_table(lines: Sequence[Mapping[str, str]]) -> Table:
    """Make a table, without columns that have no values."""
    shown = [column for column in lines[0] if any(line[column] not in ("", "-") for line in lines)]
    return Table(shown, [[line[column] for column in shown] for line in lines])


def _numbers(spreads: Mapping[str, Spread | None]) -> dict[str, float | None]:
    columns: dict[str, float | None] = {}
    for name, values in spreads.items():
        columns[name] = values.mean if values else None
        columns[f"{name} std"] = values.std if values else None
    return columns


def _text(values: Spread | None, digits: int = 1, unit: float = 1.0) -> str:
    return "-" if values is None else spread([v / unit for v in values.values], digits=digits)


def make_table(
    groups: Groups,
    *,
    reference: str | None = None,
    failed: Mapping[str, int] | None = None,
    questions: "Questions | None" = None,
) -> ReportTable:
    """Tabulate the finished runs of each row, in order. A row may have none.

    Rows are compared with `reference`, by default plain training or the first row.
    """
    finished = {name: group for name, group in groups.items() if group}
    first = next(iter(finished.values()))[0]
    plain = next((name for name, group in finished.items() if group[0].is_plain), None)
    reference = reference or plain or next(iter(finished))
    period = common_period([run for group in finished.values() for run in group])
    score = "target mean" if first.targets else CRAFTED_MEAN
    rows = [
        _row(name, group, (failed or {}).get(name, 0), score=score, period=period)
        for name, group in groups.items()
    ]
    compared = next((row for row in rows if row.method == reference), None)
    cheap = next((row for row in rows if row.method == plain), None)
    late = [run for row in rows if row.values.get(LATE) for run in groups[row.method]]
    ends = sorted({run.config["train"]["epochs"] // period * period for run in late})
    return ReportTable(
        data=first.data,
        score=score,
        reference=reference,
        plain=plain,
        rows=tuple(_relative(row, compared, cheap) for row in rows),
        period=period,
        late_epochs=tuple((end - (LATE_PERIODS - 1) * period, end) for end in ends),
        cautions=tuple(cautions(finished)),
        answers=tuple(answer(questions or {}, finished, score=score, period=period)),
    )


def common_period(runs: Iterable[RunResult]) -> int:
    """Find an evaluation period, in epochs, at which to compare the steadiness of all runs.

    Steadiness is only comparable over the same epochs, but k differs between methods. The period is
    the shortest k at which all runs were evaluated and that leaves enough evaluations, otherwise
    the shortest interval at which all were evaluated.
    """
    trained = [run for run in runs if not run.combined_from]
    if not trained:
        return 1
    evaluated = math.lcm(*(int(run.config["evaluate_every"]) for run in trained))
    longest = min(run.config["train"]["epochs"] for run in trained) // (BURN_IN_PERIODS + MINIMUM)
    periods = sorted({run.period for run in trained if run.k is not None})
    return next((p for p in periods if p % evaluated == 0 and p <= longest), evaluated)


def _row(name: str, group: Sequence[RunResult], failed: int, *, score: str, period: int) -> Row:
    if not group:
        return Row(method=name, failed=failed)
    first = group[0]
    measured = [measure(run, score=score, period=period) for run in group]
    columns = dict.fromkeys(column for values in measured for column in values)
    spreads = {column: _over(group, [m.get(column) for m in measured]) for column in columns}
    targets = {target: spreads.pop(f"target {target}") for target in first.targets}
    is_oracle = first.oracle or (first.settings is not None and first.settings.is_oracle)
    inert = next((reason for run in group if (reason := run.inert)), "")
    marks = {RECONSTRUCTION: first.is_reconstruction, ORACLE: is_oracle, INERT: bool(inert)}
    return Row(
        method=name,
        seeds=tuple(run.seed for run in group),
        failed=failed,
        marks=tuple(mark for mark, applies in marks.items() if applies),
        inert=inert,
        score=spreads[score],
        targets={target: values for target, values in targets.items() if values is not None},
        values=spreads,
        shared_with=first.shared_with,
    )


def _over(runs: Sequence[RunResult], values: Sequence[float | None]) -> Spread | None:
    """Summarize one value per run, ignoring None."""
    pairs = zip(runs, values, strict=True)
    known = {run.seed: float(value) for run, value in pairs if value is not None}
    if not known:
        return None
    numbers = list(known.values())
    std = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return Spread(known, float(np.mean(numbers)), std)


def _relative(row: Row, reference: Row | None, plain: Row | None) -> Row:
    """Add a row's difference from the reference, and its costs relative to plain training."""
    if reference is not None and row is not reference and row.score and reference.score:
        difference = paired_difference(row.score.by_seed, reference.score.by_seed)
        row = replace(row, difference=difference)
    if plain is None:
        return row
    ours, theirs = (r.values.get("step seconds") for r in (row, plain))
    if ours and theirs:
        row = replace(row, step_ratio=min(ours.values) / min(theirs.values))
    ours, theirs = (r.values.get("memory bytes") for r in (row, plain))
    return replace(row, memory_ratio=ours.mean / theirs.mean) if ours and theirs else row


def targets_table(groups: Groups) -> Table:
    """Tabulate the deployed model's accuracy on each target."""
    targets = list(dict.fromkeys(t for group in groups.values() for t in group[0].targets))
    rows = []
    for name, group in groups.items():
        finals = [run.final(run.deployed) for run in group]
        values = [([f[t] for f in finals if t in f], group[0].size(t)) for t in targets]
        rows.append([name, *(accuracy_spread(*each) for each in values)])
    return Table(["accuracy %", *targets], rows)


def fluctuation_table(groups: Groups) -> Table:
    """Tabulate the fluctuation of each evaluated network at its own k, averaged over targets."""
    names = ("var", "range", "max_drawdown", "mean_abs_step", "detrended_var", "gap")
    rows = []
    for name, group in groups.items():
        for model in group[0].networks:
            late, whole = (
                [f for run in group if (f := run.fluctuation(model, burn_in_periods=n))]
                for n in (BURN_IN_PERIODS, 0)
            )
            cells = [spread([getattr(f.mean, n) for f in late], digits=2) for n in names]
            cells.append(spread([f.of_mean.var for f in late], digits=2))
            cells.append(spread([f.mean.var for f in whole], digits=2))
            rows.append([f"{name} {model}", *cells])
    columns = [*(name.replace("_", " ") for name in names), "var of mean", "var, all periods"]
    return Table(["network", *columns], rows)


def gradients_table(groups: Groups) -> Table | None:
    """Tabulate the gradient norm of each weighted loss term, relative to cross-entropy.

    Norms are measured on a fixed batch at the start of each period and averaged over seeds. None
    if no run recorded any.
    """
    rows = []
    for name, group in groups.items():
        norms = [[e["gradients"] for e in run.epochs if e.get("gradients")] for run in group]
        for term in sorted({t for own in norms for n in own for t in n} - {_CROSS_ENTROPY}):
            shares = [
                [n[term] / n[_CROSS_ENTROPY] for n in own if n.get(_CROSS_ENTROPY) and term in n]
                for own in norms
            ]
            values = [(s[0], median(s), s[-1]) for s in shares if s]
            if values:
                rows.append([name, term, *(f"{fmean(v):.3g}" for v in zip(*values, strict=True))])
    columns = ["method", "term", "first period", "median", "last period"]
    return Table(columns, rows) if rows else None


def selection_table(groups: Groups) -> Table:
    """Tabulate the deployed model's target mean and regret by selection rule, over seeds."""
    chosen = {name: [choices(run) for run in group] for name, group in groups.items()}
    rules = [rule for rule in RULES if any(rule in c for group in chosen.values() for c in group)]
    columns = ["target mean by selection"]
    for rule in rules:
        columns += ["oracle (sees targets)"] if rule == "oracle" else [rule, "regret"]
    rows = []
    for name, group in chosen.items():
        cells = [name]
        for rule in rules:
            made = [c[rule] for c in group if rule in c]
            cells.append(spread([c.target for c in made if c.target is not None]))
            if rule != "oracle":
                cells.append(spread([c.regret for c in made if c.regret is not None]))
        rows.append(cells)
    return Table(columns, rows)


def crafted_table(groups: Groups) -> Table:
    """Tabulate source and crafted validation accuracy at the last epoch, by family, over seeds."""
    evaluated = {domain for group in groups.values() for run in group for domain in run.domains}
    families = [family for family in FAMILIES if CRAFTED + family in evaluated]
    rows = []
    for name, group in groups.items():
        finals = [run.final(run.deployed) for run in group]
        clean = [final[VALIDATION] for final in finals if VALIDATION in final]
        cells = [name, accuracy_spread(clean, group[0].size(VALIDATION))]
        for chosen in (DISJOINT, FAMILIES, *((family,) for family in families)):
            own = [[f[CRAFTED + c] for c in chosen if CRAFTED + c in f] for f in finals]
            cells.append(spread([sum(values) / len(values) for values in own if values]))
        rows.append(cells)
    return Table(["accuracy %", "source val", CRAFTED_MEAN, "all families", *families], rows)


# Single runs.


def final_table(run: RunResult) -> Table:
    """Tabulate the final accuracy of each network of a run on each domain."""
    domains = [domain for domain in (VALIDATION, *run.targets) if domain in run.domains]
    summary = ["target mean"] if run.targets else [CRAFTED_MEAN] if run.voting else []
    rows = []
    for model in run.networks:
        final = run.final(model)
        name = f"{_marked(run)} {model}" + (" (deployed)" if model == run.deployed else "")
        cells = [accuracy_text(final[d], run.size(d)) for d in domains]
        rows.append([name, *cells, *(_score_text(run, model) for _ in summary)])
    return Table(["accuracy %", *domains, *summary], rows)


def _marked(run: RunResult) -> str:
    marks = {RECONSTRUCTION: run.is_reconstruction, INERT: run.inert}
    return " ".join([run.method, *(MARKS[mark] for mark, applies in marks.items() if applies)])


def _score_text(run: RunResult, model: str) -> str:
    score = run.score(model)
    few = few_images(run.size(*(run.targets or run.voting)))
    return "-" if score is None else f"{score:.1f}{few}"


def runs_table(runs: Sequence[RunResult]) -> Table:
    """Tabulate runs with their status and last accuracies."""
    lines = []
    for run in runs:
        trained = max((e["epoch"] for e in run.epochs if e["phase"] == "train"), default=0)
        line = {
            "run": str(run.path),
            "data": run.data,
            "method": _marked(run),
            "seed": str(run.seed),
            "status": run.status,
            "epochs": f"{trained}/{run.config['train']['epochs']}",
        }
        if run.evaluations and run.status != "running":  # records may be incomplete
            accuracy = run.final(run.deployed).get(VALIDATION)
            if accuracy is not None:
                line[VALIDATION] = accuracy_text(accuracy, run.size(VALIDATION), with_n=False)
            line["target mean" if run.targets else CRAFTED_MEAN] = _score_text(run, run.deployed)
        lines.append(line)
    known = {name for line in lines for name in line}
    scores = [name for name in (VALIDATION, "target mean", CRAFTED_MEAN) if name in known]
    columns = ["run", "data", "method", "seed", "status", "epochs", *scores]
    return Table(columns, [[line.get(c, "-") for c in columns] for line in lines], is_text=True)


def profile_table(run: RunResult) -> Table:
    """Tabulate the time of each stage of a profiled run, longest first."""
    profile = run.profile or {"seconds": 0.0, "stages": {}}
    whole = profile["seconds"]
    rows = []
    for name, spent in sorted(profile["stages"].items(), key=lambda item: -item[1]["seconds"]):
        seconds, calls = spent["seconds"], spent["calls"]
        each = f"{1e3 * seconds / calls:.2f}" if calls else "-"
        rows.append([name, f"{seconds:.2f}", f"{100 * seconds / (whole or 1):.1f} %", each])
    rows.append(["all", f"{whole:.2f}", "100.0 %", ""])
    return Table(["stage", "seconds", "share", "ms per call"], rows)
