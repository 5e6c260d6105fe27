"""Options of MetaCNN, a reconstruction: every value is ours, and every reading has a switch."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.metacnn:MetaCNN"
TITLE = "MetaCNN"
ALIASES = {"period": "k", "words": "atoms", "rho": "ridge", "s": "addressed", "eta": "decay"}
TINY = {"k": 2, "atoms": 8, "addressed": 2}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Reconstruction: local features are composed of a dictionary; the rest is dropped."""

    k: int = option(10, "re-draw the augmentation policy every k epochs", at_least=1)
    atoms: int = option(
        256, "meta-features in the dictionary", at_least=1, at_most=4096, announced=True
    )
    addressed: int = option(
        32, "atoms that compose a feature", at_least=1, at_most=256, announced=True
    )
    threshold: float = option(
        -1.0, "smallest cosine of an addressed atom; -1 sets no limit", at_least=-1, at_most=1
    )
    ridge: float = option(1e-2, "ridge of the composition", above=0, at_most=1e6)
    gradient: Literal["closed-form", "straight-through"] = option(
        "closed-form", "through the composition, or past it"
    )
    decay: float = option(
        0.99, "share of earlier batches that the dictionary remembers", at_least=0, at_most=1
    )
    stage: int = option(1, "stage of the network that the layer stands behind", at_least=1)
    layer: str | None = option(None, "module that it stands behind, in place of a stage")

    period_option = "k"
    reconstruction = "everywhere"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.addressed > self.atoms:
            raise ConfigError(
                f"{self.addressed} atoms are addressed (--metacnn.addressed) of a dictionary of "
                f"{self.atoms} (--metacnn.atoms).",
                hint="Address fewer of them.",
            )

    @property
    def adapts_before(self) -> Literal["train"]:
        """Pre-training is that of every method; the dictionary starts from its features."""
        return "train"
