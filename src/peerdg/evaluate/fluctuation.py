"""How much target accuracy moves during training: the price of not knowing when to stop.

The paper reports the variance of the target accuracy, in percent, over evaluations taken every
k-th epoch, per domain. A series ends where training ended; nothing is pooled over seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peerdg.data import is_target

BURN_IN_PERIODS = 5  # the authors' earlier manuscript leaves out the first five periods
LATE_PERIODS = 5  # that stand for the end of training, where one evaluation is a matter of luck
WINDOW = 5
MINIMUM = 2  # points, below which nothing can move


@dataclass(frozen=True)
class Fluctuation:
    """Statistics of one accuracy series a_1..a_T, in percent (var: percent squared).

    Attributes:
        count: T.
        var: Population variance, mean (a - ā)².
        std: Its square root.
        range: max - min.
        max_drawdown: Largest fall below the maximum so far.
        mean_abs_step: mean |a_t - a_{t-1}|.
        detrended_var: Variance around a centred running mean of 5: movement without progress.
        final: a_T.
        best: max a.
        gap: best - final.
        worst_tail: Minimum over the last fifth.
    """

    count: int
    var: float
    std: float
    range: float
    max_drawdown: float
    mean_abs_step: float
    detrended_var: float
    final: float
    best: float
    gap: float
    worst_tail: float


def fluctuation(accuracy: Sequence[float]) -> Fluctuation:
    """Compute the statistics of an accuracy series.

    Raises:
        ValueError: If the series is empty.
    """
    a = np.asarray(accuracy, dtype=np.float64)
    if a.size == 0:
        raise ValueError("An empty accuracy series does not fluctuate.")
    tail = a[-max(1, -(-a.size // 5)) :]  # a fifth, rounded up
    return Fluctuation(
        count=a.size,
        var=float(a.var()),
        std=float(a.std()),
        range=float(np.ptp(a)),
        max_drawdown=float((np.maximum.accumulate(a) - a).max()),
        mean_abs_step=float(np.abs(np.diff(a)).mean()) if a.size > 1 else 0.0,
        detrended_var=float((a - _running_mean(a)).var()),
        final=float(a[-1]),
        best=float(a.max()),
        gap=float(a.max() - a[-1]),
        worst_tail=float(tail.min()),
    )


def accuracy_series(
    records: Iterable[Mapping[str, Any]],
    *,
    model: str,
    every: int,
    burn_in_periods: int = BURN_IN_PERIODS,
) -> dict[str, list[float]]:
    """Collect per target the accuracies of `model` after each period of `every` epochs.

    The start (epoch 0), the source's own validation images, whether clean or crafted, and the
    first `burn_in_periods` periods are left out.
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
    """Fluctuation of one model of one run.

    Attributes:
        domains: Each target domain's statistics.
        mean: Mean of the domains' statistics; the paper's "Avg." column, one reading.
        of_mean: Statistics of the domain-averaged series; the other reading.
    """

    domains: dict[str, Fluctuation]
    mean: Fluctuation
    of_mean: Fluctuation


def run_fluctuation(series: Mapping[str, Sequence[float]]) -> RunFluctuation | None:
    """Compute the fluctuation of every domain and of their average; None below two points."""
    if not series or min(map(len, series.values())) < MINIMUM:
        return None
    domains = {name: fluctuation(accuracy) for name, accuracy in series.items()}
    rows = [asdict(value) for value in domains.values()]
    mean = {f.name: float(np.mean([row[f.name] for row in rows])) for f in fields(Fluctuation)}
    averaged = np.mean(list(series.values()), axis=0)
    return RunFluctuation(
        domains=domains,
        mean=Fluctuation(count=int(mean.pop("count")), **mean),
        of_mean=fluctuation(averaged.tolist()),
    )


def late_mean(series: Mapping[str, Sequence[float]]) -> float | None:
    """Average the last `LATE_PERIODS` accuracies over all domains; None if these are over half."""
    if not series or min(map(len, series.values())) < 2 * LATE_PERIODS:
        return None
    return float(np.mean([accuracy[-LATE_PERIODS:] for accuracy in series.values()]))


def _running_mean(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the centred mean of up to `WINDOW` values; the window shrinks at both ends alike."""
    half = np.minimum(np.minimum(np.arange(a.size), np.arange(a.size)[::-1]), WINDOW // 2)
    return np.array([a[i - h : i + h + 1].mean() for i, h in enumerate(half)])
