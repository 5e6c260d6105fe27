"""Compute confidence intervals of accuracies and paired differences, as numbers and text."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerdg.errors import ConfigError

FEW = 100  # accuracies on fewer images are shown with their interval
LEVEL = 0.95
MIN_SEEDS = 5  # minimum number of seeds for an interval
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution, for two-sided 95 %


def wilson(correct: float, n: int) -> tuple[float, float]:
    """Compute the 95 % Wilson score interval of an accuracy, in percent.

    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the
    American Statistical Association 22, 1927. It stays within 0 to 100 and has a positive width
    even at 0 and 100.
    """
    p, z2 = correct / n, _Z**2
    center = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    return 100 * max(0.0, center - half), 100 * min(1.0, center + half)


def accuracy_text(accuracy: float, n: int | None, *, digits: int = 1, with_n: bool = True) -> str:
    """Format an accuracy, with its 95 % interval below 100 images: `78.6 (64-89, n=42)`.

    The interval is rounded outwards to whole percent. `n` is None if unknown.
    """
    if n is None or n >= FEW or n < 1:
        return f"{accuracy:.{digits}f}"
    low, high = wilson(accuracy / 100 * n, n)
    images = f", n={n}" if with_n else ""
    return f"{accuracy:.1f} ({math.floor(low)}-{math.ceil(high)}{images})"


def few_images(n: int | None) -> str:
    """Return a note such as ` (n=42)` for fewer than 100 images, otherwise an empty string."""
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

    One run is shown with its interval. Several runs are shown with their standard deviation, and
    with `n` if it is small, because the deviation does not reflect the small number of images.
    """
    if len(values) == 1:
        return accuracy_text(values[0], n)
    return spread(values) + (few_images(n) if values else "")


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences a - b over seeds."""

    by_seed: Mapping[int, float]
    mean: float
    margin: float | None = None  # half-width of Student's 95 % interval, None with too few seeds

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.by_seed)

    @property
    def is_clear(self) -> bool:
        """Whether there is an interval and it excludes 0."""
        return self.margin is not None and abs(self.mean) > self.margin


def subtract_by_seed(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """Compute a - b for each seed that a and b share."""
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference | None:
    """Estimate the mean of a - b over the shared seeds. Return None if there are none.

    With at least `MIN_SEEDS` seeds, it has Student's interval mean ± t s / √n. Fewer differences
    may be similar by chance, so they have no interval and are shown individually.
    """
    differences = subtract_by_seed(a, b)
    if not differences:
        return None
    n, mean = len(differences), math.fsum(differences.values()) / len(differences)
    if n < MIN_SEEDS:
        return Difference(differences, mean)
    quantile = scipy_stats().t.ppf((1 + LEVEL) / 2, n - 1)
    s = float(np.std(list(differences.values()), ddof=1))
    return Difference(differences, mean, float(quantile * s / math.sqrt(n)))


def scipy_stats() -> Any:
    """Import `scipy.stats`, which the extra `compare` installs."""
    return import_extra("scipy.stats", "compare")


def import_extra(module: str, extra: str) -> Any:
    """Import a module from an optional extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"Install it with: pip install 'peerdg[{extra}]'"
        raise ConfigError(f"This feature needs {module.partition('.')[0]}.", hint=hint) from error
