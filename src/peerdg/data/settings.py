"""Protocol switches of each benchmark; they are written into every run's record."""

from dataclasses import dataclass
from typing import Literal

from peerdg.config import option


@dataclass(frozen=True, kw_only=True)
class DigitsMiniSettings:
    """Switches of the embedded digits."""

    train: int = option(
        4000, "training images of the source (10 to 4000)", at_least=10, at_most=4000
    )


@dataclass(frozen=True, kw_only=True)
class DigitsSettings:
    """Switches of the Digits benchmark; the defaults are PDEN's protocol.

    The literature differs on each of them. ADA and M-ADA start at image 5,000 and rescale with
    Lanczos; ME-ADA, AdvST and RandConv rescale bilinearly; RandConv and Dassl centre the values on
    zero; JigenDG tests on all SVHN and USPS images.
    """

    first: int = option(
        0, "index of the first MNIST training image used", at_least=0, at_most=59_999
    )
    train: int = option(10_000, "MNIST training images used", at_least=1, at_most=60_000)
    resize: Literal["lanczos", "bilinear"] = option("lanczos", "filter for 28 or 16 -> 32 pixels")
    values: Literal["unit", "centred"] = option("unit", "model input: [0, 1], or (x - 0.5) / 0.5")
    svhn: Literal["test", "all"] = option("test", "SVHN images: test split, or train and test")
    usps: Literal["test", "all"] = option("test", "USPS images: test split, or train and test")
    validation: Literal["holdout", "mnist-test"] = option(
        "holdout",
        "source validation: the 2,000 MNIST images after the training ones, or MNIST test",
    )


@dataclass(frozen=True, kw_only=True)
class OwnDataSettings:
    """Domains given from Python have no switches."""
