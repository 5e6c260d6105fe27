"""Options of AugMix, with the released code's values as defaults."""

from dataclasses import dataclass

from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.augmix:AugMixConsistency"
TITLE = "AugMix"
ALIASES = {"lambda": "lam", "weight": "lam", "consistency": "lam"}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Predictions for an image and two mixtures of augmented copies of it agree."""

    lam: float = option(12.0, "weight of the divergence", at_least=0, announced=True)

    own_augment = "augmix"
