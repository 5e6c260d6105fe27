"""Options of methods that compare the features of two views by a projection head. Free of torch."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from peerdg.methods.metadata import OFF, MethodSettings
from peerdg.options import option

regularizer_option = partial(option, part_of="regularizer")


@dataclass(frozen=True, kw_only=True)
class AlignmentSettings(MethodSettings):
    """The regularizer, its weight and its projection head R, with the PEER paper's values."""

    k: int = option(10, "re-draw the policy every k epochs", at_least=1, announced=True)
    w: float = regularizer_option(2.0, "weight of the regularizer", at_least=0, announced=True)
    lam: float = regularizer_option(0.005, "weight of Barlow Twins' redundancy term", at_least=0)
    regularizer: Literal["barlow-twins", "info-nce", "none"] = option(
        "barlow-twins",
        "how projected features are compared; none: cross-entropy alone",
        formerly="regulariser",
    )
    tau: float = regularizer_option(
        0.1, "temperature of InfoNCE; the paper's formula has 1", above=0
    )
    head: Literal["trained", "frozen", "none"] = regularizer_option(
        "trained", "the projection head R"
    )
    head_layers: int = regularizer_option(2, "layers of R; paper: 2 on Digits, else 3", at_least=1)
    head_dim: int = regularizer_option(
        128, "output dimension of R; paper: 128 on Digits, else 1024", at_least=1
    )
    head_hidden: int | None = regularizer_option(
        None, "hidden width of R; default max(dim, 512)", at_least=1
    )
    head_norm: Literal["bn", "ln", "none"] = regularizer_option("bn", "normalisation inside R")
    joint_views: bool = option(
        False, "with batch normalisation: normalise clean and augmented images together"
    )

    period_option = "k"

    @property
    def is_baseline(self) -> bool:
        """Without its regularizer, cross-entropy is all that is left."""
        return self.regularizer == OFF


@dataclass(frozen=True, kw_only=True)
class FrozenGuideSettings(AlignmentSettings):
    """The same, where the features of a frozen network are those to compare with."""

    head_grad_target: bool = regularizer_option(
        True, "R also learns from the frozen network's branch"
    )
    views: Literal["clean_aug", "aug_clean", "both_same"] = option(
        "clean_aug",
        "views compared: that of the frozen network, then of the trained one; both_same sums both "
        "views, each the same in both networks",
    )
    cache_features: bool = option(
        True, "compute the frozen network's clean features once while it stays the same"
    )
