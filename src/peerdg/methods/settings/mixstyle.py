"""Options of MixStyle, with the released code's values as defaults."""

from dataclasses import dataclass
from typing import Literal

from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.mixstyle:MixStyle"
TITLE = "MixStyle"
ALIASES = {"prob": "p", "mix_p": "p", "positions": "stages", "places": "layers"}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on clean images whose feature statistics are mixed between images."""

    p: float = option(
        0.5, "probability that a training pass mixes styles", at_least=0, at_most=1, announced=True
    )
    alpha: float = option(
        0.1, "of the Beta distribution of the shares", above=0, at_most=100, announced=True
    )
    stages: int = option(
        2, "styles are mixed behind this many of the first stages; 1 to 3 in the paper", at_least=1
    )
    layers: tuple[str, ...] | None = option(
        None, "modules behind which styles are mixed, in place of the stages"
    )

    @property
    def augments(self) -> bool:
        """Styles are mixed inside the network; the images are clean."""
        return False

    @property
    def adapts_before(self) -> Literal["train"]:
        """Pre-training is that of every method: the layers have no weights."""
        return "train"
