"""Accuracies as text that promises no more than the number of images allows."""

import math
from collections.abc import Sequence

import numpy as np

FEW = 100  # images; with fewer, an accuracy is shown with its interval
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution: 95 % on both sides


def wilson(correct: float, n: int) -> tuple[float, float]:
    """Compute the 95 % score interval of an accuracy, in percent.

    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of the
    American Statistical Association 22, 1927. It stays inside 0 to 100 and is not empty at
    either end.

    Args:
        correct: Right answers.
        n: Images, at least one.
    """
    p, z2 = correct / n, _Z**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def accuracy_text(accuracy: float, n: int | None, *, digits: int = 1, with_n: bool = True) -> str:
    """Format as `78.6 (64-89, n=42)`, with the 95 % interval for fewer than 100 images.

    The interval is rounded outwards to whole percent.

    Args:
        accuracy: In percent.
        n: Images it was measured on; None if that is not known.
        digits: After the point, where the images are many.
        with_n: Whether to name the number of images; not needed where a column does.
    """
    if n is None or n >= FEW or n < 1:
        return f"{accuracy:.{digits}f}"
    low, high = wilson(accuracy / 100 * n, n)
    images = f", n={n}" if with_n else ""
    return f"{accuracy:.1f} ({math.floor(low)}-{math.ceil(high)}{images})"


def mean_text(accuracy: float, n: int | None) -> str:
    """Format as `56.5 (n=42)`: a mean over sets of images, the smallest of which has `n`.

    Sets that are copies of the same images are not independent, so there is no interval.
    """
    return f"{accuracy:.1f}" + _few(n)


def spread(values: Sequence[float], *, digits: int = 1) -> str:
    """Format mean ± sample standard deviation; the mean alone for one value."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


def accuracy_spread(values: Sequence[float], n: int | None) -> str:
    """Format the `spread` of accuracies of several runs on the same `n` images.

    One run is shown with its interval. Several have their standard deviation, which says nothing
    about the images they share: if these are few, their number stands beside it.
    """
    if len(values) == 1:
        return accuracy_text(values[0], n)
    return spread(values) + (_few(n) if values else "")


def _few(n: int | None) -> str:
    return "" if n is None or n >= FEW else f" (n={n})"
