"""Options of PEER, with the paper's values as defaults and a switch for every ambiguity."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from peerdg.config import option
from peerdg.errors import ConfigError
from peerdg.methods.metadata import OFF, MethodSettings

IMPLEMENTED_BY = "peerdg.methods.peer:PEER"
TITLE = "PEER"
ALIASES = {"weight": "w", "lambda": "lam", "period": "k", "temperature": "tau"}
KNOWN_AS: dict[str, dict[str, Any]] = {"p-ens": {"regulariser": OFF}}
TINY = {"k": 2}

_of_regulariser = partial(option, part_of="regulariser")


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """A proxy learns augmented images, guided by the average of its own snapshots."""

    k: int = option(
        10, "re-draw the policy and average a snapshot every k epochs", at_least=1, announced=True
    )
    w: float = _of_regulariser(2.0, "weight of the regulariser", at_least=0, announced=True)
    scale: Literal["sum", "mean", "gradient"] = _of_regulariser(
        "sum",
        "of the regulariser: as published, divided by R's outputs, or such that its gradient at "
        "the encoder is w times that of the cross-entropy",
    )
    gradient_images: int = option(
        64,
        "clean images on which the terms' gradients are measured once per period; 0: never",
        at_least=0,
    )
    lam: float = _of_regulariser(0.005, "weight of Barlow Twins' redundancy term", at_least=0)
    regulariser: Literal["barlow-twins", "info-nce", "none"] = option(
        "barlow-twins", "how proxy and task model are compared; none is P-ENS"
    )
    tau: float = _of_regulariser(0.1, "temperature of InfoNCE; the paper's formula has 1", above=0)
    augment: bool = option(True, "train on augmented images; off: both views are clean")
    average: bool = option(True, "task model is the mean of snapshots; off: the latest one")
    include_init: bool = option(
        False, "Algorithm 1 to the letter: average the initial snapshot, leave out the last"
    )
    reset_proxy: bool = option(False, "after each update continue from the task model")
    head: Literal["trained", "frozen", "none"] = _of_regulariser("trained", "the projection head R")
    head_layers: int = _of_regulariser(2, "layers of R; paper: 2 on Digits, else 3", at_least=1)
    head_dim: int = _of_regulariser(
        128, "output dimension of R; paper: 128 on Digits, else 1024", at_least=1
    )
    head_hidden: int | None = _of_regulariser(
        None, "hidden width of R; default max(dim, 512)", at_least=1
    )
    head_norm: Literal["bn", "ln", "none"] = _of_regulariser("bn", "normalisation inside R")
    head_grad_target: bool = _of_regulariser(True, "R also learns from the task model's branch")
    views: Literal["clean_aug", "aug_clean", "both_same"] = option(
        "clean_aug", "views compared: task-proxy; both_same sums both views, same in both models"
    )
    joint_views: bool = option(
        False, "with batch normalisation: normalise clean and augmented images together"
    )
    bn: Literal["recalibrate", "average", "copy", "frozen"] = option(
        "recalibrate", "batch statistics of the task model after an update"
    )
    cache_features: bool = option(
        True, "compute the task model's clean features once per period, not at every step"
    )
    teacher: str | None = option(None, "run or model folder of a frozen teacher, the regulator")

    period_option = "k"
    own_average = "snapshots"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.include_init and self.reset_proxy:
            raise ConfigError(
                "include_init and reset_proxy exclude each other: Algorithm 1 resets no proxy."
            )
        if self.scale == "mean" and self.regulariser == "info-nce":
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
        """Unless it is switched off."""
        return self.augment

    @property
    def is_oracle(self) -> bool:
        """With a teacher."""
        return self.teacher is not None

    @property
    def is_baseline(self) -> bool:
        """Without its regulariser it averages a network trained by cross-entropy."""
        return self.regulariser == OFF

    @property
    def averages_start(self) -> bool:
        """Algorithm 1 to the letter does."""
        return self.include_init

    def check_average(self, kind: str, *, last: int | None = None) -> None:
        """Refuse options of snapshots with another average, and a window of the one that counts.

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
