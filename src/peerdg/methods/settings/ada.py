"""Options of ADA, with the released code's values as defaults and a switch for every ambiguity."""

from dataclasses import dataclass
from typing import Literal

from peerdg.methods.ascent_settings import AscentSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.ada:ADA"
TITLE = "ADA"
ALIASES = {
    "phases": "k",
    "period": "every",
    "eta": "rate",
    "lambda": "gamma",
    "iterations": "steps",
}
TINY = {"k": 2, "steps": 3, "rate": 20.0}


@dataclass(frozen=True, kw_only=True)
class Settings(AscentSettings):
    """Images that the network finds hard are made by gradient ascent and learnt from, too."""

    perturb: Literal["sample", "pool", "source"] = option(
        "sample", "which images: as many as the source has out of all so far, all so far, or the "
        "source's",
    )  # fmt: skip

    section = "ada"

    def images_made(self, source: int, pool: int, before: int) -> int:
        """As many images as the source or the pool has."""
        return pool if self.perturb == "pool" else source
