"""The questions of a study: pairs of its rows, compared with each other.

    [question]
    "Does the regularizer add to averaging?" = [["peer", "p-ens"], ["peer-w2", "p-ens"]]
    "More than without averaging?" = [[["peer", "p-ens"], ["peer-latest", "randaugment"]]]

The table of a bench has differences to one reference. Most questions are about other pairs, and
about more than accuracy: what a part of a method is worth, in points and in steadiness. Two
differences can be compared, too: whether two parts are worth more together than each alone.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from peerdg.benches.study import Questions, Term, rows_of
from peerdg.data import VALIDATION
from peerdg.evaluate.statistics import Difference, paired_difference
from peerdg.report.result import MARK, RunResult
from peerdg.report.tables import CRAFTED_MEAN
from peerdg.report.variants import Groups
from peerdg.terminal import Table, spreadsheet_text

LATE, FLUCTUATION, TRAINED = "late mean", "fluctuation", "trained: "
CLEAR = "*"  # behind an interval: Student's does not hold 0, either
RATIOS = {FLUCTUATION, TRAINED + FLUCTUATION}  # a variance that is halved says more than "-0.4"


@dataclass(frozen=True)
class Answer:
    """One row of a study against another, over the seeds that both have.

    Attributes:
        question: What the pair is compared for.
        method: The row, or the difference of two.
        partner: What it is compared with.
        differences: Of each measure, method minus partner: target mean, its mean over the last
            evaluations, source validation, crafted validation and fluctuation of the deployed
            network, target mean and fluctuation of the trained one. Those of `RATIOS` are
            differences of logarithms, so logarithms of ratios. Measures that the runs do not have
            are left out.
        by_seed: The same of single seeds.
        label: Both names, a reconstruction with its mark.
    """

    question: str
    method: str
    partner: str
    differences: Mapping[str, Difference]
    by_seed: Mapping[str, Mapping[int, float]]
    label: str


def answer(questions: Questions, groups: Groups, *, score: str, period: int) -> list[Answer]:
    """Compare the pairs whose rows have finished runs of a common seed.

    Args:
        questions: Pairs under what they are compared for.
        groups: The finished runs of each row.
        score: What rows are compared by, as the table calls it.
        period: Epochs between the evaluations that fluctuation is over, the same for all rows.
    """
    found = []
    for question, pairs in questions.items():
        for method, partner in pairs:
            measured = {
                name: (_values(method, groups, measure), _values(partner, groups, measure))
                for name, measure in _measures(score, period).items()
            }
            compared = {name: paired_difference(a, b) for name, (a, b) in measured.items()}
            known = {name: one for name, one in compared.items() if one is not None}
            by_seed = {name: _minus(*measured[name]) for name in known}
            if score in known:
                label = f"{_marked(method, groups)} - {_marked(partner, groups)}"
                ours, theirs = _joined(rows_of(method)), _joined(rows_of(partner))
                found.append(Answer(question, ours, theirs, known, by_seed, label))
    return found


def _marked(term: Term, groups: Groups) -> str:
    """Name a term, reconstructions with their mark."""
    return _joined([
        f"{name} {MARK}" if groups[name][0].is_reconstruction else name for name in rows_of(term)
    ])  # fmt: skip


def _joined(names: Sequence[str]) -> str:
    """Format as `peer`, or `(peer - p-ens)`."""
    return names[0] if len(names) == 1 else f"({' - '.join(names)})"


def _minus(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def _measures(score: str, period: int) -> dict[str, Callable[[RunResult], float | None]]:
    """Name what runs are compared by; no run has everything."""

    def log_variance(run: RunResult, model: str) -> float | None:
        found = run.fluctuation(model, every=period)
        return None if found is None or not found.mean.var else math.log(found.mean.var)

    return {
        score: lambda run: run.score(run.deployed),
        LATE: lambda run: run.late_mean(run.deployed, every=period),
        "source val": lambda run: run.final(run.deployed).get(VALIDATION),
        CRAFTED_MEAN: lambda run: run.crafted_mean(run.deployed),
        FLUCTUATION: lambda run: log_variance(run, run.deployed),
        TRAINED + score: lambda run: run.score(run.trained),
        TRAINED + FLUCTUATION: lambda run: log_variance(run, run.trained),
    }


def _values(
    term: Term, groups: Groups, measure: Callable[[RunResult], float | None]
) -> dict[int, float]:
    """Measure a row, or the difference of two, for each seed."""
    found = [_by_seed(groups.get(name, ()), measure) for name in rows_of(term)]
    return found[0] if len(found) == 1 else _minus(*found)


def _by_seed(
    group: Sequence[RunResult], measure: Callable[[RunResult], float | None]
) -> dict[int, float]:
    found = {run.seed: measure(run) for run in group}
    return {seed: value for seed, value in found.items() if value is not None}


def answers_table(answers: Sequence[Answer]) -> Table:
    """Tabulate answers to one question: a row for each pair, a column for each measure."""
    measures = dict.fromkeys(name for found in answers for name in found.differences)
    rows = [
        [found.label, str(_seeds(found)), *(_answer_text(found, measure) for measure in measures)]
        for found in answers
    ]
    return Table(["difference", "seeds", *measures], rows)


def _seeds(found: Answer) -> int:
    return next(iter(found.differences.values())).n


def _answer_text(found: Answer, measure: str) -> str:
    """Format one cell; a measure that fewer seeds have says so: a variance of 0 has no ratio."""
    difference, is_ratio = found.differences.get(measure), measure in RATIOS
    text = ratio_text(difference) if is_ratio else difference_text(difference, one_seed=False)
    if difference is None or difference.n == _seeds(found):
        return text
    return f"{text} of {difference.n}"


def difference_text(found: Difference | None, *, one_seed: bool = True) -> str:
    """Format as `+1.2 [+0.3, +2.0]`, with a star if that is clear; of one seed, say so."""
    if found is None:
        return "-"
    if found.n == 1 and not one_seed:
        return f"{found.mean:+.1f}"
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f} ({found.reason})"
    star = f" {CLEAR}" if found.is_clear else ""
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]{star}"


def ratio_text(found: Difference | None) -> str:
    """Format a difference of logarithms as `×0.52 [0.31, 0.84]`, with a star if that is clear."""
    if found is None:
        return "-"
    ratio = f"×{math.exp(found.mean):.2f}"
    if found.low is None or found.high is None:
        return ratio if found.n == 1 else f"{ratio} ({found.reason})"
    star = f" {CLEAR}" if found.is_clear else ""
    return f"{ratio} [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]{star}"


def answers_csv(answers: Iterable[Answer]) -> str:
    """Write all differences in full as CSV, one row for each pair and measure; logs of ratios."""
    out = io.StringIO()
    writer = csv.writer(out)
    columns = ["question", "method", "partner", "measure"]
    writer.writerow([*columns, "pairs", "difference", "std", "low", "high", "t margin"])
    for found in answers:
        for measure, d in found.differences.items():
            name = f"log {measure}" if measure in RATIOS else measure
            names = map(spreadsheet_text, (found.question, found.method, found.partner, name))
            numbers = ("" if v is None else v for v in (d.std, d.low, d.high, d.margin))
            writer.writerow([*names, d.n, d.mean, *numbers])
    return out.getvalue()
