"""Options of ME-ADA, with the released code's values as defaults."""

from dataclasses import dataclass
from typing import Literal

from peerdg.methods.settings.ada import Settings as ADASettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.me_ada:MEADA"
TITLE = "ME-ADA"
ALIASES = {
    "phases": "k",
    "period": "every",
    "lambda": "gamma",
    "beta": "eta",
    "entropy": "eta",
    "iterations": "steps",
}
TINY = {"k": 2, "steps": 3, "rate": 20.0}


@dataclass(frozen=True, kw_only=True)
class Settings(ADASettings):
    """ADA whose images also leave the network unsure; on photos a reconstruction."""

    perturb: Literal["sample", "pool", "source"] = option(
        "pool", "which images: as many as the source has out of all so far, all so far (doubles "
        "them each time), or the source's",
    )  # fmt: skip
    eta: float = option(
        10.0, "weight of the entropy that the ascent raises", at_least=0, announced=True
    )
    eta_min: float = option(
        0.0, "weight of the entropy that training raises, too; the released code: none", at_least=0
    )

    section = "me-ada"
    reconstruction = "on photos"
