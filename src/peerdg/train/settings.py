"""Define the options of a training phase and of the base transform, without torch."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.models.names import MAX_SIDE
from peerdg.options import option, validate


@dataclass(frozen=True, kw_only=True)
class PhaseSettings:
    """Schedule and optimizer of a training phase."""

    epochs: int = option(100, "passes over the training images", at_least=0)
    batch_size: int = option(128, "images per step", at_least=2)
    steps_per_epoch: int | None = option(
        None, "steps per epoch, sampled with replacement; default: one pass", at_least=1
    )
    epoch_of: Literal["source", "pool"] = option(
        "source", "images in one pass: the source, or the pool with generated images"
    )
    optimizer: Literal["adam", "sgd"] = option("adam", "optimizer")
    lr: float = option(1e-4, "learning rate", above=0)
    momentum: float = option(0.9, "SGD momentum", at_least=0, at_most=1)
    weight_decay: float = option(0.0, "weight decay", at_least=0)
    lr_step: int | None = option(None, "multiply lr by lr_gamma every N epochs", at_least=1)
    lr_gamma: float = option(0.5, "factor of the step schedule", above=0, at_most=1)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Phase:
    """One phase of a run: pre-training or main training."""

    name: str  # "pretrain" or "train"; part of every random seed in the phase
    settings: PhaseSettings
    evaluate_every: int | None  # epochs between evaluations, None for no evaluation
    bf16: bool = False  # compute the loss in bfloat16 where safe
    stop_after: int | None = None  # save and stop after this many epochs

    def is_evaluated_after(self, epochs: int) -> bool:
        """Return whether an evaluation is due after this many epochs."""
        if self.evaluate_every is None:
            return False
        return epochs % self.evaluate_every == 0 or epochs == self.settings.epochs

    @property
    def evaluations(self) -> int:
        """Number of evaluations, including the one before the first epoch."""
        return sum(map(self.is_evaluated_after, range(self.settings.epochs + 1)))


@dataclass(frozen=True, kw_only=True)
class TransformSettings:
    """Base transform from training images to clean views x. Evaluation only resizes."""

    size: int | None = option(
        None,
        "side of the network's input in pixels; default: as stored",
        at_least=8,
        at_most=MAX_SIDE,
    )
    crop: tuple[float, float] | None = option(
        None,
        "random resized crop: min and max fraction of the area; 1 1 is off",
        above=0,
        at_most=1,
    )
    flip: float = option(0.0, "probability of a horizontal flip", at_least=0, at_most=1)

    def __post_init__(self) -> None:
        validate(self)
        if self.crop is not None and (len(self.crop) != 2 or self.crop[0] > self.crop[1]):
            raise ConfigError(
                f"transform.crop must be a minimum and a maximum fraction, got {list(self.crop)}.",
                hint="Use for example --transform.crop 0.8 1.0.",
            )

    @property
    def is_random(self) -> bool:
        """Whether an image's view differs between epochs."""
        return self.crop not in (None, (1.0, 1.0)) or self.flip > 0
