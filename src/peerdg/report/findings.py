"""Sentences about compared runs that their numbers support, whichever way they point.

No method is known here by name. A run has up to three ingredients: augmentation and an objective
of its own, which its method's metadata name, and an average that is deployed in place of the
trained network, which its records name. Runs are compared with baselines that have fewer.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np

from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.evaluate.paired import is_beyond_chance
from peerdg.methods.metadata import OFF, components, parts_of
from peerdg.methods.registry import title_of
from peerdg.report.comparable import (
    differing,
    shared_options,
    starts_of,
    steps_differ,
    training_images,
)
from peerdg.report.result import RunResult
from peerdg.report.variants import MANY, Groups

AUGMENTATION, AVERAGING, OBJECTIVE = "augmentation", "averaging", "objective"
# What decides when and on what a run is evaluated, or names a preset: not the last accuracy.
_WITHOUT_EFFECT_AT_THE_END = {"budget", "evaluate_every", "crafted", "crafted_images"}
TRAINING_STEPS = "training steps"  # in a list of what differs
# What decides the number of steps; where one of these differs, it says enough.
_DECIDES_STEPS = {"train.epochs", "train.batch_size", "train.steps_per_epoch", "train.epoch_of"}


def findings(groups: Groups) -> list[str]:
    """State differences between methods, and whether an average is steadier than its network."""
    messages = [
        _compare(a, b, groups, also)
        for a, b, also in _pairs(groups)
        if _paired(groups[a], groups[b])[0] and not (also and len(groups) > MANY)
    ]
    steady = [
        _steadiness(name, group)
        for name, group in groups.items()
        if group[0].averages and not group[0].combined_from
    ]
    return messages + steady


def ingredients(run: RunResult) -> frozenset[str]:
    """List what a run has beyond cross-entropy on clean images."""
    has = {
        AUGMENTATION: run.augments,
        AVERAGING: run.averages,
        OBJECTIVE: run.settings is None or not run.settings.is_baseline,
    }
    return frozenset(name for name, present in has.items() if present)


def _pairs(groups: Groups) -> list[tuple[str, str, list[str]]]:
    """Pair variants with a baseline, and name the options in which they also differ.

    Only variants that learnt from the same images are compared; of several, only those that share
    everything else.
    """
    plainest_first = sorted(groups, key=lambda name: len(ingredients(groups[name][0])))
    variants = Counter(group[0].method for group in groups.values())
    found = []
    for a, b in product(plainest_first, plainest_first):
        run, baseline = groups[a][0], groups[b][0]
        if _is_compared(run, baseline):
            alone = variants[run.method] == variants[baseline.method] == 1
            also = _other_differences(groups[a], groups[b])
            same_images = len(training_images((groups[a], groups[b]))) < 2
            if same_images and (alone or not also):
                found.append((a, b, also))
    return found


def _is_compared(run: RunResult, baseline: RunResult) -> bool:
    """Whether the difference of two runs shows what an objective, or augmentation, is worth."""
    if run.settings is None or baseline.settings is None:
        return False  # of another version or a plugin: its ingredients are not known
    has, less = ingredients(run), ingredients(baseline)
    worth_it = OBJECTIVE in has or has == {AUGMENTATION}
    return worth_it and OBJECTIVE not in less and less < has


def _other_differences(a: Sequence[RunResult], b: Sequence[RunResult]) -> list[str]:
    """List options besides the methods' own in which two variants differ, if they matter."""
    if _is_same_method(a[0], b[0]):
        options = [a[0].options, b[0].options]
    else:
        options = [shared_options(a[0]), shared_options(b[0])]
    unused = _unused_by(a[0], b[0])
    found = [name for name in differing(options) if name not in unused]
    if not b[0].augments:
        found = [name for name in found if not name.startswith("augment.")]
    if not b[0].averages:
        found = [name for name in found if not name.startswith("average.")]
    elif not _is_same_method(a[0], b[0]):
        found = [name for name in found if name not in a[0].average]
        found += differing([a[0].average, b[0].average])
    starts, others = starts_of(a), starts_of(b)
    if any(starts[seed] != others[seed] for seed in starts.keys() & others.keys()):
        found.append("initial weights")
    if steps_differ((a, b)) and not _DECIDES_STEPS.intersection(found):
        found.append(TRAINING_STEPS)
    return found


def _unused_by(a: RunResult, b: RunResult) -> set[str]:
    """List options without effect on the last accuracy of `b`, such as those of what it lacks."""
    unused = set(_WITHOUT_EFFECT_AT_THE_END)
    if b.settings is not None and _is_same_method(a, b) and (component := _ablated(a, b)):
        unused |= {f"{b.config['method']}.{name}" for name in parts_of(b.settings, component)}
    return unused


def _is_same_method(a: RunResult, b: RunResult) -> bool:
    return bool(a.config["method"] == b.config["method"])


def _ablated(a: RunResult, b: RunResult) -> str | None:
    """Name the one component that `a` has and `b` lacks; None if it has no name."""
    if a.settings is None or b.settings is None or ingredients(a) - ingredients(b) != {OBJECTIVE}:
        return None
    present = [name for name in components(a.settings) if getattr(a.settings, name) != OFF]
    if _is_same_method(a, b):
        present = [name for name in present if getattr(b.settings, name) == OFF]
    return present[0] if len(present) == 1 else None


def _compare(a: str, b: str, groups: Groups, also: Sequence[str]) -> str:
    """Say which of two is more accurate, if that is more than the seeds differ by chance."""
    run, baseline = groups[a][0], groups[b][0]
    ours, theirs = _paired(groups[a], groups[b])
    by_seed = list(np.subtract(ours, theirs))
    gain = float(np.mean(by_seed))
    is_clear = is_beyond_chance(ours, theirs)
    if is_clear or len(by_seed) < 2:
        verdict = f"is {abs(gain):.1f} points {'above' if gain > 0 else 'below'} {b}"
        sentence = f"{a} {verdict} on the target mean{' in one seed' if len(by_seed) == 1 else ''}"
    else:
        spread = f"{gain:+.1f} points; single seeds from {min(by_seed):+.1f} to {max(by_seed):+.1f}"
        seeds = f"by {len(by_seed)} seeds"
        sentence = f"{a} and {b} are not told apart {seeds} on the target mean ({spread})"
    if also:
        sentence += f"; they also differ in {', '.join(also)}"
    elif component := _ablated(run, baseline):
        pays = (
            f"at this budget the {component} {'pays' if gain > 0 else 'does not pay'} in accuracy"
        )
        not_shown = f"whether the {component} pays at this budget is not shown"
        sentence += f"; {pays if is_clear else not_shown}"
    return f"{_about(run, baseline)}: {sentence}."


def _paired(a: Sequence[RunResult], b: Sequence[RunResult]) -> tuple[list[float], list[float]]:
    """Return the target means of runs with the same seed; none without targets."""
    ours, theirs = (
        {run.seed: run.target_mean(run.deployed) for run in group if run.targets}
        for group in (a, b)
    )
    seeds = sorted(ours.keys() & theirs.keys())
    return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]


def _about(run: RunResult, baseline: RunResult) -> str:
    """Say what a comparison shows: `PEER against augmentation alone`."""
    has = ingredients(baseline)
    if OBJECTIVE not in ingredients(run):
        return f"{AUGMENTATION} alone"
    without = f", without {component}" if (component := _ablated(run, baseline)) else ""
    if not has:
        plain = f"no {AUGMENTATION}" if run.augments else "cross-entropy alone"
        return f"{title_of(run.method)} against {plain}{without}"
    named = " with ".join(name for name in (AUGMENTATION, AVERAGING) if name in has)
    alone = " alone" if len(has) == 1 else ""
    return f"{title_of(run.method)} against {named}{alone}{without}"


def _steadiness(name: str, group: Sequence[RunResult]) -> str:
    pairs = [
        (deployed.mean.var, trained.mean.var)
        for run in group
        if (deployed := run.fluctuation(run.deployed)) and (trained := run.fluctuation(run.trained))
    ]
    if not pairs:
        return f"{name}: too few periods after the first {BURN_IN_PERIODS} to speak of fluctuation."
    steadier = sum(deployed < trained for deployed, trained in pairs)
    seeds = "every seed" if steadier == len(pairs) else f"{steadier} of {len(pairs)} seeds"
    seeds = "" if len(pairs) == 1 else f" in {seeds}"
    verdict = "less" if steadier or len(pairs) > 1 else "not less"
    deployed, trained = np.mean(pairs, axis=0)
    return (
        f"{name}: the deployed network ({group[0].deployed}) fluctuates {verdict} than the trained "
        f"one ({group[0].trained}){seeds}: {deployed:.2f} and {trained:.2f}."
    )
