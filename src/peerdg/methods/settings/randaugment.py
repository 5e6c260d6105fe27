"""Options of the RandAugment baseline."""

from dataclasses import dataclass

from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.randaugment:AugmentedERM"
ALIASES = {"period": "k"}
TINY = {"k": 2}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on clean and augmented images."""

    k: int = option(
        10, "re-draw the augmentation policy every k epochs", at_least=1, announced=True
    )

    period_option = "k"

    @property
    def is_baseline(self) -> bool:
        """Cross-entropy is all there is, on both views."""
        return True
