"""Group runs that differ only in their seed, and call the groups by what differs between them."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from peerdg.report.result import AUGMENT, OPERATIONS_REVISION, UNKNOWN, RunResult

DATA = "data"  # as an option in a label: the images that were learnt from
START = "initial_weights"  # likewise: of the user's own network
MANY = 8  # variants; of more, curves in one picture, or sentences on every pair, hide each other
_NAMED = 4  # options in a label; of more, the fewest that tell the variants apart
_FINGERPRINT = 6  # characters of it, where two folders have the same name

Groups = Mapping[str, Sequence[RunResult]]


def by_variant(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Group finished runs that differ only in their seed, under a short unique name.

    A method with one variant is called by its name; several have the options that differ between
    them beside it, `erm lr=0.1`. Rows of a bench are called as the bench calls them.
    """
    groups = list(filter(None, _grouped(runs).values()))
    by_method: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        by_method.setdefault(group[0].marked_method, []).append(number)
    labels: dict[int, str] = {}
    for method, numbers in by_method.items():
        names = _labels(method, [groups[number][0] for number in numbers])
        labels.update(zip(numbers, names, strict=True))
    rows = {n: group[0].marked_row for n, group in enumerate(groups) if _has_one_row(group)}
    named = {**labels, **rows}
    if len({*named.values()}) < len(groups):
        named = labels  # two benches have a row of one name
    return {
        named[number]: sorted(group, key=lambda run: run.seed)
        for number, group in enumerate(groups)
    }


def _has_one_row(group: Sequence[RunResult]) -> bool:
    return bool(group[0].row) and len({run.row for run in group}) == 1


def variant_differences(groups: Groups) -> list[str]:
    """List every option in which the variants of a method differ, for methods with several.

    Of a few variants the values stand side by side; each of many is told apart from the first.
    """
    by_method: dict[str, dict[str, RunResult]] = {}
    for name, group in groups.items():
        by_method.setdefault(group[0].method, {})[name] = group[0]
    sentences = []
    for method, runs in by_method.items():
        options = {key: _column(v) for key, v in _differing(list(runs.values())).items()}
        if len(runs) > _NAMED:
            sentences += _each_of_many(list(runs), options)
        elif options:
            parts = [f"{key} ({', '.join(values)})" for key, values in options.items()]
            sentences.append(f"The variants of {method} differ in {'; '.join(parts)}.")
    return sentences


def _each_of_many(names: Sequence[str], options: Mapping[str, Sequence[str]]) -> list[str]:
    """Say of each variant in what it differs from the first."""
    return [
        f"{name} is {names[0]} with "
        + ", ".join(f"{key} {v[place]}" for key, v in options.items() if v[place] != v[0])
        + "."
        for place, name in enumerate(names)
        if place
    ]


def _grouped(runs: Sequence[RunResult]) -> dict[tuple[str, ...], list[RunResult]]:
    """Group runs by options, training images and, of one's own network, where it starts.

    Records that do not name their images fit any.
    """
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    images = {run.variant: run.train_fingerprint for run in reversed(runs) if run.train_fingerprint}
    several_starts = _with_several_starts(runs)
    for run in runs:
        start = str(run.inputs.network_weights) if run.variant in several_starts else ""
        place = (run.variant, run.train_fingerprint or images.get(run.variant, ""), start)
        group = groups.setdefault(place, [])
        # The same seed again is the same result again, not another sample.
        if run.status == "done" and run.evaluations and run.seed not in {r.seed for r in group}:
            group.append(run)
    return groups


def _with_several_starts(runs: Sequence[RunResult]) -> set[str]:
    """Find variants in which one seed has several initial weights of the user's own network.

    A network that is made anew for each seed has other weights with each; that is what a mean over
    seeds is for, and `comparison_notes` reports it. Other weights under the same seed are another
    start, such as weights that have been trained.
    """
    starts: dict[tuple[str, int], set[str | None]] = {}
    for run in runs:
        starts.setdefault((run.variant, run.seed), set()).add(run.inputs.network_weights)
    return {variant for (variant, _), found in starts.items() if len(found) > 1}


def _labels(method: str, runs: Sequence[RunResult]) -> list[str]:
    """Name each variant of a method by the options in which they differ."""
    if len(runs) == 1:
        return [method]
    options = _differing(runs)
    named = list(options) if len(options) <= _NAMED else _fewest(options)
    short = [key.rpartition(".")[2] for key in named]
    shown = {key: s if short.count(s) == 1 else key for key, s in zip(named, short, strict=True)}
    columns = [[_part(shown[key], text) for text in _column(options[key])] for key in named]
    return _numbered([" ".join([method, *parts]) for parts in zip(*columns, strict=True)])


def _part(key: str, text: str) -> str:
    """Format an option in a name: `w=0.1`; `operations revision 2`, which is no option."""
    return f"{key} {text}" if key == OPERATIONS_REVISION else f"{key}={text}"


def _numbered(labels: Sequence[str]) -> list[str]:
    """Make labels unique: those that are not get a number."""
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[: place + 1].count(label)})"
        for place, label in enumerate(labels)
    ]


def _differing(runs: Sequence[RunResult]) -> dict[str, list[Any]]:
    """Collect the values of each option with more than one among `runs`, the method's own first."""
    method = str(runs[0].config["method"])
    flat = [run.options for run in runs]
    keys = sorted(
        dict.fromkeys(key for options in flat for key in options),
        key=lambda key: (key != "budget", not key.startswith(f"{method}.")),
    )
    found: dict[str, list[Any]] = {key: [o.get(key) for o in flat] for key in keys}
    found = {key: values for key, values in found.items() if differs(key, flat)}
    if found.get("evaluate_every") == found.get(f"{method}.{runs[0].period_option}"):
        found.pop("evaluate_every", None)  # follows the period unless it is given
    if len({run.train_fingerprint for run in runs}) > 1:
        found[DATA] = list(data_names(runs))
    if len(set(zip(*(map(repr, values) for values in found.values()), strict=True))) < len(runs):
        starts = [run.inputs.network_weights or UNKNOWN for run in runs]
        found |= {START: starts} if len(set(starts)) > 1 else {}
    return found


def differs(name: str, options: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an option has several values; those of the augmentation only where there is one."""
    if name == OPERATIONS_REVISION or name.startswith(AUGMENT):
        options = [values for values in options if OPERATIONS_REVISION in values]
    return len({repr(values.get(name)) for values in options}) > 1


def data_names(runs: Sequence[RunResult]) -> list[str]:
    """Name the data of each run; folders of one name with other images keep a fingerprint."""
    images: dict[str, set[str]] = {}
    for run in runs:
        images.setdefault(run.data, set()).add(run.train_fingerprint)
    return [
        run.data
        if len(images[run.data]) == 1
        else f"{run.data}@{run.train_fingerprint[:_FINGERPRINT]}"
        for run in runs
    ]


def _fewest(options: Mapping[str, Sequence[Any]]) -> list[str]:
    """Find the smallest set of options that tells all variants apart, the first of its size."""
    variants = len(next(iter(options.values())))
    for size in range(1, _NAMED + 1):
        for keys in combinations(options, size):
            values = zip(*(map(repr, options[key]) for key in keys), strict=True)
            if len(set(values)) == variants:
                return list(keys)
    return list(options)


def _column(values: Sequence[Any]) -> list[str]:
    """Format the values of an option; numbers in full where six digits do not differ."""
    short = [_shown(value) for value in values]
    if len(set(short)) == len(set(map(repr, values))):
        return short
    return [_shown(value, in_full=True) for value in values]


def _shown(value: Any, *, in_full: bool = False) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if in_full else f"{value:g}"
    if isinstance(value, list | tuple):
        return "none" if not value else ",".join(_shown(item, in_full=in_full) for item in value)
    return str(value)
