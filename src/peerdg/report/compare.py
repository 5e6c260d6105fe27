"""Group runs by variant, check that they are comparable, and compare pairs of rows.

    [question]
    "Does the regularizer add to averaging?" = [["peer", "p-ens"], ["peer-w2", "p-ens"]]
    "More than without averaging?" = [[["peer", "p-ens"], ["peer-latest", "randaugment"]]]

A question in a plan lists pairs of rows, or pairs of differences between rows. Each pair is
compared in accuracy and steadiness, over the seeds that both sides have.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peerdg.data import CRAFTED, VALIDATION
from peerdg.errors import ConfigError
from peerdg.evaluate.selection import Choice, Rule, select
from peerdg.evaluate.statistics import Difference, paired_difference, subtract_by_seed
from peerdg.report.runs import MARK, UNKNOWN, RunResult, numbered
from peerdg.terminal import Table

if TYPE_CHECKING:
    from peerdg.benches.plan import Questions

Groups = Mapping[str, Sequence[RunResult]]

CRAFTED_MEAN = "crafted val"  # mean over the families that RandAugment does not train on
LATE, STEADINESS, TRAINED = "late mean", "steadiness", "trained: "
SELECTION: Rule = "source-val"  # the rule that applies to every run
SELECTED = f"by {SELECTION}"
RATIOS = {STEADINESS, TRAINED + STEADINESS}  # compared as logarithms
_COMPARED = (LATE, "source val", CRAFTED_MEAN, STEADINESS)  # in questions, besides the score
FROZEN = "frozen"  # batch statistics that training did not change
_NAMED = 4  # maximum number of options in a variant's name
_FINGERPRINT = 6  # characters that distinguish folders with the same name
_PHASES = {"pretrain": "pre-training", "train": "training"}


# Groups.


def by_variant(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Group finished runs that differ only in their seed, under a short unique name.

    Rows of a bench keep their names. Other groups are named after the method and the options in
    which its variants differ, e.g. `erm lr=0.1`.
    """
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    starts: dict[tuple[str, int], set[str | None]] = {}
    for run in runs:
        starts.setdefault((run.variant, run.seed), set()).add(run.network_weights)
    # Initial weights usually differ only between seeds. Runs with the same seed but different
    # initial weights, such as trained ones, form separate groups.
    several = {variant for (variant, _), own in starts.items() if len(own) > 1}
    for run in runs:
        start = str(run.network_weights) if run.variant in several else ""
        group = groups.setdefault((run.variant, run.fingerprints.get("train", ""), start), [])
        # Count each seed once, because a repeated run is not a new sample.
        if run.status == "done" and run.evaluations and run.seed not in {r.seed for r in group}:
            group.append(run)
    finished = [sorted(group, key=lambda run: run.seed) for group in groups.values() if group]
    names = _labels([group[0] for group in finished])
    rows = [group[0].row or name for group, name in zip(finished, names, strict=True)]
    unique = len(set(rows)) == len(rows) and all(len({r.row for r in g}) == 1 for g in finished)
    return dict(zip(rows if unique else names, finished, strict=True))


def _labels(runs: Sequence[RunResult]) -> list[str]:
    """Name each run after its method and the options in which runs of that method differ."""
    labels = [run.method for run in runs]
    for method in set(labels):
        variants = [n for n, run in enumerate(runs) if run.method == method]
        options = differing_options([runs[n] for n in variants])
        named = list(options)[:_NAMED]
        short = [key.rpartition(".")[2] for key in named]
        for key, name in zip(named, short, strict=True):
            unique = name if short.count(name) == 1 else key
            for n, value in zip(variants, options[key], strict=True):
                labels[n] += f" {unique}={value}"
    return numbered(labels)


def differing_options(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Return the values of options that differ between runs of a method, its own options first."""
    method = f"{runs[0].config['method']}."
    period = runs[0].settings.period_option if runs[0].settings else None
    flat = [run.options for run in runs]
    keys = dict.fromkeys(key for options in flat for key in options)
    values: dict[str, list[Any]] = {key: [o.get(key) for o in flat] for key in keys}
    values = {key: v for key, v in values.items() if len(set(map(repr, v))) > 1}
    if values.get("evaluate_every") == values.get(f"{method}{period}"):
        values.pop("evaluate_every", None)  # its default is the period
    if len({run.fingerprints.get("train") for run in runs}) > 1:
        values["data"] = _data_names(runs)
    if len({str(own) for own in zip(*values.values(), strict=True)}) < len(runs):
        starts = [run.network_weights or UNKNOWN for run in runs]
        values |= {"initial_weights": starts} if len(set(starts)) > 1 else {}
    ordered = sorted(values, key=lambda key: (key != "budget", not key.startswith(method)))
    return {key: [_option_text(value) for value in values[key]] for key in ordered}


def _option_text(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_option_text, value)) or "none"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _data_names(runs: Iterable[RunResult]) -> list[str]:
    """Return the name of each run's data with a short fingerprint of its images."""
    return [f"{run.data}@{run.fingerprints.get('train', '')[:_FINGERPRINT]}" for run in runs]


# Measures.


def choices(run: RunResult) -> dict[Rule, Choice]:
    """Apply each selection rule to the deployed model of a run. Empty for a combined model."""
    return {} if run.combined_from else select(run.evaluations, model=run.deployed)


def measure(run: RunResult, *, score: str, period: int) -> dict[str, float | None]:
    """Return the results of a run's deployed network and its costs, by column of `table.csv`.

    `period` is the number of epochs between the evaluations for steadiness and late mean.
    """
    final, choice = run.final(run.deployed), choices(run).get(SELECTION)
    return {
        score: run.score(run.deployed),
        "source val": final.get(VALIDATION),
        CRAFTED_MEAN: run.mean(run.deployed, run.voting),
        LATE: run.late_mean(run.deployed, every=period),
        STEADINESS: run.steadiness(run.deployed, every=period),
        SELECTED: choice.target if choice else None,
        "regret": choice.regret if choice else None,
        "seconds": run.seconds or None,
        "step seconds": run.step_seconds,
        "memory bytes": run.peak_memory,
        **{f"target {target}": final.get(target) for target in run.targets},
    }


# Comparability.


def require_comparable(runs: Sequence[RunResult]) -> None:
    """Refuse to compare results that were measured on different data or in different ways."""
    finished = [run for run in runs if run.status == "done" and run.evaluations]
    data = {(run.config["benchmark"], *run.targets): run for run in finished}
    evaluated = [f"target:{t}" for t in finished[0].targets] if finished else []
    changed = [n for n in evaluated or [VALIDATION] if len(_fingerprints(n, finished)) > 1]
    # With frozen statistics, a network gives the same results under every rule.
    rules = {str(run.batch_statistics) for run in finished if run.batch_statistics} - {FROZEN}
    if len(data) > 1:
        names = "; ".join(
            f"{run.data}: {', '.join(run.targets) or 'none'}" for _, run in sorted(data.items())
        )
        problem = f"have different data or targets ({names})"
    elif changed:
        names = ", ".join(name.removeprefix("target:") for name in changed)
        problem = f"were evaluated on different images with the same name ({names})"
    elif len(rules) > 1:
        problem = f"were evaluated with different batch statistics ({'; '.join(sorted(rules))})"
    else:
        return
    raise ConfigError(f"These runs {problem}.", hint="Name only the folders of comparable runs.")


def _fingerprints(part: str, runs: Iterable[RunResult]) -> set[str]:
    return {run.fingerprints[part] for run in runs if part in run.fingerprints}


def shared_differences(groups: Groups) -> list[str]:
    """List options that differ between rows, except those that define a method.

    The options of methods and averages are ignored. Augmentation options are only compared between
    rows with the same kind of augmentation.
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
    """Describe collapsed runs, and differences between rows besides the method."""
    runs = [run for group in groups.values() for run in group]
    sentences = [
        f"{name}, seed {run.seed}: {_PHASES[phase]} collapsed. The network predicts one class for "
        "all images, so the row does not represent the method."
        for name, group in groups.items()
        for run in group
        for phase in run.collapsed
    ]
    if len(_fingerprints("train", runs)) > 1:
        names = {
            name: " and ".join(dict.fromkeys(_data_names(r for r in group if r.fingerprints)))
            for name, group in groups.items()
        }
        rows = "; ".join(f"{name}: {data or UNKNOWN}" for name, data in names.items())
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
    if len(_fingerprints(VALIDATION, runs)) > 1:
        sentences.append(
            "The validation images differ between runs, so source val and crafted val are not "
            "comparable."
        )
    if seeds := other_crafted_images(runs):
        named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        text = "differ between rows, so their crafted val is not comparable."
        sentences.append(f"The crafted images of {named} {text}")
    return sentences


def other_crafted_images(runs: Iterable[RunResult]) -> list[int]:
    """Return the seeds whose runs were validated on different crafted images.

    Records do not name these images. But if the initial networks of two runs have equal accuracies
    on clean images and other ones on crafted images, then the crafted images differ.
    """
    first: dict[tuple[Any, ...], dict[str, float]] = {}
    seeds = set()
    for run in runs:
        if not run.targets:  # validation alone does not identify a network
            continue
        start = {
            record["domain"]: record["accuracy"]
            for record in run.evaluations
            if record["epoch"] == 0 and record["model"] == run.trained
        }
        crafted = {domain: value for domain, value in start.items() if domain.startswith(CRAFTED)}
        clean = sorted(start.items() - crafted.items())
        network = (run.config["backbone"], run.config.get("precision"), run.weights_sha256)
        known = first.setdefault((run.seed, *network, run.network_weights, *clean), {})
        if any(known.setdefault(domain, value) != value for domain, value in crafted.items()):
            seeds.add(run.seed)
    return sorted(seeds)


def variant_differences(groups: Groups) -> list[str]:
    """Describe how each variant differs from the first variant of its method."""
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
    """Comparison of two rows of a study over their common seeds."""

    question: str
    method: str  # row, or difference between two rows
    partner: str  # row or difference to compare it with
    differences: Mapping[str, Difference]  # by measure, as logarithms for those in `RATIOS`
    label: str  # both names, with marks for reconstructions

    @property
    def seeds(self) -> int:
        return next(iter(self.differences.values())).n


def answer(questions: "Questions", groups: Groups, *, score: str, period: int) -> list[Answer]:
    """Answer questions by comparing the pairs of rows that have common seeds."""
    measured: dict[str, dict[str, dict[int, float]]] = {}  # by measure, row and seed
    for row, run in ((row, run) for row, group in groups.items() for run in group):
        numbers = measure(run, score=score, period=period)
        numbers[TRAINED + score] = run.score(run.trained)
        numbers[TRAINED + STEADINESS] = run.steadiness(run.trained, every=period)
        for name in (score, *_COMPARED, TRAINED + score, TRAINED + STEADINESS):
            value, by_seed = numbers[name], measured.setdefault(name, {}).setdefault(row, {})
            if value is not None and (value or name not in RATIOS):
                by_seed[run.seed] = math.log(value) if name in RATIOS else value
    marked = {n: f"{n} {MARK}" if g[0].is_reconstruction else n for n, g in groups.items()}
    answers = []
    for question, pair in ((text, pair) for text, pairs in questions.items() for pair in pairs):
        differences = {}
        rows_compared = [row for term in pair for row in term]
        others = other_crafted_images(run for row in rows_compared for run in groups.get(row, ()))
        for name, values in measured.items():
            left_out = others if name == CRAFTED_MEAN else []
            terms = [
                [
                    {s: v for s, v in values.get(row, {}).items() if s not in left_out}
                    for row in term
                ]
                for term in pair
            ]
            ours, theirs = (
                rows[0] if len(rows) == 1 else subtract_by_seed(*rows) for rows in terms
            )
            if difference := paired_difference(ours, theirs):
                differences[name] = difference
        if score in differences:
            method, partner = map(_joined, pair)
            label = " - ".join(_joined([marked[name] for name in term]) for term in pair)
            answers.append(Answer(question, method, partner, differences, label))
    return answers


def _joined(names: Sequence[str]) -> str:
    """Format as `peer`, or `(peer - p-ens)`."""
    return names[0] if len(names) == 1 else f"({' - '.join(names)})"


def answers_table(answers: Sequence[Answer]) -> Table:
    """Tabulate the answers to one question, with a row per pair and a column per measure."""
    measures = dict.fromkeys(name for answer in answers for name in answer.differences)
    rows = []
    for answer in answers:
        cells = [answer.label, str(answer.seeds)]
        for measure in measures:
            difference = answer.differences.get(measure)
            text = difference_text(difference, is_ratio=measure in RATIOS)
            # A steadiness of 0 has no ratio, and crafted images may differ in some seeds.
            fewer = difference is not None and 1 < difference.n < answer.seeds
            cells.append(f"{text} of {difference.n}" if difference and fewer else text)
        rows.append(cells)
    return Table(["difference", "seeds", *measures], rows)


def difference_text(difference: Difference | None, *, is_ratio: bool = False) -> str:
    """Format a mean with its interval, `+1.2 [+0.3, +2.1]`, or its values, `+1.2 (+0.4, +2.0)`.

    A ratio is passed as a difference of logarithms, and formatted as `×0.52 [0.31, 0.84]`.
    """
    if difference is None:
        return "-"
    mean, margin = difference.mean, difference.margin

    def text(value: float) -> str:
        return f"{math.exp(value):.2f}" if is_ratio else f"{value:+.1f}"

    whole = f"×{text(mean)}" if is_ratio else text(mean)
    if margin is not None:
        return f"{whole} [{text(mean - margin)}, {text(mean + margin)}]"
    values = ", ".join(map(text, difference.by_seed.values()))
    return f"{whole} ({values})" if difference.n > 1 else f"{whole} (one seed)"


def answers_csv(answers: Iterable[Answer]) -> str:
    """Format all differences with full precision as CSV, one row per pair and measure."""
    out = io.StringIO()
    writer = csv.writer(out)
    columns = ["question", "method", "partner", "measure"]
    writer.writerow([*columns, "pairs", "difference", "t margin", "by seed"])
    for found in answers:
        for measure, d in found.differences.items():
            name = f"log {measure}" if measure in RATIOS else measure
            row = [found.question, found.method, found.partner, name]
            by_seed = " ".join(f"{seed}:{value}" for seed, value in d.by_seed.items())
            writer.writerow([*row, d.n, d.mean, d.margin, by_seed])
    return out.getvalue()
