"""Options of PEER, with the paper's values as defaults and a switch for every ambiguity."""

from dataclasses import dataclass
from typing import Any, Literal

from peerdg.errors import ConfigError
from peerdg.methods.alignment_settings import FrozenGuideSettings, regularizer_option
from peerdg.methods.metadata import OFF
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.peer:PEER"
TITLE = "PEER"
ALIASES = {"weight": "w", "lambda": "lam", "period": "k", "temperature": "tau"}
KNOWN_AS: dict[str, dict[str, Any]] = {"p-ens": {"regularizer": OFF}}
TINY = {"k": 2}


@dataclass(frozen=True, kw_only=True)
class Settings(FrozenGuideSettings):
    """A proxy learns augmented images, guided by the average of its own snapshots."""

    k: int = option(
        10, "re-draw the policy and average a snapshot every k epochs", at_least=1, announced=True
    )
    scale: Literal["sum", "mean", "gradient"] = regularizer_option(
        "sum",
        "of the regularizer: as published, divided by R's outputs, or such that its gradient at "
        "the encoder is w times that of the cross-entropy",
    )
    gradient_images: int = option(
        64,
        "clean images on which the terms' gradients are measured once per period; 0: never",
        at_least=0,
    )
    augment: bool = option(True, "train on augmented images; off: both views are clean")
    average: bool = option(True, "task model is the mean of snapshots; off: the latest one")
    include_init: bool = option(
        False, "Algorithm 1 to the letter: average the initial snapshot, leave out the last"
    )
    reset_proxy: bool = option(False, "after each update continue from the task model")
    bn: Literal["recalibrate", "average", "copy", "frozen"] = option(
        "recalibrate", "batch statistics of the task model after an update"
    )

    own_average = "snapshots"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.include_init and self.reset_proxy:
            raise ConfigError(
                "include_init and reset_proxy exclude each other: Algorithm 1 resets no proxy."
            )
        if self.scale == "mean" and self.regularizer == "info-nce":
            raise ConfigError(
                "peer.scale 'mean' divides Barlow Twins by its terms; InfoNCE is a mean already.",
                hint="Leave --peer.scale out.",
            )
        if self.scale == "gradient" and self.gradient_images < 2:
            raise ConfigError(
                "peer.scale 'gradient' measures gradients, but peer.gradient_images is "
                f"{self.gradient_images}.",
                hint="Leave --peer.gradient-images out, or give at least 2.",
            )

    @property
    def augments(self) -> bool:
        """Whether the proxy trains on augmented images."""
        return self.augment

    @property
    def averages_start(self) -> bool:
        """True with `include_init`, as in Algorithm 1 to the letter."""
        return self.include_init

    def check_average(self, kind: str, *, last: int | None = None) -> None:
        """Refuse snapshot options with another average, and a window of snapshots without a mean.

        Snapshots may begin with the start, be one at a time, have a rule for batch statistics, or
        reset the proxy; others do not.
        """
        given = {
            "include_init": self.include_init,
            "reset_proxy": self.reset_proxy,
            "average": not self.average,
            "bn": self.bn != "recalibrate",
        }
        wrong = next((name for name, is_given in given.items() if is_given), None)
        if kind not in ("snapshots", "swa") and wrong is not None:
            value = str(getattr(self, wrong)).lower()
            raise ConfigError(
                f"peer.{wrong} = {value} is about snapshots, but the task model is the average "
                f"'{kind}'.",
                hint=f"Leave peer.{wrong} or that average out.",
            )
        if not self.average and last not in (None, 1):
            raise ConfigError(
                f"average.last = {last}, but with peer.average = false the latest snapshot is the "
                "task model.",
                hint="Leave one of them out.",
            )
