"""Options of RandConv, with the released code's values as defaults."""

from dataclasses import dataclass
from typing import Literal

from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.randconv:RandConvConsistency"
TITLE = "RandConv"
ALIASES = {"lambda": "lam", "weight": "lam", "consistency": "lam"}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Predictions for random convolutions of an image agree."""

    lam: float | None = option(
        None,
        "weight of the divergence; default 5, or 10 with --augment.variant mix",
        at_least=0,
        announced=True,
    )
    views: Literal["independent", "nested"] = option(
        "independent",
        "three views of the image, as the paper; nested: the released loop's views of a view",
    )

    own_augment = "randconv"
