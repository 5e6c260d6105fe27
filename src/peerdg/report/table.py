"""Tables of runs: the rows of a report as numbers and as text, and single runs."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from peerdg.data import VALIDATION
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS, LATE_PERIODS, MINIMUM
from peerdg.evaluate.selection import Rule
from peerdg.evaluate.statistics import (
    FEW_SEEDS,
    Difference,
    accuracy_spread,
    accuracy_text,
    few_images,
    paired_difference,
    spread,
)
from peerdg.report.compare import (
    CLEAR,
    CRAFTED_MEAN,
    LATE,
    Answer,
    Groups,
    answer,
    cautions,
    difference_text,
)
from peerdg.report.runs import MARK, RunResult
from peerdg.report.selection import choices
from peerdg.terminal import Table

if TYPE_CHECKING:
    from peerdg.benches.plan import Questions

RECONSTRUCTION, ORACLE = "reconstruction", "oracle"
MARKS = {RECONSTRUCTION: MARK, ORACLE: "‡"}
_EXPLAINED = {
    RECONSTRUCTION: f"{MARK} reconstruction: no code or values were published for this data.",
    ORACLE: "‡ oracle: trained on targets, or given a network that was trained elsewhere.",
}
SELECTION: Rule = "source-val"  # the rule that every run can follow
_MB = 1e6
_CROSS_ENTROPY = "cross_entropy"  # the term that other gradients are compared with


@dataclass(frozen=True)
class Spread:
    """A number for each of several seeds."""

    by_seed: Mapping[int, float]
    mean: float
    std: float | None  # sample standard deviation, None for one seed

    @classmethod
    def from_runs(cls, values: Iterable[tuple[RunResult, float | None]]) -> "Spread | None":
        """Summarize the values that are not None, None if there are none."""
        known = {run.seed: float(value) for run, value in values if value is not None}
        if not known:
            return None
        numbers = list(known.values())
        std = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
        return cls(known, float(np.mean(numbers)), std)

    @property
    def values(self) -> tuple[float, ...]:
        """Numbers in the order of the seeds."""
        return tuple(self.by_seed.values())


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of a method over its seeds."""

    method: str
    seeds: tuple[int, ...] = ()  # of finished runs
    failed: int = 0  # number of failed runs
    marks: tuple[str, ...] = ()  # "reconstruction", "oracle"
    score: Spread | None = None  # target or crafted mean of the deployed network, last epoch
    targets: dict[str, Spread] = field(default_factory=dict)
    difference: Difference | None = None  # of the score to that of the reference row
    source_val: Spread | None = None  # accuracy on the source's validation images
    crafted: Spread | None = None  # mean over crafted validation
    late: Spread | None = None  # target mean over the last evaluations
    fluctuation: Spread | None = None  # variance of target accuracy over training
    selected: Spread | None = None  # target mean of the epoch that is best on validation images
    regret: Spread | None = None  # target mean of the best epoch minus that of the selected one
    seconds: Spread | None = None  # in training epochs
    step_seconds: Spread | None = None  # per step of the main phase
    # Of the fastest seed, relative to plain training: other work only makes runs slower.
    step_ratio: float | None = None
    memory: Spread | None = None  # peak of the run's process in bytes
    memory_ratio: float | None = None  # relative to plain training
    shared_with: tuple[str, ...] = ()  # methods from the same run, with its time and memory

    @property
    def label(self) -> str:
        """Name with its marks."""
        return " ".join([self.method, *(MARKS[mark] for mark in self.marks)])


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """All rows of a report."""

    data: str
    score: str  # that rows are compared by: "target mean" or "crafted val"
    reference: str  # row that differences are taken to
    plain: str | None  # row of cross-entropy on clean images, that costs are relative to
    rows: tuple[Row, ...]
    period: int = 1  # epochs between the evaluations that fluctuation is computed over
    late_epochs: tuple[tuple[int, int], ...] = ()  # of late means, for each length of runs
    cautions: tuple[str, ...] = ()  # what differs between rows besides the method
    remarks: tuple[str, ...] = ()  # about the whole table
    answers: tuple[Answer, ...] = ()  # compared pairs of rows

    def to_dict(self) -> dict[str, Any]:
        """Convert to dictionaries, lists and numbers."""
        return asdict(self)

    def labeled(self, groups: Groups) -> Groups:
        """Rename the groups of rows that have runs to the labels of the rows, with their marks."""
        return {row.label: group for row in self.rows if (group := groups.get(row.method))}

    def table(self) -> Table:
        """Format for people: mean ± standard deviation over seeds. Empty columns are left out."""
        columns = {
            "method": [row.label for row in self.rows],
            "seeds": [
                f"{len(row.seeds)} ({row.failed} failed)" if row.failed else str(len(row.seeds))
                for row in self.rows
            ],
            self.score: [_text(row.score) for row in self.rows],
            LATE: [_text(row.late) for row in self.rows],
            f"vs {self.reference} [95 %]": [
                "reference" if row.method == self.reference else difference_text(row.difference)
                for row in self.rows
            ],
            "source val": [_text(row.source_val) for row in self.rows],
            CRAFTED_MEAN: [_text(row.crafted) for row in self.rows],
            "fluctuation": [_text(row.fluctuation, 2) for row in self.rows],
            f"by {SELECTION}": [_text(row.selected) for row in self.rows],
            "regret": [_text(row.regret) for row in self.rows],
            "seconds": [_shared(_text(row.seconds, 0), row) for row in self.rows],
            f"step × {self.plain}": [_shared(_ratio(row.step_ratio), row) for row in self.rows],
            "MB": [_shared(_text(row.memory, 0, _MB), row) for row in self.rows],
            f"MB × {self.plain}": [_shared(_ratio(row.memory_ratio), row) for row in self.rows],
        }
        always = ("method", "seeds", self.score)
        shown = {k: v for k, v in columns.items() if k in always or set(v) != {"-"}}
        return Table(list(shown), list(map(list, zip(*shown.values(), strict=True))))

    def notes(self) -> list[str]:
        """Explain marks, failures, sharing and stars."""
        notes = [_EXPLAINED[m] for m in dict.fromkeys(m for row in self.rows for m in row.marks)]
        notes += [
            f"{row.label}: {row.failed} of its runs failed. Its numbers are of {len(row.seeds)}."
            for row in self.rows
            if row.failed
        ]
        if any(row.shared_with for row in self.rows):
            notes.append(
                "shared: the method came from a run that it shares with others. Time and memory "
                "are those of the shared run."
            )
        rows = [row.difference.n for row in self.rows if row.difference]
        answers = [found.n for answer in self.answers for found in answer.differences.values()]
        pairs = min((n for n in (*rows, *answers) if n > 1), default=0)
        if pairs:
            few = f" (of {pairs} seeds too narrow on its own)" if pairs < FEW_SEEDS else ""
            notes.append(
                f"{CLEAR}: the bootstrap interval{few} and Student's 95 % interval both exclude 0."
            )
        return [*notes, *self.remarks]

    def csv(self) -> str:
        """Write all numbers in full as CSV, one line for each row."""
        out = io.StringIO()
        records = [self._record(row) for row in self.rows]
        writer = csv.DictWriter(out, list(dict.fromkeys(key for r in records for key in r)))
        writer.writeheader()
        writer.writerows(records)
        return out.getvalue()

    def _record(self, row: Row) -> dict[str, Any]:
        d = row.difference
        spreads = {
            "source val": row.source_val,
            **({CRAFTED_MEAN: row.crafted} if self.score != CRAFTED_MEAN else {}),
            LATE: row.late,
            "fluctuation": row.fluctuation,
            f"by {SELECTION}": row.selected,
            "regret": row.regret,
            "seconds": row.seconds,
            "step seconds": row.step_seconds,
            "memory bytes": row.memory,
            **{f"target {target}": values for target, values in row.targets.items()},
        }
        record: dict[str, Any] = {
            "method": row.method,
            "reconstruction": RECONSTRUCTION in row.marks,
            "oracle": ORACLE in row.marks,
            "seeds": len(row.seeds),
            "failed": row.failed,
            **_columns(self.score, row.score),
            "reference": self.reference,
            "difference": d and d.mean,
            "difference std": d and d.std,
            "difference low": d and d.low,
            "difference high": d and d.high,
            "difference t margin": d and d.margin,
            "difference pairs": d and d.n,
        }
        for name, values in spreads.items():
            record |= _columns(name, values)
        return record | {
            "fluctuation period": None if row.fluctuation is None else self.period,
            "step ratio": row.step_ratio,
            "memory ratio": row.memory_ratio,
            "shared with": " ".join(row.shared_with),
        }


def _columns(name: str, values: Spread | None) -> dict[str, float | None]:
    mean, std = (values.mean, values.std) if values else (None, None)
    return {name: mean, f"{name} std": std}


def _text(values: Spread | None, digits: int = 1, unit: float = 1.0) -> str:
    return "-" if values is None else spread([v / unit for v in values.values], digits=digits)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _shared(text: str, row: Row) -> str:
    return f"{text} shared" if row.shared_with and text != "-" else text


def make_table(
    groups: Groups,
    *,
    reference: str | None = None,
    failed: Mapping[str, int] | None = None,
    questions: "Questions | None" = None,
) -> ReportTable:
    """Tabulate finished runs.

    Args:
        groups: Runs of each row, in order. A row may have none.
        reference: Row that differences are taken to, by default plain training or the first row.
        failed: Number of failed runs of each row.
        questions: Pairs of rows to compare, by question.
    """
    finished = {name: group for name, group in groups.items() if group}
    first = next(iter(finished.values()))[0]
    plain = next((name for name, group in finished.items() if group[0].is_plain), None)
    reference = reference or plain or next(iter(finished))
    period = common_period([run for group in finished.values() for run in group])
    rows = [
        _row(name, group, (failed or {}).get(name, 0), period) for name, group in groups.items()
    ]
    compared = next((row for row in rows if row.method == reference), None)
    cheap = next((row for row in rows if row.method == plain), None)
    score = "target mean" if first.targets else CRAFTED_MEAN
    late = [run for row in rows if row.late is not None for run in groups[row.method]]
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
    """Find the period of evaluations, in epochs, for the fluctuation of all runs.

    Variances over different epochs are not comparable, though methods have a different k. So it is
    the shortest k of a method after which all runs were evaluated and that leaves enough
    evaluations, else the shortest time after which all were evaluated.
    """
    trained = [run for run in runs if not run.combined_from]
    if not trained:
        return 1
    evaluated = math.lcm(*(int(run.config["evaluate_every"]) for run in trained))
    longest = min(run.config["train"]["epochs"] for run in trained) // (BURN_IN_PERIODS + MINIMUM)
    periods = sorted({run.period for run in trained if run.k is not None})
    return next((p for p in periods if p % evaluated == 0 and p <= longest), evaluated)


def _row(name: str, group: Sequence[RunResult], failed: int, period: int) -> Row:
    if not group:
        return Row(method=name, failed=failed)
    first = group[0]
    finals = [(run, run.final(run.deployed)) for run in group]
    moved = [(run, run.fluctuation(run.deployed, every=period)) for run in group]
    chosen = [(run, choices(run).get(SELECTION)) for run in group] if first.targets else []
    targets = {t: Spread.from_runs((run, final.get(t)) for run, final in finals)
               for t in first.targets}  # fmt: skip
    is_oracle = first.oracle or (first.settings is not None and first.settings.is_oracle)
    marks = {RECONSTRUCTION: first.is_reconstruction, ORACLE: is_oracle}
    return Row(
        method=name,
        seeds=tuple(run.seed for run in group),
        failed=failed,
        marks=tuple(mark for mark, applies in marks.items() if applies),
        score=Spread.from_runs((run, run.score(run.deployed)) for run in group),
        targets={target: values for target, values in targets.items() if values is not None},
        source_val=Spread.from_runs((run, final.get(VALIDATION)) for run, final in finals),
        crafted=Spread.from_runs((run, run.crafted_mean(run.deployed)) for run in group),
        late=Spread.from_runs((run, run.late_mean(run.deployed, every=period)) for run in group),
        fluctuation=Spread.from_runs((run, f.mean.var) for run, f in moved if f),
        selected=Spread.from_runs((run, c.target) for run, c in chosen if c),
        regret=Spread.from_runs((run, c.regret) for run, c in chosen if c),
        seconds=Spread.from_runs((run, run.seconds or None) for run in group),
        step_seconds=Spread.from_runs((run, run.step_seconds) for run in group),
        memory=Spread.from_runs((run, run.peak_memory) for run in group),
        shared_with=first.shared_with,
    )


def _relative(row: Row, reference: Row | None, plain: Row | None) -> Row:
    """Add a row's difference to the reference, and its costs relative to plain training."""
    if reference is not None and row is not reference and row.score and reference.score:
        difference = paired_difference(row.score.by_seed, reference.score.by_seed)
        row = replace(row, difference=difference)
    if plain is None:
        return row
    if row.step_seconds and plain.step_seconds:
        ratio = min(row.step_seconds.values) / min(plain.step_seconds.values)
        row = replace(row, step_ratio=ratio)
    if row.memory and plain.memory:
        row = replace(row, memory_ratio=row.memory.mean / plain.memory.mean)
    return row


def targets_table(groups: Groups) -> Table:
    """Tabulate the deployed model's accuracy, rows against targets."""
    targets = list(dict.fromkeys(t for group in groups.values() for t in group[0].targets))
    rows = []
    for name, group in groups.items():
        finals = [run.final(run.deployed) for run in group]
        rows.append([
            name,
            *(accuracy_spread([f[t] for f in finals if t in f], group[0].size(t)) for t in targets),
        ])  # fmt: skip
    return Table(["accuracy %", *targets], rows)


def fluctuation_table(groups: Groups) -> Table:
    """Tabulate fluctuation of each evaluated network by its own k, mean over targets."""
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

    Norms are measured on a fixed batch at the start of each period. Means over seeds. None if no
    run recorded any.
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


# Single runs.


def final_table(run: RunResult) -> Table:
    """Tabulate the final accuracy of each evaluated network of one run on each domain."""
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
    return f"{run.method} {MARK}" if run.is_reconstruction else run.method


def _score_text(run: RunResult, model: str) -> str:
    score = run.score(model)
    few = few_images(run.size(*(run.targets or run.voting)))
    return "-" if score is None else f"{score:.1f}{few}"


def runs_table(runs: Sequence[RunResult]) -> Table:
    """List runs with their status and last accuracies."""
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
        if run.evaluations and run.status != "running":  # may be half written
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
    """Tabulate seconds and share of each stage of one profiled run, the longest first."""
    profile = run.profile or {"seconds": 0.0, "stages": {}}
    whole = profile["seconds"]
    rows = []
    for name, spent in sorted(profile["stages"].items(), key=lambda item: -item[1]["seconds"]):
        seconds, calls = spent["seconds"], spent["calls"]
        each = f"{1e3 * seconds / calls:.2f}" if calls else "-"
        rows.append([name, f"{seconds:.2f}", f"{100 * seconds / (whole or 1):.1f} %", each])
    rows.append(["all", f"{whole:.2f}", "100.0 %", ""])
    return Table(["stage", "seconds", "share", "ms per call"], rows)
