"""Calibration: how well a model's probabilities match its accuracy."""

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15  # of Guo et al.


@dataclass(frozen=True)
class CalibrationBin:
    """The images whose confidence lies in `(low, high]`.

    Args:
        low: Excluded, but for 0.
        high: Included.
        n: How many images.
        confidence: Their mean confidence; None if there are none.
        accuracy: The share of them that is right.
    """

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """The expected calibration error from 0 to 1, and the bins it is made of."""

    error: float
    bins: tuple[CalibrationBin, ...]


def calibration(confidence: Tensor, correct: Tensor, *, bins: int = BINS) -> Calibration:
    """Compute the expected calibration error of the answers, with bins of equal width.

    The mean over images of |accuracy - confidence| of the bin the image lies in: Eq. (3) of Guo et
    al., "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599.

    Args:
        confidence: Probability of the predicted class, `[n]`.
        correct: Whether the prediction is right, `[n]`.
        bins: Number of bins M.
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    confidence = confidence.double()
    # Bin m holds ((m - 1) / M, m / M]; a confidence of 0 goes to the first one.
    place = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(place, minlength=bins)
    sure = torch.bincount(place, weights=confidence, minlength=bins)
    right = torch.bincount(place, weights=correct.double(), minlength=bins)
    error = float((right - sure).abs().sum() / len(confidence))  # |B_m| / n * |acc - conf|
    found = [
        CalibrationBin(
            low=float(edges[m]),
            high=float(edges[m + 1]),
            n=n,
            confidence=float(sure[m]) / n if n else None,
            accuracy=float(right[m]) / n if n else None,
        )
        for m, n in enumerate(count.tolist())
    ]
    return Calibration(error, tuple(found))
