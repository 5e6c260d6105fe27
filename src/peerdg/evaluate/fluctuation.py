"""Measure the fluctuation of target accuracy during training.

For each domain, the paper reports the variance of the target accuracy (in percent) over evaluations
taken every k epochs. A series runs to the end of training. Seeds are not pooled.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peerdg.data import is_target

BURN_IN_PERIODS = 5  # the authors' earlier manuscript leaves out the first five periods
LATE_PERIODS = 5  # evaluations in the late mean, because a single one is noisy
WINDOW = 5
MINIMUM = 3  # minimum length of a series. Two points never deviate from their trend


@dataclass(frozen=True)
class Fluctuation:
    """Statistics of one accuracy series a_1..a_T, in percent (var: percent squared)."""

    var: float  # population variance, mean (a - ā)²
    range: float  # max - min
    max_drawdown: float  # largest drop below the maximum so far
    mean_abs_step: float  # mean |a_t - a_{t-1}|
    detrended_var: float  # variance around a centered running mean of 5 points
    gap: float  # max - a_T


def fluctuation(accuracy: Sequence[float]) -> Fluctuation:
    """Compute the statistics of an accuracy series."""
    a = np.asarray(accuracy, dtype=np.float64)
    return Fluctuation(
        var=float(a.var()),
        range=float(np.ptp(a)),
        max_drawdown=float((np.maximum.accumulate(a) - a).max()),
        mean_abs_step=float(np.abs(np.diff(a)).mean()) if a.size > 1 else 0.0,
        detrended_var=float((a - _running_mean(a)).var()),
        gap=float(a.max() - a[-1]),
    )


def accuracy_series(
    records: Iterable[Mapping[str, Any]],
    *,
    model: str,
    every: int,
    burn_in_periods: int = BURN_IN_PERIODS,
) -> dict[str, list[float]]:
    """Collect the accuracies of `model` on each target, one per period of `every` epochs.

    The start (epoch 0), validation images (clean and crafted) and the first `burn_in_periods`
    periods are left out.
    """
    series: dict[str, list[float]] = {}
    for record in records:
        if record.get("kind") != "evaluation" or record["model"] != model:
            continue
        period, rest = divmod(record["epoch"], every)
        if rest == 0 and period > burn_in_periods and is_target(record["domain"]):
            series.setdefault(record["domain"], []).append(record["accuracy"])
    return series


@dataclass(frozen=True)
class RunFluctuation:
    """Fluctuation of one model in one run, under two readings of the paper's "Avg."."""

    mean: Fluctuation  # statistics of each domain, averaged over domains
    of_mean: Fluctuation  # statistics of the accuracy averaged over domains


def run_fluctuation(series: Mapping[str, Sequence[float]]) -> RunFluctuation | None:
    """Compute the fluctuation over all domains. Return None if a series is too short."""
    if not series or min(map(len, series.values())) < MINIMUM:
        return None
    domains = [astuple(fluctuation(accuracy)) for accuracy in series.values()]
    mean = [float(np.mean(values)) for values in zip(*domains, strict=True)]
    averaged = np.mean(list(series.values()), axis=0)
    return RunFluctuation(mean=Fluctuation(*mean), of_mean=fluctuation(averaged.tolist()))


def late_mean(series: Mapping[str, Sequence[float]]) -> float | None:
    """Average the last `LATE_PERIODS` accuracies of all domains. Return None if one has too few."""
    if not series or min(map(len, series.values())) < 2 * LATE_PERIODS:
        return None
    return float(np.mean([accuracy[-LATE_PERIODS:] for accuracy in series.values()]))


def _running_mean(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the centered mean of up to `WINDOW` values. The window shrinks at both ends."""
    half = np.minimum(np.minimum(np.arange(a.size), np.arange(a.size)[::-1]), WINDOW // 2)
    return np.array([a[i - h : i + h + 1].mean() for i, h in enumerate(half)])
