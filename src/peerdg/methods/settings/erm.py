"""Options of ERM: it has none of its own."""

from dataclasses import dataclass

from peerdg.methods.metadata import MethodSettings

IMPLEMENTED_BY = "peerdg.methods.erm:ERM"


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on clean images; the baseline of every comparison."""

    @property
    def augments(self) -> bool:
        """Nothing is augmented."""
        return False

    @property
    def is_baseline(self) -> bool:
        """Cross-entropy is all there is."""
        return True
