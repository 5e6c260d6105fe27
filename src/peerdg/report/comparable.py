"""Whether runs can stand side by side, and what differs between them besides their methods."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from peerdg.data import VALIDATION
from peerdg.errors import ConfigError
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.methods.registry import method_names
from peerdg.report.result import FROZEN, RECONSTRUCTED, RunResult
from peerdg.report.variants import MANY, Groups, data_names, differs

TRAINING_IMAGES = "training images"  # in a list of what differs
_PHASES = {"pretrain": "pre-training", "train": "training"}


def require_comparable(runs: Sequence[RunResult]) -> None:
    """Refuse to put results side by side that were measured on different data or in different ways.

    Every finished run is looked at, not one of each variant.

    Raises:
        ConfigError: If finished runs differ in their data set or their targets, were judged on
            other images under the same names, or follow different rules for batch statistics.
    """
    finished = [run for run in runs if run.status == "done" and run.evaluations]
    hint = "Compare those with the same targets only, by naming their folders."
    data = {(run.config["benchmark"], *run.targets): run for run in finished}
    if len(data) > 1:
        found = "; ".join(
            f"{run.data}: {', '.join(run.targets) or 'none'}" for _, run in sorted(data.items())
        )
        raise ConfigError(f"These runs have different data or targets ({found}).", hint=hint)
    if changed := _with_other_images(run.evaluation_fingerprints for run in finished):
        judged = ", ".join(dict.fromkeys(run.data for run in finished))
        what = "targets" if finished[0].targets else "validation images"
        raise ConfigError(
            f"The {what} of these runs have the same names but other images "
            f"({', '.join(changed)}; data: {judged}).",
            hint=hint,
        )
    _require_one_rule(finished)


def _with_other_images(fingerprints: Iterable[Mapping[str, str]]) -> list[str]:
    """List the domains with more than one fingerprint; unknown ones do not count."""
    known: dict[str, set[str]] = {}
    for parts in fingerprints:
        for name, fingerprint in parts.items():
            known.setdefault(name, set()).add(fingerprint)
    return [name.removeprefix("target:") for name, found in known.items() if len(found) > 1]


def _require_one_rule(runs: Sequence[RunResult]) -> None:
    """Refuse runs that were evaluated with different batch statistics.

    Networks that were trained with frozen ones are the same under every rule.
    """
    ruled = [run for run in runs if run.batch_statistics not in (None, FROZEN)]
    rules = sorted({str(run.batch_statistics) for run in ruled})
    # Runs that are older than the rule stay comparable to each other; the table labels them.
    if len(rules) > 1 and any(run.has_statistics_rule for run in ruled):
        raise ConfigError(
            f"These runs were evaluated with different batch statistics ({'; '.join(rules)}).",
            hint="Compare those with the same --batch-statistics only, by naming their folders.",
        )


def shared_options(run: RunResult) -> dict[str, Any]:
    """Select the options outside the method's own section."""
    # Batch statistics follow one rule in a comparison, and the table has a column for them.
    own = {*method_names(), str(run.config["method"]), "method", "batch_statistics"}
    return {k: v for k, v in run.options.items() if k.partition(".")[0] not in own}


def differing(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the options that do not have the same value everywhere."""
    names = dict.fromkeys(name for values in options for name in values)
    return [name for name in names if differs(name, options)]


def training_images(groups: Iterable[Sequence[RunResult]]) -> set[str]:
    """Collect the fingerprints of the training images, as far as they are known."""
    return {run.train_fingerprint for group in groups for run in group if run.train_fingerprint}


def differences(groups: Groups) -> list[str]:
    """List what differs between rows besides methods' own options: options, training images."""
    found = differing([shared_options(group[0]) for group in groups.values()])
    images = [TRAINING_IMAGES] if len(training_images(groups.values())) > 1 else []
    return found + images


def comparison_notes(groups: Groups) -> list[str]:
    """Say what keeps the rows of a comparison from being comparable, in sentences."""
    return [*_reconstruction_note(groups), *accuracy_notes(groups), *_period_notes(groups)]


def _reconstruction_note(groups: Groups) -> list[str]:
    return [RECONSTRUCTED] if any(group[0].is_reconstruction for group in groups.values()) else []


def accuracy_notes(groups: Groups) -> list[str]:
    """Say what keeps accuracies from being comparable, in sentences."""
    return [
        *_fruitless_notes(groups),
        *_training_note(groups),
        *_steps_note(groups),
        *_start_notes(groups),
        *_validation_note(groups),
    ]


def _fruitless_notes(groups: Groups) -> list[str]:
    """Name runs whose network died on the way: they say something about a rate only."""
    return [
        f"{name}, seed {run.seed}: {_PHASES[phase]} has learnt nothing, so the row says little "
        "about the method."
        for name, group in groups.items()
        for run in group
        for phase in run.fruitless_phases
    ]


def _training_note(groups: Groups) -> list[str]:
    if len(training_images(groups.values())) < 2:
        return []
    known = {
        (name, run.train_fingerprint): run
        for name, group in groups.items()
        for run in group
        if run.train_fingerprint
    }
    names = data_names(list(known.values()))
    rows = "; ".join(f"{name}: {data}" for (name, _), data in zip(known, names, strict=True))
    return [
        f"Rows were trained on different images ({rows}): a difference between them is not due to "
        "the method alone."
    ]


def steps_differ(groups: Iterable[Sequence[RunResult]]) -> bool:
    """Whether runs took different numbers of optimizer steps, as far as these are known."""
    found = {run.steps for group in groups for run in group}
    return len(found - {None}) > 1


def _steps_note(groups: Groups) -> list[str]:
    if not steps_differ(groups.values()):
        return []
    rows = "; ".join(f"{name}: {_steps_text(group)}" for name, group in groups.items())
    return [
        f"Rows were trained for different numbers of optimizer steps ({rows}): a difference "
        "between them is not due to the method alone."
    ]


def _steps_text(group: Sequence[RunResult]) -> str:
    """Format as `480`, or `480 to 960` if runs of one row differ."""
    found = sorted({run.steps for run in group if run.steps is not None})
    return " to ".join(f"{steps:,}" for steps in dict.fromkeys(found[:1] + found[-1:])) or "unknown"


def starts_of(group: Sequence[RunResult]) -> dict[int, str]:
    """Collect by seed the initial weights of the user's own network, as far as they are known."""
    return {run.seed: start for run in group if (start := run.inputs.network_weights)}


def _start_notes(groups: Groups) -> list[str]:
    found = {name: starts_of(group) for name, group in groups.items()}
    return [
        f"The networks of {name} have other initial weights with each seed ("
        + ", ".join(f"{seed}: {start}" for seed, start in starts.items())
        + ")."
        for name, starts in found.items()
        if len(set(starts.values())) > 1
    ]


def _validation_note(groups: Groups) -> list[str]:
    runs = [run for group in groups.values() for run in group]
    parts = [{VALIDATION: run.fingerprints.get(VALIDATION, "")} for run in runs]
    if not _with_other_images(part for part in parts if part[VALIDATION]):
        return []
    return [
        "The validation images differ between runs: source val and crafted val, and what is "
        "selected by them, were not measured on the same images."
    ]


def _period_notes(groups: Groups) -> list[str]:
    """Say where the fluctuation is not over every k-th epoch, or not over the same epochs."""
    first = {name: group[0] for name, group in groups.items()}
    notes = [
        f"Fluctuation of {name} is over evaluations every {run.period} epochs, the first "
        f"{BURN_IN_PERIODS * run.period} epochs left out, and not every k epochs: k is {run.k}, "
        f"but it was evaluated every {run.config['evaluate_every']} epochs."
        for name, run in first.items()
        if run.k is not None and run.k != run.period
    ]
    rows: dict[int, list[str]] = {}
    for name, run in first.items():
        rows.setdefault(run.period, []).append(name)
    if len(rows) > 1:
        most = max(rows.values(), key=len) if len(first) > MANY else []
        lengths = "; ".join(
            f"{period}: {'the others' if names is most else ', '.join(names)}"
            for period, names in sorted(rows.items())
        )
        notes.append(
            f"Fluctuation has periods of different lengths, in epochs ({lengths}); the variances "
            "of these rows cannot be compared."
        )
    return notes
