"""Group runs that differ only in their seed, and call the groups by what differs between them."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from peerdg.report.runs import WITHOUT_EFFECT, RunResult

DATA = "data"  # as an option in a label: the images that were learnt from
_NAMED = 4  # options in a label; of more, the fewest that tell the variants apart
_FINGERPRINT = 6  # characters of it, where two folders have the same name

Groups = Mapping[str, Sequence[RunResult]]


def by_variant(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Finished runs that differ only in their seed, under a short name that is unique.

    A method with one variant is called by its name; several have the options that differ between
    them beside it, `peer w=0.1`.
    """
    groups = list(filter(None, _grouped(runs).values()))
    by_method: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        by_method.setdefault(group[0].method, []).append(number)
    labels: dict[int, str] = {}
    for method, numbers in by_method.items():
        names = _labels(method, [groups[number][0] for number in numbers])
        labels.update(zip(numbers, names, strict=True))
    return {
        labels[number]: sorted(group, key=lambda run: run.seed)
        for number, group in enumerate(groups)
    }


def variant_differences(groups: Groups) -> list[str]:
    """For each method with several variants, every option in which they differ."""
    by_method: dict[str, list[RunResult]] = {}
    for group in groups.values():
        by_method.setdefault(group[0].method, []).append(group[0])
    said = []
    for method, runs in by_method.items():
        if options := _differing(runs):
            parts = [f"{key} ({', '.join(map(_shown, values))})" for key, values in options.items()]
            said.append(f"The variants of {method} differ in {'; '.join(parts)}.")
    return said


def _grouped(runs: Sequence[RunResult]) -> dict[tuple[str, str], list[RunResult]]:
    """Runs by options and training images; records that do not name their images fit any."""
    groups: dict[tuple[str, str], list[RunResult]] = {}
    known = [run for run in runs if run.trained_on]
    places = {run.variant: (run.variant, run.trained_on) for run in reversed(known)}
    for run in runs:
        place = (run.variant, run.trained_on)
        if not run.trained_on:
            place = places.get(run.variant, place)
        group = groups.setdefault(place, [])
        # The same seed again is the same result again, not another sample.
        if run.status == "done" and run.evaluations and run.seed not in {r.seed for r in group}:
            group.append(run)
    return groups


def _labels(method: str, runs: Sequence[RunResult]) -> list[str]:
    """A name for each variant of a method, from the options in which they differ."""
    if len(runs) == 1:
        return [method]
    options = _differing(runs)
    named = list(options) if len(options) <= _NAMED else _fewest(options)
    short = [key.rpartition(".")[2] for key in named]
    shown = {key: s if short.count(s) == 1 else key for key, s in zip(named, short, strict=True)}
    columns = [[f"{shown[key]}={_shown(value)}" for value in options[key]] for key in named]
    return [" ".join([method, *parts]) for parts in zip(*columns, strict=True)]


def _differing(runs: Sequence[RunResult]) -> dict[str, list[Any]]:
    """Each option with more than one value among `runs`, the method's own first: its values."""
    method = str(runs[0].config["method"])
    flat = [_flat(run.config) for run in runs]
    keys = sorted(
        dict.fromkeys(key for options in flat for key in options if key not in WITHOUT_EFFECT),
        key=lambda key: (key != "budget", not key.startswith(f"{method}.")),
    )
    found: dict[str, list[Any]] = {key: [o.get(key) for o in flat] for key in keys}
    found = {key: values for key, values in found.items() if len(set(map(repr, values))) > 1}
    if found.get("evaluate_every") == found.get(f"{method}.k"):
        found.pop("evaluate_every", None)  # follows k unless it is given
    if len({run.trained_on for run in runs}) > 1:
        found[DATA] = list(_data_names(runs))
    rules = [run.batch_statistics for run in runs]
    if len(set(rules)) > 1:
        found["batch_statistics"] = rules
    return found


def _data_names(runs: Sequence[RunResult]) -> list[str]:
    """What each run was trained on; folders of one name with other images keep a fingerprint."""
    images: dict[str, set[str]] = {}
    for run in runs:
        images.setdefault(run.data, set()).add(run.trained_on)
    return [
        run.data if len(images[run.data]) == 1 else f"{run.data}@{run.trained_on[:_FINGERPRINT]}"
        for run in runs
    ]


def _fewest(options: Mapping[str, Sequence[Any]]) -> list[str]:
    """The smallest set of options whose values tell all variants apart, the first of its size."""
    variants = len(next(iter(options.values())))
    for size in range(1, _NAMED + 1):
        for keys in combinations(options, size):
            values = zip(*(map(repr, options[key]) for key in keys), strict=True)
            if len(set(values)) == variants:
                return list(keys)
    return list(options)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"peer": {"w": 2}} -> {"peer.w": 2}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[key] = value
    return flat


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(_shown, value)) if isinstance(value, list) else str(value)
