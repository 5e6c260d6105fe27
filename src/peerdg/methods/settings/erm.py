"""Options of ERM: it has none of its own."""

from dataclasses import dataclass

from peerdg.config import validate

IMPLEMENTED_BY = "peerdg.methods.erm:ERM"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Cross-entropy on clean images; the baseline of every comparison."""

    def __post_init__(self) -> None:
        validate(self)

    @property
    def augments(self) -> bool:
        """Nothing is augmented."""
        return False
