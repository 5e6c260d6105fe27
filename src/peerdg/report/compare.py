"""Group runs by what they are, check that they are comparable, and compare pairs of rows.

    [question]
    "Does the regularizer add to averaging?" = [["peer", "p-ens"], ["peer-w2", "p-ens"]]
    "More than without averaging?" = [[["peer", "p-ens"], ["peer-latest", "randaugment"]]]

A question of a plan names pairs of rows, or pairs of differences. They are compared in accuracy and
in fluctuation, over the seeds that both have.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peerdg.data import VALIDATION
from peerdg.errors import ConfigError
from peerdg.evaluate.statistics import Difference, paired_difference
from peerdg.report.runs import MARK, UNKNOWN, RunResult
from peerdg.terminal import Table

if TYPE_CHECKING:
    from peerdg.benches.plan import Questions, Term

Groups = Mapping[str, Sequence[RunResult]]

CRAFTED_MEAN = "crafted val"  # mean over the families that RandAugment does not train on
LATE, FLUCTUATION, TRAINED = "late mean", "fluctuation", "trained: "
CLEAR = "*"  # after an interval: Student's interval excludes 0, too
RATIOS = {FLUCTUATION, TRAINED + FLUCTUATION}  # compared by logarithms
FROZEN = "frozen"  # batch statistics that training did not change
_NAMED = 4  # options in the name of a variant
_FINGERPRINT = 6  # characters that tell folders of one name apart
_PHASES = {"pretrain": "pre-training", "train": "training"}


# Groups.


def by_variant(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Group finished runs that differ only in their seed, under a short unique name.

    A row of a bench keeps its name. A method with one variant is called by its name, one with
    several also by the options that differ, `erm lr=0.1`.
    """
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    starts: dict[tuple[str, int], set[str | None]] = {}
    for run in runs:
        starts.setdefault((run.variant, run.seed), set()).add(run.network_weights)
    for run in runs:
        # A new network for each seed is what a mean over seeds is for. Other weights under the
        # same seed are another start, such as weights that have been trained.
        several = any(len(s) > 1 for (variant, _), s in starts.items() if variant == run.variant)
        start = str(run.network_weights) if several else ""
        group = groups.setdefault((run.variant, run.fingerprints.get("train", ""), start), [])
        # The same seed again is the same result, not another sample.
        if run.status == "done" and run.evaluations and run.seed not in {r.seed for r in group}:
            group.append(run)
    finished = [sorted(group, key=lambda run: run.seed) for group in groups.values() if group]
    by_method: dict[str, list[RunResult]] = {}
    for group in finished:
        by_method.setdefault(group[0].method, []).append(group[0])
    labels = {id(run): label for own in by_method.values() for run, label in _labels(own)}
    names = [labels[id(group[0])] for group in finished]
    rows = [group[0].row or name for group, name in zip(finished, names, strict=True)]
    unique = len(set(rows)) == len(rows) and all(len({r.row for r in g}) == 1 for g in finished)
    return dict(zip(rows if unique else names, finished, strict=True))


def _labels(variants: Sequence[RunResult]) -> list[tuple[RunResult, str]]:
    """Name each variant of a method by the options in which they differ."""
    options = differing_options(variants) if len(variants) > 1 else {}
    named = list(options)[:_NAMED]
    short = [key.rpartition(".")[2] for key in named]
    shown = [s if short.count(s) == 1 else key for key, s in zip(named, short, strict=True)]
    labels = [
        " ".join([run.method, *(f"{s}={options[k][n]}" for s, k in zip(shown, named, strict=True))])
        for n, run in enumerate(variants)
    ]
    unique = [
        label if labels.count(label) == 1 else f"{label} ({labels[: n + 1].count(label)})"
        for n, label in enumerate(labels)
    ]
    return list(zip(variants, unique, strict=True))


def differing_options(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Collect the values of each option that differs between runs of one method, own ones first."""
    method = f"{runs[0].config['method']}."
    flat = [run.options for run in runs]
    keys = dict.fromkeys(key for options in flat for key in options)
    found: dict[str, list[Any]] = {key: [o.get(key) for o in flat] for key in keys}
    found = {key: v for key, v in found.items() if len(set(map(repr, v))) > 1}
    if found.get("evaluate_every") == found.get(f"{method}{runs[0].period_option}"):
        found.pop("evaluate_every", None)  # follows the period unless it is given
    if len({run.fingerprints.get("train") for run in runs}) > 1:
        found["data"] = list(_data_names(runs))
    if len({str(values) for values in zip(*found.values(), strict=True)}) < len(runs):
        starts = [run.network_weights or UNKNOWN for run in runs]
        found |= {"initial_weights": starts} if len(set(starts)) > 1 else {}
    first = sorted(found, key=lambda key: (key != "budget", not key.startswith(method)))
    return {key: [_option_text(value) for value in found[key]] for key in first}


def _option_text(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_option_text, value)) or "none"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _data_names(runs: Sequence[RunResult]) -> list[str]:
    """Name the data of each run. Folders of one name with other images get a fingerprint."""
    prints = [run.fingerprints.get("train", "") for run in runs]
    images: dict[str, set[str]] = {}
    for run, fingerprint in zip(runs, prints, strict=True):
        images.setdefault(run.data, set()).add(fingerprint)
    return [
        run.data if len(images[run.data]) == 1 else f"{run.data}@{fingerprint[:_FINGERPRINT]}"
        for run, fingerprint in zip(runs, prints, strict=True)
    ]


# Comparability.


def require_comparable(runs: Sequence[RunResult]) -> None:
    """Refuse to compare results that were measured on different data or in different ways.

    Raises:
        ConfigError: If finished runs differ in their data set or targets, were evaluated on other
            images under the same names, or with other rules for batch statistics.
    """
    finished = [run for run in runs if run.status == "done" and run.evaluations]
    hint = "Compare those with the same targets only, by naming their folders."
    data = {(run.config["benchmark"], *run.targets): run for run in finished}
    if len(data) > 1:
        names = "; ".join(
            f"{run.data}: {', '.join(run.targets) or 'none'}" for _, run in sorted(data.items())
        )
        raise ConfigError(f"These runs have different data or targets ({names}).", hint=hint)
    evaluated = [f"target:{t}" for t in finished[0].targets] if finished else []
    if changed := [n for n in evaluated or [VALIDATION] if len(_fingerprints(n, finished)) > 1]:
        names = ", ".join(name.removeprefix("target:") for name in changed)
        data_names = ", ".join(dict.fromkeys(run.data for run in finished))
        raise ConfigError(
            f"These runs were evaluated on different images of the same name ({names}; data: "
            f"{data_names}).",
            hint=hint,
        )
    # Networks trained with frozen statistics are the same under every rule.
    rules = {run.batch_statistics for run in finished} - {None, FROZEN}
    if len(rules) > 1:
        raise ConfigError(
            f"These runs were evaluated with different batch statistics "
            f"({'; '.join(sorted(map(str, rules)))}).",
            hint="Compare those with the same --batch-statistics only, by naming their folders.",
        )


def _fingerprints(part: str, runs: Iterable[RunResult]) -> set[str]:
    return {run.fingerprints[part] for run in runs if part in run.fingerprints}


def shared_differences(groups: Groups) -> list[str]:
    """List options that differ between rows and do not define a method.

    Sections of methods and averages do. Options of the augmentation are compared between rows with
    the same kind of it.
    """
    methods = {str(group[0].config["method"]) for group in groups.values()}
    own = {*methods, "method", "average", "batch_statistics", "combination"}
    values: dict[tuple[str, Any], set[str]] = {}
    for group in groups.values():
        options = group[0].options
        kind = options.pop("augment.kind", None)
        for name, value in options.items():
            section = name.partition(".")[0]
            if section not in own:
                place = (name, kind if section == "augment" else None)
                values.setdefault(place, set()).add(repr(value))
    return list(dict.fromkeys(name for (name, _), seen in values.items() if len(seen) > 1))


def cautions(groups: Groups) -> list[str]:
    """Explain what besides the method makes accuracies of rows differ."""
    runs = [run for group in groups.values() for run in group]
    sentences = [
        f"{name}, seed {run.seed}: {_PHASES[phase]} collapsed, the network predicts one class for "
        "every image. The row says little about the method."
        for name, group in groups.items()
        for run in group
        for phase in run.collapsed
    ]
    if len(_fingerprints("train", runs)) > 1:
        known = {
            (name, run.fingerprints["train"]): run
            for name, group in groups.items()
            for run in group
            if "train" in run.fingerprints
        }
        names = _data_names(list(known.values()))
        rows = "; ".join(f"{name}: {data}" for (name, _), data in zip(known, names, strict=True))
        sentences.append(f"Rows were trained on different images ({rows}).")
    steps = {
        name: sorted({run.steps for run in group if run.steps is not None})
        for name, group in groups.items()
    }
    if len({count for counts in steps.values() for count in counts}) > 1:
        rows = "; ".join(
            f"{name}: {' to '.join(f'{n:,}' for n in dict.fromkeys((*c[:1], *c[-1:]))) or UNKNOWN}"
            for name, c in steps.items()
        )
        sentences.append(f"Rows were trained for different numbers of optimizer steps ({rows}).")
    for name, group in groups.items():
        starts = {run.seed: start for run in group if (start := run.network_weights)}
        if len(set(starts.values())) > 1:
            seeds = ", ".join(f"{seed}: {start}" for seed, start in starts.items())
            sentences.append(f"Each seed of {name} has other initial weights ({seeds}).")
    if len(_fingerprints(VALIDATION, runs)) > 1:
        sentences.append(
            "The validation images differ between runs, so source val and crafted val were not "
            "measured on the same images."
        )
    return sentences


def variant_differences(groups: Groups) -> list[str]:
    """List the options in which each variant differs from the first of its method."""
    by_method: dict[str, dict[str, RunResult]] = {}
    for name, group in groups.items():
        by_method.setdefault(str(group[0].config["method"]), {})[name] = group[0]
    sentences = []
    for runs in by_method.values():
        options = differing_options(list(runs.values())) if len(runs) > 1 else {}
        first, *others = runs
        for n, name in enumerate(others, start=1):
            changed = [f"{key} {v[n]}" for key, v in options.items() if v[n] != v[0]]
            if changed:
                sentences.append(f"{name} is {first} with {', '.join(changed)}.")
    return sentences


# Questions.


@dataclass(frozen=True)
class Answer:
    """One row of a study compared with another, over the seeds that both have."""

    question: str
    method: str  # row, or difference of two rows
    partner: str  # row or difference that it is compared with
    differences: Mapping[str, Difference]  # by measure, of logarithms for those of `RATIOS`
    by_seed: Mapping[str, Mapping[int, float]]  # differences of single seeds
    label: str  # both names, a reconstruction with its mark

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return next(iter(self.differences.values())).n


def answer(questions: "Questions", groups: Groups, *, score: str, period: int) -> list[Answer]:
    """Compare the pairs whose rows have finished runs of a common seed.

    Args:
        questions: Pairs of rows by question.
        groups: Finished runs of each row.
        score: Name of the score that rows are compared by.
        period: Epochs between the evaluations of fluctuation and late mean.
    """
    answers = []
    for question, pairs in questions.items():
        for pair in pairs:
            differences, by_seed = {}, {}
            for name, measure in _measures(score, period).items():
                ours, theirs = (_values(term, groups, measure) for term in pair)
                if difference := paired_difference(ours, theirs):
                    differences[name], by_seed[name] = difference, _subtract(ours, theirs)
            if score in differences:
                method, partner = (_joined(rows_of(term)) for term in pair)
                label = " - ".join(_joined(_marked(term, groups)) for term in pair)
                answers.append(Answer(question, method, partner, differences, by_seed, label))
    return answers


def _measures(score: str, period: int) -> dict[str, Callable[[RunResult], float | None]]:
    def log_variance(run: RunResult, model: str) -> float | None:
        moved = run.fluctuation(model, every=period)
        return None if moved is None or not moved.mean.var else math.log(moved.mean.var)

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
    term: "Term", groups: Groups, measure: Callable[[RunResult], float | None]
) -> dict[int, float]:
    """Measure a row, or the difference of two, for each seed."""
    rows = [
        {run.seed: v for run in groups.get(name, ()) if (v := measure(run)) is not None}
        for name in rows_of(term)
    ]
    return rows[0] if len(rows) == 1 else _subtract(*rows)


def _subtract(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def _marked(term: "Term", groups: Groups) -> list[str]:
    return [
        f"{name} {MARK}" if groups[name][0].is_reconstruction else name for name in rows_of(term)
    ]


def rows_of(term: "Term") -> tuple[str, ...]:
    """List the rows of a term: one, or two that are subtracted."""
    return (term,) if isinstance(term, str) else term


def _joined(names: Sequence[str]) -> str:
    """Format as `peer`, or `(peer - p-ens)`."""
    return names[0] if len(names) == 1 else f"({' - '.join(names)})"


def answers_table(answers: Sequence[Answer]) -> Table:
    """Tabulate answers to one question: a row for each pair, a column for each measure."""
    measures = dict.fromkeys(name for answer in answers for name in answer.differences)
    rows = []
    for found in answers:
        cells = [found.label, str(found.seeds)]
        for measure in measures:
            difference, is_ratio = found.differences.get(measure), measure in RATIOS
            text = ratio_text(difference) if is_ratio else difference_text(difference, one_seed="")
            # A variance of 0 has no ratio, so fewer seeds may have this measure.
            fewer = difference is not None and difference.n != found.seeds
            cells.append(f"{text} of {difference.n}" if difference and fewer else text)
        rows.append(cells)
    return Table(["difference", "seeds", *measures], rows)


def difference_text(difference: Difference | None, *, one_seed: str = " (one seed)") -> str:
    """Format as `+1.2 [+0.3, +2.0]`, with a star if that is clear."""
    if difference is None:
        return "-"
    mean = f"{difference.mean:+.1f}"
    if difference.low is None or difference.high is None:
        return mean + (one_seed if difference.n == 1 else f" ({difference.reason})")
    star = f" {CLEAR}" if difference.is_clear else ""
    return f"{mean} [{difference.low:+.1f}, {difference.high:+.1f}]{star}"


def ratio_text(difference: Difference | None) -> str:
    """Format a difference of logarithms as `×0.52 [0.31, 0.84]`, with a star if that is clear."""
    if difference is None:
        return "-"
    ratio = f"×{math.exp(difference.mean):.2f}"
    if difference.low is None or difference.high is None:
        return ratio if difference.n == 1 else f"{ratio} ({difference.reason})"
    star = f" {CLEAR}" if difference.is_clear else ""
    return f"{ratio} [{math.exp(difference.low):.2f}, {math.exp(difference.high):.2f}]{star}"


def answers_csv(answers: Iterable[Answer]) -> str:
    """Write all differences in full as CSV, one row for each pair and measure."""
    out = io.StringIO()
    writer = csv.writer(out)
    columns = ["question", "method", "partner", "measure"]
    writer.writerow([*columns, "pairs", "difference", "std", "low", "high", "t margin"])
    for found in answers:
        for measure, d in found.differences.items():
            name = f"log {measure}" if measure in RATIOS else measure
            numbers = ("" if v is None else v for v in (d.std, d.low, d.high, d.margin))
            row = [found.question, found.method, found.partner, name, d.n, d.mean, *numbers]
            writer.writerow(row)
    return out.getvalue()
