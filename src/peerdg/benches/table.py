"""The table of a bench: a row for each method, as numbers and as text."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from peerdg.benches.questions import CLEAR, LATE, Answer, answer, difference_text
from peerdg.benches.study import Questions
from peerdg.data import VALIDATION
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS, LATE_PERIODS, MINIMUM
from peerdg.evaluate.selection import Rule
from peerdg.evaluate.statistics import FEW_SEEDS, Difference, paired_difference, spread
from peerdg.report.comparable import accuracy_notes
from peerdg.report.result import MARK, RECONSTRUCTED, RunResult
from peerdg.report.selection import choices
from peerdg.report.tables import CRAFTED_MEAN
from peerdg.report.variants import Groups
from peerdg.terminal import Table, latex_text, spreadsheet_text

RECONSTRUCTION, ORACLE = "reconstruction", "oracle"
MARKS = {RECONSTRUCTION: MARK, ORACLE: "‡"}
EXPLAINED = {
    RECONSTRUCTION: RECONSTRUCTED,
    ORACLE: "‡ oracle: learnt from targets, or is given a network that was trained elsewhere.",
}
SELECTION: Rule = "source-val"  # the rule that any run can follow: its own validation images
_MB = 1e6


@dataclass(frozen=True)
class Spread:
    """Numbers of several seeds.

    Attributes:
        values: In the order of the seeds.
        mean: Their mean.
        std: Their sample standard deviation; None for one.
    """

    values: tuple[float, ...]
    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Summarise the values that are not None; None if there are none."""
        known = tuple(float(value) for value in values if value is not None)
        if not known:
            return None
        std = float(np.std(known, ddof=1)) if len(known) > 1 else None
        return cls(known, float(np.mean(known)), std)

    def text(self, digits: int = 1) -> str:
        """Format as `61.2 ± 0.8`."""
        return spread(self.values, digits=digits)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method over its seeds.

    Attributes:
        method: Its name.
        seeds: Seeds of finished runs.
        failed: Runs that failed.
        marks: `"reconstruction"`, `"oracle"`, or nothing.
        score: Target mean of the deployed network after the last epoch, in percent; without
            targets the mean over crafted validation.
        by_seed: The same, by seed.
        targets: Accuracy on each target.
        difference: Of the score to that of the reference; None for the reference itself.
        source_val: Accuracy on the source's validation images.
        crafted: Mean over crafted validation.
        late: Target mean of the deployed network over the last evaluations.
        fluctuation: Variance of the deployed network's target accuracy over training.
        selected: Target mean of the epoch that is best on the source's validation images.
        regret: What that epoch stays behind the best one, which only targets would show.
        seconds: Time in training epochs.
        step_seconds: Of the main phase, per step.
        step_ratio: That of the quickest seed, relative to plain training: other work on the
            machine only ever makes a run slower.
        memory: Bytes that the run's process had at its peak.
        memory_ratio: That, relative to plain training.
        shared_with: Methods that came from the same run: time and memory are those of all.
    """

    method: str
    seeds: tuple[int, ...]
    failed: int = 0
    marks: tuple[str, ...] = ()
    score: Spread | None = None
    by_seed: dict[int, float] = field(default_factory=dict)
    targets: dict[str, Spread] = field(default_factory=dict)
    difference: Difference | None = None
    source_val: Spread | None = None
    crafted: Spread | None = None
    late: Spread | None = None
    fluctuation: Spread | None = None
    selected: Spread | None = None
    regret: Spread | None = None
    seconds: Spread | None = None
    step_seconds: Spread | None = None
    step_ratio: float | None = None
    memory: Spread | None = None
    memory_ratio: float | None = None
    shared_with: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name and marks."""
        return " ".join([self.method, *(MARKS[mark] for mark in self.marks)])


@dataclass(frozen=True, kw_only=True)
class BenchTable:
    """All methods of a bench.

    Attributes:
        data: Name of the data.
        score: What methods are compared by: `"target mean"` or `"crafted val"`.
        reference: The method that differences are to.
        plain: The method that costs are relative to: cross-entropy on clean images; None if the
            bench does not have it.
        rows: The methods, in the order they were asked for.
        period: Epochs between the evaluations that fluctuation is over, the same for all rows.
        late_epochs: First and last of those that late means are over, of runs of each length.
        cautions: Sentences about what differs between rows besides the method.
        remarks: Sentences about the whole: as of which epoch it is, what was trained elsewhere.
        answers: Pairs of rows that were asked for, compared.
    """

    data: str
    score: str
    reference: str
    plain: str | None
    rows: tuple[Row, ...]
    period: int = 1
    late_epochs: tuple[tuple[int, int], ...] = ()
    cautions: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()

    def plain_data(self) -> dict[str, Any]:
        """Convert to nested dictionaries, lists and numbers."""
        return asdict(self)

    @property
    def pairs(self) -> int:
        """The fewest seeds, but for single ones, that a difference is over."""
        rows = [row.difference.n for row in self.rows if row.difference]
        answers = [found.n for answer in self.answers for found in answer.differences.values()]
        return min((n for n in (*rows, *answers) if n > 1), default=0)

    def table(self) -> Table:
        """Make the table for people: mean ± standard deviation over seeds."""
        has_targets = self.score != CRAFTED_MEAN
        columns = {
            "method": [row.label for row in self.rows],
            "seeds": [_seeds(row) for row in self.rows],
            self.score: [_text(row.score) for row in self.rows],
            LATE: [_text(row.late) for row in self.rows],
            f"vs {self.reference} [95 %]": [self._difference(row) for row in self.rows],
            "source val": [_text(row.source_val) for row in self.rows],
            **({CRAFTED_MEAN: [_text(row.crafted) for row in self.rows]} if has_targets else {}),
            "fluctuation": [_text(row.fluctuation, 2) for row in self.rows],
            f"by {SELECTION}": [_text(row.selected) for row in self.rows],
            "regret": [_text(row.regret) for row in self.rows],
            "seconds": [_shared(_text(row.seconds, 0), row) for row in self.rows],
        }
        if self.plain is not None:
            columns[f"step × {self.plain}"] = [_ratio(row.step_ratio, row) for row in self.rows]
        columns["MB"] = [_shared(_text(row.memory, 0, _MB), row) for row in self.rows]
        if self.plain is not None:
            columns[f"MB × {self.plain}"] = [_ratio(row.memory_ratio, row) for row in self.rows]
        cells = {
            name: values
            for name, values in columns.items()
            if name in ("method", "seeds", self.score) or set(values) != {"-"}
        }
        return Table(list(cells), list(map(list, zip(*cells.values(), strict=True))))

    def notes(self) -> list[str]:
        """Explain marks, intervals, and what the whole is."""
        marks = dict.fromkeys(mark for row in self.rows for mark in row.marks)
        notes = [EXPLAINED[mark] for mark in marks]
        notes += [
            f"{row.label}: {row.failed} of its runs failed, its numbers are of "
            f"{len(row.seeds)}." for row in self.rows if row.failed
        ]  # fmt: skip
        if any(row.shared_with for row in self.rows):
            notes.append(
                "shared: the method came from a run that others share, so its time and memory are "
                "those of all averages that watched it; alone it needs less."
            )
        if self.pairs > 1:
            few = f" (of {self.pairs} seeds too narrow on its own)"
            notes.append(
                f"{CLEAR}: neither the bootstrap interval{few if self.pairs < FEW_SEEDS else ''} "
                "nor Student's 95 % interval holds 0."
            )
        return [*notes, *self.remarks]

    def _difference(self, row: Row) -> str:
        return "reference" if row.method == self.reference else difference_text(row.difference)

    def csv(self) -> str:
        """Write all numbers in full as CSV, one row for each method."""
        out = io.StringIO()
        rows = [self._record(row) for row in self.rows]
        writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        for record in rows:
            writer.writerow({key: _cell(value) for key, value in record.items()})
        return out.getvalue()

    def _record(self, row: Row) -> dict[str, Any]:
        difference = row.difference
        record: dict[str, Any] = {
            "method": row.method, "reconstruction": RECONSTRUCTION in row.marks,
            "oracle": ORACLE in row.marks, "seeds": len(row.seeds), "failed": row.failed,
            **_columns(self.score, row.score), "reference": self.reference,
            "difference": difference and difference.mean,
            "difference std": difference and difference.std,
            "difference low": difference and difference.low,
            "difference high": difference and difference.high,
            "difference t margin": difference and difference.margin,
            "difference pairs": difference and difference.n,
            **_columns("source val", row.source_val),
            **(_columns(CRAFTED_MEAN, row.crafted) if self.score != CRAFTED_MEAN else {}),
            **_columns(LATE, row.late), **_columns("fluctuation", row.fluctuation),
            "fluctuation period": None if row.fluctuation is None else self.period,
            **_columns(f"by {SELECTION}", row.selected), **_columns("regret", row.regret),
            **_columns("seconds", row.seconds), **_columns("step seconds", row.step_seconds),
            "step ratio": row.step_ratio, **_columns("memory bytes", row.memory),
            "memory ratio": row.memory_ratio, "shared with": " ".join(row.shared_with),
        }  # fmt: skip
        for target, found in row.targets.items():
            record |= _columns(f"target {target}", found)
        return record

    def latex(self) -> str:
        """Write a `tabular` with the rules of booktabs, numbers and marks in mathematics."""
        table = self.table()
        lines = [
            "% \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            "\\toprule",
            _latex_line(table.columns),
            "\\midrule",
            *map(_latex_line, table.rows),
            "\\bottomrule",
            "\\end{tabular}",
            *(f"% {latex_text(note)}" for note in (*self.notes(), *self.cautions)),
        ]
        return "\n".join(lines) + "\n"


def bench_table(
    groups: Groups,
    *,
    reference: str | None = None,
    failed: Mapping[str, int] | None = None,
    questions: Questions | None = None,
) -> BenchTable:
    """Tabulate finished runs.

    Args:
        groups: The runs of each method, in the order of the rows; a method may have none.
        reference: The method that differences are to; default: plain training if the bench has
            it, else the first.
        failed: How many runs of each method failed.
        questions: Pairs of rows to compare, under what they are compared for.
    """
    finished = {name: group for name, group in groups.items() if group}
    first = next(iter(finished.values()))[0]
    plain = next((name for name, group in finished.items() if _is_plain(group[0])), None)
    reference = reference or plain or next(iter(finished))
    period = common_period([run for group in finished.values() for run in group])
    rows = [
        _row(name, group, (failed or {}).get(name, 0), period) for name, group in groups.items()
    ]
    compared = next((row for row in rows if row.method == reference), None)
    cheap = next((row for row in rows if row.method == plain), None)
    score = "target mean" if first.targets else CRAFTED_MEAN
    return BenchTable(
        data=first.data,
        score=score,
        reference=reference,
        plain=plain,
        rows=tuple(_relative(row, compared, cheap) for row in rows),
        period=period,
        late_epochs=_late_epochs(rows, finished, period),
        cautions=tuple(accuracy_notes(finished)),
        answers=tuple(answer(questions or {}, finished, score=score, period=period)),
    )


def common_period(runs: Iterable[RunResult]) -> int:
    """Find the period of evaluations, in epochs, that the fluctuation of all runs can use.

    A variance over other epochs, or over another number of them, is not comparable, though methods
    have another k. So it is the shortest k of a method that all runs were evaluated after and that
    leaves something to vary, else the shortest time after which all were evaluated.
    """
    trained = [run for run in runs if not run.combined_from]
    if not trained:
        return 1
    evaluated = math.lcm(*(int(run.config["evaluate_every"]) for run in trained))
    most = min(run.config["train"]["epochs"] for run in trained) // (BURN_IN_PERIODS + MINIMUM)
    periods = sorted({run.period for run in trained if run.k is not None})
    return next((p for p in periods if p % evaluated == 0 and p <= most), evaluated)


def _late_epochs(rows: Iterable[Row], groups: Groups, period: int) -> tuple[tuple[int, int], ...]:
    """Find the first and last epoch of late means; several if runs have different lengths."""
    runs = [run for row in rows if row.late is not None for run in groups[row.method]]
    last = sorted({run.config["train"]["epochs"] // period * period for run in runs})
    return tuple((end - (LATE_PERIODS - 1) * period, end) for end in last)


def _is_plain(run: RunResult) -> bool:
    """Whether it is nothing but cross-entropy on clean images of the source."""
    known = run.settings is not None and run.settings.is_baseline
    return known and not run.augments and not run.averages and not run.saw_targets


def _row(name: str, group: Sequence[RunResult], failed: int, period: int) -> Row:
    if not group:
        return Row(method=name, seeds=(), failed=failed)
    run = group[0]
    finals = [run.final(run.deployed) for run in group]
    scores = {run.seed: run.score(run.deployed) for run in group}
    chosen = [choices(run).get(SELECTION) for run in group] if run.targets else []
    moved = [run.fluctuation(run.deployed, every=period) for run in group]
    targets = {t: Spread.of(final.get(t) for final in finals) for t in run.targets}
    return Row(
        method=name,
        seeds=tuple(run.seed for run in group),
        failed=failed,
        marks=_marks(run),
        score=Spread.of(scores.values()),
        by_seed={seed: score for seed, score in scores.items() if score is not None},
        targets={target: found for target, found in targets.items() if found is not None},
        source_val=Spread.of(final.get(VALIDATION) for final in finals),
        crafted=Spread.of(run.crafted_mean(run.deployed) for run in group),
        late=Spread.of(run.late_mean(run.deployed, every=period) for run in group),
        fluctuation=Spread.of(None if f is None else f.mean.var for f in moved),
        selected=Spread.of(None if c is None else c.target for c in chosen),
        regret=Spread.of(None if c is None else c.regret for c in chosen),
        seconds=Spread.of(run.seconds or None for run in group),
        step_seconds=Spread.of(run.step_seconds for run in group),
        memory=Spread.of(run.peak_memory for run in group),
        shared_with=run.shared_with,
    )


def _marks(run: RunResult) -> tuple[str, ...]:
    found = [RECONSTRUCTION] if run.is_reconstruction else []
    given = run.settings is not None and run.settings.is_oracle
    return (*found, ORACLE) if given or run.saw_targets else (*found,)


def _relative(row: Row, reference: Row | None, plain: Row | None) -> Row:
    """Add a row's difference to the reference, and its costs relative to plain training."""
    difference = None
    if reference is not None and row.method != reference.method:
        difference = paired_difference(row.by_seed, reference.by_seed)
    if plain is None:
        return replace(row, difference=difference)
    return replace(
        row,
        difference=difference,
        step_ratio=_over(_quickest(row.step_seconds), _quickest(plain.step_seconds)),
        memory_ratio=_over(_mean(row.memory), _mean(plain.memory)),
    )


def _over(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def _quickest(found: Spread | None) -> float | None:
    return None if found is None else min(found.values)


def _mean(found: Spread | None) -> float | None:
    return None if found is None else found.mean


def _text(found: Spread | None, digits: int = 1, unit: float = 1.0) -> str:
    return "-" if found is None else spread([v / unit for v in found.values], digits=digits)


def _seeds(row: Row) -> str:
    return f"{len(row.seeds)} ({row.failed} failed)" if row.failed else str(len(row.seeds))


def _ratio(ratio: float | None, row: Row) -> str:
    return "-" if ratio is None else _shared(f"{ratio:.2f}", row)


def _shared(text: str, row: Row) -> str:
    return f"{text} shared" if row.shared_with and text != "-" else text


def _columns(name: str, found: Spread | None) -> dict[str, float | None]:
    mean, std = (None, None) if found is None else (found.mean, found.std)
    return {name: mean, f"{name} std": std}


def _cell(value: Any) -> Any:
    return spreadsheet_text(value) if isinstance(value, str) else "" if value is None else value


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + " \\\\"
