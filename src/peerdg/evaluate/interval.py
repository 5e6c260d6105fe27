"""How far an accuracy measured on few images can be from the truth."""

import math

FEW = 100  # images; with fewer, an accuracy is shown with its interval
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution: 95 % on both sides


def wilson(correct: float, n: int) -> tuple[float, float]:
    """The 95 % score interval of an accuracy, in percent.

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
