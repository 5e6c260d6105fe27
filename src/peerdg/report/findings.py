"""Sentences about compared runs that their numbers support, whichever way they point."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.report.comparable import differing, shared_options, starts_of, training_images
from peerdg.report.runs import REVISION, RunResult
from peerdg.report.variants import Groups

COMPARED = (
    ("randaugment", "erm", "augmentation alone"),
    ("peer", "erm", "PEER against no augmentation"),
    ("peer", "randaugment", "PEER against augmentation alone"),
    ("peer", "p-ens", "PEER against augmentation with averaging, without regulariser"),
)
# What decides when and on what a run is evaluated, or names a preset: not the last accuracy.
_WITHOUT_EFFECT_AT_THE_END = {"budget", "evaluate_every", "crafted", "crafted_images"}
# What P-ENS, PEER without its regulariser, makes no use of.
_REGULARISER = {f"peer.{name}" for name in ("w", "regulariser", "lam", "tau")}


def findings(groups: Groups) -> list[str]:
    """Differences between methods, and whether the task model is steadier than its proxy."""
    mean = {
        name: float(np.mean([run.target_mean(run.deployed) for run in group]))
        for name, group in groups.items()
        if group[0].targets
    }
    messages = [
        _compare(mean, a, b, about, also)
        for better, worse, about in COMPARED
        for a, b, also in _pairs(groups, better, worse)
        if a in mean and b in mean
    ]
    steady = [_steadiness(name, group) for name, group in groups.items() if _has_task(group)]
    return messages + steady


def _pairs(groups: Groups, better: str, worse: str) -> list[tuple[str, str, list[str]]]:
    """Variants of two methods to compare, and the options in which they also differ.

    Only variants that learnt from the same images are compared; of several, only those that share
    everything else.
    """
    first, second = (
        [name for name in groups if _method(name) == method] for method in (better, worse)
    )
    alone = len(first) == len(second) == 1
    found = []
    for a, b in product(first, second):
        also = _also(groups[a], groups[b], worse)
        same_images = len(training_images((groups[a], groups[b]))) < 2
        if same_images and (alone or not also):
            found.append((a, b, also))
    return found


def _also(a: Sequence[RunResult], b: Sequence[RunResult], worse: str) -> list[str]:
    """Options besides the methods' own in which two variants differ, with effect on accuracy."""
    options = [shared_options(a[0]), shared_options(b[0])]
    if worse == "p-ens":  # the same method, so its options must agree, too
        options = [a[0].options, b[0].options]
    found = [name for name in differing(options) if not _is_irrelevant(name, worse)]
    starts, others = starts_of(a), starts_of(b)
    if any(starts[seed] != others[seed] for seed in starts.keys() & others.keys()):
        found.append("initial weights")
    return found


def _is_irrelevant(option: str, worse: str) -> bool:
    if worse == "erm" and (option.startswith("augment.") or option == REVISION):
        return True  # ERM does not augment
    if worse == "p-ens" and (option in _REGULARISER or option.startswith("peer.head")):
        return True
    return option in _WITHOUT_EFFECT_AT_THE_END


def _compare(mean: Mapping[str, float], a: str, b: str, about: str, also: Sequence[str]) -> str:
    gain = mean[a] - mean[b]
    verdict = "above" if gain > 0 else "below"
    sentence = f"{about}: {a} is {abs(gain):.1f} points {verdict} {b} on the target mean"
    if also:
        sentence += f"; they also differ in {', '.join(also)}"
    elif (_method(a), _method(b)) == ("peer", "p-ens"):
        lesson = "pays" if gain > 0 else "does not pay"
        sentence += f"; at this budget the regulariser {lesson} in accuracy"
    return sentence + "."


def _method(name: str) -> str:
    """The method of a variant, from its name."""
    return name.partition(" ")[0]


def _steadiness(name: str, group: Sequence[RunResult]) -> str:
    task, proxy = (_variance(group, model) for model in ("task", "proxy"))
    if task is None or proxy is None:
        return f"{name}: too few periods after the first {BURN_IN_PERIODS} to speak of fluctuation."
    verdict = "less" if task < proxy else "not less"
    return (
        f"{name}: the task model fluctuates {verdict} than its proxy ({task:.2f} and {proxy:.2f})."
    )


def _variance(group: Sequence[RunResult], model: str) -> float | None:
    found = [run.fluctuation(model) for run in group]
    values = [f.mean.var for f in found if f is not None]
    return float(np.mean(values)) if values else None


def _has_task(group: Sequence[RunResult]) -> bool:
    return "task" in group[0].models
