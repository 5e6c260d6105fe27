"""Options of SimDE, reconstructed from the paper's abstract: no value of them is published."""

from dataclasses import dataclass
from typing import Literal

from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.simde:SimDE"
TITLE = "SimDE"
ALIASES = {"weight": "beta", "entropy": "beta", "lr": "generator_lr"}
TINY = {"width": 4}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Two classifiers, each learning from generators that the other guides; a reconstruction."""

    beta: float = option(
        0.5, "how much a generator seeks uncertain predictions", at_least=0, announced=True
    )
    guidance: Literal["switched", "alternating", "own"] = option(
        "switched", "whether a generator is guided by the other classifier, by both, or by its own"
    )
    generator_lr: float = option(1e-4, "learning rate of the generators, by Adam", above=0)
    width: int = option(16, "channels of a generator's first convolution", at_least=1, at_most=1024)

    reconstruction = "everywhere"
    deploys = "the ensemble of two networks that were trained together"

    @property
    def augments(self) -> bool:
        """Its images come from generators, not from the run's augmentation."""
        return False
