"""Options of Barlow Twins on the two views of one network."""

from dataclasses import dataclass

from peerdg.methods.alignment_settings import AlignmentSettings

IMPLEMENTED_BY = "peerdg.methods.barlow_twins:BarlowTwins"
TITLE = "Barlow Twins"
ALIASES = {"weight": "w", "lambda": "lam", "period": "k", "temperature": "tau"}
TINY = {"k": 2}


@dataclass(frozen=True, kw_only=True)
class Settings(AlignmentSettings):
    """A network learns augmented images and agrees with itself on both views: PEER without F."""
