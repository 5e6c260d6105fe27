"""Options of MIRO, with the released code's values as defaults and a switch for every ambiguity."""

from dataclasses import dataclass
from typing import Literal

from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.miro:MIRO"
TITLE = "MIRO"
ALIASES = {"lambda": "lam", "weight": "lam", "ld": "lam", "lr_mult": "rate", "period": "k"}
TINY = {"k": 2, "views": "both"}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Features stay informative about those of the network that training begins with."""

    lam: float = option(0.1, "weight of the regularizer", at_least=0, announced=True)
    views: Literal["clean", "both"] = option(
        "clean", "train on clean images, as the paper; both: on augmented images too"
    )
    k: int = option(10, "with both views: re-draw the policy every k epochs", at_least=1)
    layers: tuple[str, ...] | None = option(
        None, "modules whose outputs are compared; default: stem and every stage"
    )
    oracle: str | None = option(
        None,
        "run or model folder of the frozen network; default: what the main phase starts from",
        names_model=True,
    )
    rate: float = option(10.0, "learning rate of the variances, times the network's", above=0)
    variance: float = option(0.1, "where each variance starts", above=1e-5)

    period_option = "k"

    @property
    def is_oracle(self) -> bool:
        """True with a frozen network other than the initial one."""
        return self.oracle is not None

    @property
    def augments(self) -> bool:
        """True if both views are used."""
        return self.views == "both"
