"""Intervals of accuracies and of paired differences, as numbers and as text."""

import importlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerdg.errors import ConfigError
from peerdg.rng import seed_for

FEW = 100  # images, below which an accuracy is shown with its interval
LEVEL = 0.95
RESAMPLES = 9999
PAIRS_TO_TRUST = 5
FEW_SEEDS = 10  # below, the bootstrap interval contains the mean in less than 90 % of cases
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution: 95 % on both sides


def wilson(correct: float, n: int) -> tuple[float, float]:
    """Compute the 95 % score interval of an accuracy, in percent.

    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the
    American Statistical Association 22, 1927. It stays inside 0 to 100 and is not empty at
    either end.
    """
    p, z2 = correct / n, _Z**2
    center = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    return 100 * max(0.0, center - half), 100 * min(1.0, center + half)


def accuracy_text(accuracy: float, n: int | None, *, digits: int = 1, with_n: bool = True) -> str:
    """Format as `78.6 (64-89, n=42)`, with the 95 % interval for fewer than 100 images.

    The interval is rounded outwards to whole percent. None stands for an unknown number of images.
    """
    if n is None or n >= FEW or n < 1:
        return f"{accuracy:.{digits}f}"
    low, high = wilson(accuracy / 100 * n, n)
    images = f", n={n}" if with_n else ""
    return f"{accuracy:.1f} ({math.floor(low)}-{math.ceil(high)}{images})"


def few_images(n: int | None) -> str:
    """Format as ` (n=42)` for fewer than 100 images, else empty."""
    return "" if n is None or n >= FEW else f" (n={n})"


def spread(values: Sequence[float], *, digits: int = 1) -> str:
    """Format mean ± sample standard deviation, or the mean alone for one value."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def accuracy_spread(values: Sequence[float], n: int | None) -> str:
    """Format accuracies of several runs on the same `n` images.

    One run is shown with its interval. Several have their standard deviation, which does not
    measure the error due to few shared images, so their number is shown too.
    """
    if len(values) == 1:
        return accuracy_text(values[0], n)
    return spread(values) + (few_images(n) if values else "")


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences a - b, with the interval of the mean."""

    n: int  # pairs
    mean: float
    std: float | None = None  # sample standard deviation, None for one pair
    low: float | None = None  # ends of the 95 % bootstrap interval, None without one
    high: float | None = None
    reason: str = ""  # why there is no interval
    margin: float | None = None  # half the width of Student's 95 % interval, None without one

    @property
    def is_clear(self) -> bool:
        """Whether both intervals, bootstrap and Student's, exclude 0."""
        if self.low is None or self.high is None or self.margin is None:
            return False
        return not self.low <= 0 <= self.high and abs(self.mean) > self.margin


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """Estimate the mean of a - b over the seeds that both have, None if they share none.

    The interval is a bootstrap over seeds: bias-corrected and accelerated (BCa; Efron, "Better
    Bootstrap Confidence Intervals", JASA 82, 1987), by `scipy.stats.bootstrap`. Where BCa does not
    exist the percentiles of the resampled means replace it. Equal differences have no interval:
    resampling them gives no information.

    Over few seeds a bootstrap is too narrow: of five normal differences its interval contains the
    mean in about 84 % of the cases, of three in 73 %. Student's interval, mean ± t s / √n, is exact
    for normal differences, so a difference is called clear only if both exclude 0. Of fewer than
    five pairs the differences are now and then alike by chance, so s is then at least what it would
    be if `a` and `b` were not paired.
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
    s = std
    if len(seeds) < PAIRS_TO_TRUST:
        unpaired = [np.std([values[seed] for seed in seeds], ddof=1) for values in (a, b)]
        s = max(std, math.hypot(*unpaired))
    quantile = scipy_stats().t.ppf((1 + LEVEL) / 2, len(seeds) - 1)
    margin = float(quantile * s / math.sqrt(len(seeds)))
    return Difference(len(seeds), mean, std, low, high, margin=margin)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Compute the 95 % bootstrap interval of the mean of two or more values, not all equal.

    The same values always give the same interval.
    """
    stats = scipy_stats()
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a degenerate BCa is nan, which is checked below
            interval = stats.bootstrap(
                (np.asarray(values, dtype=np.float64),),
                np.mean,
                confidence_level=LEVEL,
                n_resamples=RESAMPLES,
                method=method,
                rng=np.random.default_rng(seed_for(0, "bootstrap")),
            ).confidence_interval
        if np.isfinite(interval).all():
            break
    return float(interval.low), float(interval.high)


def scipy_stats() -> Any:
    """Import `scipy.stats`, which is part of the extra `compare`."""
    return import_extra("scipy.stats", "compare")


def import_extra(module: str, extra: str) -> Any:
    """Import a module that comes with an extra of the package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"Install it with: pip install 'peerdg[{extra}]'"
        raise ConfigError(f"This needs {module.partition('.')[0]}.", hint=hint) from error
