"""Options of the RandAugment baseline."""

from dataclasses import dataclass

from peerdg.config import option, validate

IMPLEMENTED_BY = "peerdg.methods.randaugment:RandAug"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Cross-entropy on clean and augmented images."""

    k: int = option(
        10, "re-draw the augmentation policy every k epochs", at_least=1, announced=True
    )

    def __post_init__(self) -> None:
        validate(self)

    @property
    def augments(self) -> bool:
        """Half of the images of a step are augmented."""
        return True
