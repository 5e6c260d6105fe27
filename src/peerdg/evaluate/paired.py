"""Whether two methods differ: differences of runs with the same seed, and their interval."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerdg.errors import ConfigError
from peerdg.rng import seed_for

LEVEL = 0.95
RESAMPLES = 9999
# 97.5 % quantile of Student's t for the mean of so many values; scipy has it, if it is installed.
STUDENT = {
    2: 12.71,
    3: 4.303,
    4: 3.183,
    5: 2.777,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.307,
    10: 2.263,
}
PAIRS_TO_TRUST = 5
FEW_SEEDS = 10  # below, the bootstrap interval holds the mean in less than 90 % of cases


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, with the interval of the mean.

    Attributes:
        n: Pairs.
        mean: Mean of a - b.
        std: Sample standard deviation of a - b; None for one pair.
        low: Lower end of the 95 % interval; None if there is no interval.
        high: Upper end; None likewise.
        reason: Why there is no interval; empty if there is one.
        margin: Half the width of Student's 95 % interval; None if there is no interval.
    """

    n: int
    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    margin: float | None = None

    @property
    def is_clear(self) -> bool:
        """Whether neither the bootstrap interval nor Student's holds 0."""
        if self.low is None or self.high is None or self.margin is None:
            return False
        return not self.low <= 0 <= self.high and abs(self.mean) > self.margin


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """Estimate the mean of a - b over the seeds that both have; None if they share none.

    The interval is a bootstrap over seeds: bias-corrected and accelerated (BCa; Efron, "Better
    Bootstrap Confidence Intervals", JASA 82, 1987), by `scipy.stats.bootstrap`. Where BCa does not
    exist the percentiles of the resampled means stand in for it. Equal differences have no
    interval: resampling them gives no information.

    Over few seeds a bootstrap is too narrow: of five normal differences its interval holds the mean
    in about 84 % of the cases, of three in 73 %. Student's interval, mean ± t s / √n, is exact for
    normal differences, so a difference is called clear only if neither holds 0. Of fewer than five
    pairs the differences are now and then alike by chance, so s is then at least what it would be
    if `a` and `b` were not paired.

    Args:
        a: A number for each seed.
        b: The same of what it is compared with.

    Raises:
        ConfigError: If scipy is not installed.
    """
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return None
    differences = [a[seed] - b[seed] for seed in seeds]
    mean = math.fsum(differences) / len(differences)
    if len(differences) == 1:
        return Difference(1, mean, reason="one seed")
    std = float(np.std(differences, ddof=1))
    if math.isclose(max(differences), min(differences), abs_tol=1e-9):
        return Difference(len(seeds), mean, std, reason="equal in all seeds")
    low, high = bootstrap_interval(differences)
    s = _spread([a[seed] for seed in seeds], [b[seed] for seed in seeds])
    quantile = scipy_stats().t.ppf((1 + LEVEL) / 2, len(seeds) - 1)
    margin = float(quantile * s / math.sqrt(len(seeds)))
    return Difference(len(seeds), mean, std, low, high, margin=margin)


def _spread(a: Sequence[float], b: Sequence[float]) -> float:
    """Estimate the standard deviation of a - b; of a few pairs, not below that without pairing."""
    std = float(np.std(np.subtract(a, b), ddof=1))
    if len(a) >= PAIRS_TO_TRUST:
        return std
    return max(std, math.hypot(np.std(a, ddof=1), np.std(b, ddof=1)))


def is_beyond_chance(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether Student's interval of the mean difference excludes 0, see `paired_difference`.

    Does without scipy, for sentences of a report; of more than ten it asks a little too much.

    Args:
        a: A number for each seed.
        b: The same, in the same order, of what it is compared with; one pair shows nothing.
    """
    n, differences = len(a), np.subtract(a, b)
    if n < 2 or math.isclose(differences.max(), differences.min(), abs_tol=1e-9):
        return False
    margin = STUDENT[min(n, max(STUDENT))] * _spread(a, b) / math.sqrt(n)
    return abs(float(differences.mean())) > margin


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Compute the 95 % bootstrap interval of the mean of two or more values, not all equal.

    The same values always give the same interval.
    """
    stats = scipy_stats()
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a degenerate BCa is nan, which is looked for below
            found = stats.bootstrap(
                (np.asarray(values, dtype=np.float64),),
                np.mean,
                confidence_level=LEVEL,
                n_resamples=RESAMPLES,
                method=method,
                rng=np.random.default_rng(seed_for(0, "bootstrap")),
            ).confidence_interval
        if np.isfinite(found).all():
            break
    return float(found.low), float(found.high)


def scipy_stats() -> Any:
    """Import `scipy.stats`.

    Raises:
        ConfigError: If scipy is not installed.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise ConfigError(
            "Intervals need scipy.", hint="Install it with: pip install 'peerdg[compare]'"
        ) from error
    return stats
