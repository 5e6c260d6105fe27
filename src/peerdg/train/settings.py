"""Options of a phase of training and of the views of its images. Free of torch."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.models.names import MAX_SIDE
from peerdg.options import option, validate


@dataclass(frozen=True, kw_only=True)
class PhaseSettings:
    """Schedule and optimizer of one phase of training."""

    epochs: int = option(100, "passes over the training images", at_least=0)
    batch_size: int = option(128, "images per step", at_least=2)
    steps_per_epoch: int | None = option(
        None, "steps of an epoch, drawn with replacement; default: one pass", at_least=1
    )
    epoch_of: Literal["source", "pool"] = option(
        "source", "one pass is as long as the source, or as the pool with images that a method made"
    )
    optimizer: Literal["adam", "sgd"] = option("adam", "which optimizer")
    lr: float = option(1e-4, "learning rate", above=0)
    momentum: float = option(0.9, "momentum of SGD", at_least=0, at_most=1)
    weight_decay: float = option(0.0, "weight decay", at_least=0)
    lr_step: int | None = option(None, "epochs between multiplications by lr_gamma", at_least=1)
    lr_gamma: float = option(0.5, "factor of the step schedule", above=0, at_most=1)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Phase:
    """One phase of a run: pre-training or main training."""

    name: str  # "pretrain" or "train"; part of every random seed of the phase
    settings: PhaseSettings
    evaluate_every: int | None  # epochs between evaluations; None: it is not evaluated
    bf16: bool = False  # compute the loss in bfloat16 where that is safe
    stop_after: int | None = None  # save and stop after this many epochs

    def is_evaluated_after(self, epochs: int) -> bool:
        """Whether networks are evaluated after this many epochs: every period, and at the end."""
        if self.evaluate_every is None:
            return False
        return epochs % self.evaluate_every == 0 or epochs == self.settings.epochs

    @property
    def evaluations(self) -> int:
        """Number of evaluations, the one before the first epoch included."""
        return sum(map(self.is_evaluated_after, range(self.settings.epochs + 1)))


@dataclass(frozen=True, kw_only=True)
class TransformSettings:
    """Transform of every training image into its clean view x; evaluated ones are only resized."""

    size: int | None = option(
        None,
        "side of the images the network sees; default: as stored",
        at_least=8,
        at_most=MAX_SIDE,
    )
    crop: tuple[float, float] | None = option(
        None,
        "random resized crop: smallest and largest part of the area; 1 1 is off",
        above=0,
        at_most=1,
    )
    flip: float = option(0.0, "probability of a left-right flip", at_least=0, at_most=1)

    def __post_init__(self) -> None:
        validate(self)
        if self.crop is not None and (len(self.crop) != 2 or self.crop[0] > self.crop[1]):
            raise ConfigError(
                f"transform.crop is {list(self.crop)}; it must be a smallest and a largest part.",
                hint="For example --transform.crop 0.8 1.0.",
            )

    @property
    def is_random(self) -> bool:
        """Whether an image looks different at each visit."""
        return self.crop not in (None, (1.0, 1.0)) or self.flip > 0
