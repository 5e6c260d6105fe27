"""The interface of a training method, for `train/loop.py` or a custom loop."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from peerdg.augment.protocol import Augment
from peerdg.averages.average_options import AverageSettings, make_average
from peerdg.averages.base import Average, ValidationLoss
from peerdg.errors import ConfigError, PeerdgWarning
from peerdg.methods.clean import CleanImages, as_bytes, as_view
from peerdg.methods.pool import PoolImages, TrainingPool
from peerdg.methods.recipes import Reconstruction
from peerdg.models.classifier import Classifier
from peerdg.options import option, validate

StatisticsRule = Literal["clean", "trained"]
"""Batch statistics of evaluated networks: of the clean training images, or what training left."""

Terms = dict[str, Tensor]
"""`"loss"` and the named parts of it."""

OFF = "none"
"""The value of an option that switches its component off, see `part_of` of `option`."""

weight_option = partial(option, at_least=0, announced=True)
"""Make the option of a loss term's weight. It is announced, since results depend on it."""


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Base of every method's `Settings`: its options, and facts about the method."""

    # The option that sets the period. None if the method does the same in every epoch.
    period_option: ClassVar[str | None] = None
    # The kind of average that is part of the method, unless `--average` names another.
    own_average: ClassVar[str | None] = None
    # The kind of augmentation, if the method uses any, unless `--augment` names another.
    own_augment: ClassVar[str] = "randaugment"
    # Options that have an effect only if the method's own average is one of snapshots.
    snapshot_options: ClassVar[tuple[str, ...]] = ()
    # Images that batches are drawn from. With "source", the method itself takes images that it
    # added from the pool (`TrainingPool.view`).
    batches_from: ClassVar[Literal["pool", "source"]] = "pool"
    # Whether the method adds images to the training pool.
    grows_pool: ClassVar[bool] = False
    # Where there is neither released code nor published values. Tables mark such rows.
    reconstruction: ClassVar[Reconstruction] = "no"
    # What is deployed where no average is, for the card of the model.
    deploys: ClassVar[str] = "the trained network"

    def __post_init__(self) -> None:
        validate(self)

    @property
    def is_oracle(self) -> bool:
        """Whether it is given a network trained elsewhere, so that tables mark its rows."""
        return False

    @property
    def augments(self) -> bool:
        """Whether it trains on the run's augmented images: its option `augment`, if it has one."""
        return bool(getattr(self, "augment", True))

    @property
    def is_baseline(self) -> bool:
        """Whether its loss is cross-entropy alone, so that reports compare others with it."""
        return False

    @property
    def period(self) -> int:
        """Epochs after which the work between epochs repeats: a re-draw, a snapshot."""
        return 1 if self.period_option is None else int(getattr(self, self.period_option))

    @property
    def adapts_before(self) -> Literal["pretrain", "train"] | None:
        """The phase before which `Method.adapt` changes the network. None if it never does."""
        return None

    def check_images(self, side: int) -> None:
        """Refuse options that do not fit images of this side with a `ConfigError`."""

    @property
    def trains_on_pool(self) -> bool:
        """Whether batches are drawn from a pool that grows by images that the method makes."""
        return self.batches_from == "pool" and self.grows_pool

    @property
    def averages_start(self) -> bool:
        """Whether snapshots are taken at the start of a period, so that the first is the start."""
        return bool(getattr(self, "include_init", False))

    def check_average(self, kind: str, *, last: int | None = None) -> None:
        """Refuse `snapshot_options` that do not fit the kind and window of the method's average."""
        defaults = {f.name: f.default for f in fields(self)}
        given = [n for n in self.snapshot_options if getattr(self, n) != defaults[n]]
        if given and kind not in ("snapshots", "swa"):
            raise ConfigError(
                f"The option '{given[0]}' is about snapshots, but the average is '{kind}'.",
                hint=f"Leave {given[0]} or that average out.",
            )
        if "average" in given and last not in (None, 1):
            raise ConfigError(f"average.last is {last}, but the option 'average' is off.")
        if self.averages_start and "reset_proxy" in given:
            raise ConfigError("The options include_init and reset_proxy exclude each other.")


@dataclass(frozen=True)
class Batch:
    """A batch of training images with optional metadata.

    Args:
        images: Clean images, uint8 or floating point in [0, 1]; kept as uint8, to which the latter
            are rounded.
        labels: Their classes.
        index: Their rows in the training set, if the clean images are the same at every visit;
            allows a method to remember what it computed for them.
        seed: From which everything random about this batch derives; None leaves it to torch's
            global generator.
        augmented: What the augmentation makes of the images, if `Method.prepare` did that already:
            uint8, or floating point where 1.0 is white and values may leave [0, 1].
    """

    images: UInt8[Tensor, "batch 3 h w"] | Float[Tensor, "batch 3 h w"]
    labels: Int64[Tensor, " batch"]
    index: Int64[Tensor, " batch"] | None = None
    seed: int | None = None
    augmented: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", as_bytes(self.images))
        if self.augmented is not None:
            object.__setattr__(self, "augmented", as_view(self.augmented))

    def generator(self) -> torch.Generator | None:
        """A fresh generator for this batch, or None for the global one."""
        return None if self.seed is None else torch.Generator().manual_seed(self.seed)


def as_batch(batch: Batch | Tensor, labels: Tensor | None = None) -> Batch:
    """Make a `Batch` of images and labels; a `Batch` stays as it is."""
    if isinstance(batch, Batch):
        return batch
    if labels is None:
        raise TypeError("Give a Batch, or images and labels.")
    return Batch(batch, labels)


class Loss(Terms):
    """A loss: `["loss"]` or `total`. Its named terms are detached here, but not in `parts`."""

    def __init__(self, total: Tensor, **parts: Tensor) -> None:
        super().__init__(loss=total, **{name: part.detach() for name, part in parts.items()})
        self.total, self.parts = total, parts


@dataclass(frozen=True)
class ParamGroup:
    """Parameters whose learning rate is that of their optimizer times `lr_scale`."""

    parameters: list[nn.Parameter]
    lr_scale: float = 1.0


@dataclass(frozen=True)
class OptimizerPlan:
    """What one optimizer trains, and how.

    Without a `kind` it is the optimizer of the training phase with its learning rate and schedule,
    and the other options are ignored.
    """

    groups: list[ParamGroup]
    kind: Literal["adam", "sgd"] | None = None
    lr: float = 1e-4
    momentum: float = 0.0
    weight_decay: float = 0.0

    @classmethod
    def of(cls, *modules: nn.Module, **options: Any) -> Self:
        """Train all parameters of `modules` that require a gradient, as one group."""
        parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        return cls([ParamGroup(parameters)], **options)


OptimizerStep = Callable[..., None]
"""`update(name, loss, terms)`: backward, finite check, optimizer step and zero_grad.

It trains the optimizer `name` of `Method.optimizers` by one step. Only its own parameters receive
gradients. `terms` are the named parts of the loss, for the record of a failure.
"""


@dataclass(frozen=True)
class EpochResult:
    """What `end_epoch` returns to the loop."""

    records: dict[str, Any] = field(default_factory=dict)  # as plain values
    reset_optimizers: tuple[str, ...] = ()  # names of those whose state is cleared
    new_images: PoolImages | None = None  # for the training pool, from the next epoch on
    drop_oldest: int = 0  # how many of the earlier additions leave the pool, the oldest first


@dataclass(frozen=True)
class RunContext:
    """Data and options of a run from which `Method.build` makes the method."""

    seed: int
    augment: Augment  # G
    average: AverageSettings
    clean: CleanImages  # all images of the source, with row indices and labels
    pool: TrainingPool  # those of the source, and those that a method added
    batch_statistics: StatisticsRule
    passes: float  # how often an epoch sees each clean image, on average; 0 if views are random
    period: int  # the method's k: epochs between two snapshots, unless `average.k` is set
    epochs: int  # of the main phase
    steps: int  # of an epoch
    image_size: int  # side of the images that the network sees
    validation_loss: ValidationLoss | None  # of a network on the source's validation images
    load_model: Callable[[str], Classifier]  # from a run or model folder, e.g. a teacher

    def make_average(self, kind: str, model: Classifier) -> Average:
        """Make an average of one of the kinds of `--average`."""
        return make_average(
            kind,
            model,
            self.average,
            k=self.period,
            epochs=self.epochs,
            steps=self.steps,
            validation_loss=self.validation_loss,
        )


class Method(nn.Module):
    """Base class of training methods.

    Most methods define a `loss` and leave `step` and `optimizers` as they are: then one optimizer
    trains all parameters that require a gradient. A method with several optimizers or several
    updates per batch defines both.

    Averages may follow the trained network without any influence on it (`attach_averages`). The
    first of them is deployed instead of the network itself.

    Args:
        model: The network to train. None if the method has other names for its `networks`.
        settings: The method's `Settings`.
    """

    # How many entries of `--average` the method consumes itself. The rest are attached.
    averages_used: ClassVar[int] = 0
    # The key of `networks` to deploy even if averages are attached. None deploys the first attached
    # average, or else the trained network.
    own_deployed: ClassVar[str | None] = None
    # What else to try where the loss diverges, after "Lower the learning rate".
    divergence_hint: ClassVar[str] = ""

    model: Classifier

    def __init__(self, model: Classifier | None = None, settings: Any = None) -> None:
        super().__init__()
        self.attached = nn.ModuleDict()
        self._warned = False
        if model is not None:
            self.model = model
        self.settings = settings

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        """Build the method around `model` from its `Settings` and what it needs of the run."""
        return cls(model, settings)

    @classmethod
    def adapt(cls, model: Classifier, settings: Any, size: int) -> Classifier:
        """Change the network before the phase that `settings.adapts_before` names.

        The result is a copy, as `Classifier.with_layers` makes it, so that a stored model loads
        without the method. `size` is the side of the images that it will see.
        """
        return model

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        """Precompute weight-independent work, such as augmentation, for several batches at once.

        Only to save time: the loss of a batch does not depend on it, nor on the other batches. A
        custom loop need not call it.
        """
        return batches

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """What each named optimizer trains; by default `"main"` trains everything."""
        return {"main": OptimizerPlan.of(self)}

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Learn from a batch; return the loss and its named terms."""
        terms = self.loss(batch)
        update("main", terms["loss"], terms)
        return terms

    def loss(self, batch: Batch) -> Loss:
        """Compute the loss to minimize, and its named terms."""
        raise TypeError(f"{type(self).__name__} has neither a loss nor a step of its own.")

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Prepare for epoch `epoch`, counted from 0; returns what to record, as plain values.

        It must be a function of the state and the epoch number: a resumed run calls it again for
        the epoch it continues.
        """
        return {}

    def end_epoch(self, epoch: int) -> EpochResult:
        """Conclude epoch `epoch`."""
        return EpochResult()

    @property
    def networks(self) -> dict[str, Classifier]:
        """The method's networks to evaluate, by name; the trained one comes first."""
        return {"model": self.model}

    @property
    def trained(self) -> Classifier:
        return next(iter(self.networks.values()))

    @property
    def averages(self) -> dict[str, Average]:
        """All averages of the trained network, by their key in `evaluated_networks`."""
        return {name: cast(Average, module) for name, module in self.attached.items()}

    @property
    def evaluated_networks(self) -> dict[str, Classifier]:
        """The networks to evaluate during training, by name; the trained one comes first."""
        averages = {name: average.deployed for name, average in self.averages.items()}
        return {**self.networks, **averages}

    @property
    def frozen_statistics(self) -> bool:
        """Whether batch statistics were fixed in training, so that evaluation keeps them."""
        return False

    @property
    def needs_clean_statistics(self) -> dict[str, Classifier]:
        """The networks to recompute batch statistics of, to evaluate with those of clean images."""
        if self.frozen_statistics:
            return {}
        done = {name for name, average in self.averages.items() if average.has_clean_statistics}
        return {name: model for name, model in self.evaluated_networks.items() if name not in done}

    @property
    def deployed_name(self) -> str:
        """The key of the deployed network in `evaluated_networks`."""
        return self.own_deployed or next(iter(self.averages), None) or next(iter(self.networks))

    @property
    def deployed(self) -> Classifier:
        """The network to deploy; warns once if it is an average of nothing yet."""
        average = self.averages.get(self.deployed_name)
        if average and average.count == 0 and not self._warned and self._has_learnt(average):
            self._warned = True
            warnings.warn(
                f"'{self.deployed_name}' is still the initial network: nothing was averaged yet. "
                "Call `start_epoch` before each epoch, `update_averages` after each step, "
                "`finish_epoch_averages` and `end_epoch` after each epoch, for at least k epochs.",
                PeerdgWarning,
                stacklevel=2,
            )
        return self.evaluated_networks[self.deployed_name]

    def epochs_seen(self, epoch: int) -> int:
        """How many epochs the deployed network has learnt from, when `epoch` are complete."""
        average = self.averages.get(self.deployed_name)
        return epoch if average is None else average.epochs_seen(epoch)

    def attach_averages(self, averages: dict[str, Average]) -> None:
        """Let averages follow the trained network, under these names.

        In your own loop, call `update_averages` after each optimizer step, and
        `finish_epoch_averages` at the end of each epoch, before `end_epoch`. Snapshots with
        `include_init` must see the network before each epoch: only a method's own average does.
        """
        for name, average in averages.items():
            if name in self.evaluated_networks:
                raise ConfigError(f"The method already has a network with the name '{name}'.")
            if average.needs_epoch_start:
                raise ConfigError(f"'{name}' must be made without include_init.")
        self.attached.update(averages)

    def update_averages(self) -> None:
        """Let every average follow an optimizer step; in your own loop, call it after each."""
        for average in self.averages.values():
            average.after_step(self.trained)

    def finish_epoch_averages(self, epoch: int) -> dict[str, Any]:
        """Let the attached averages follow the end of an epoch; return what to record.

        In your own loop, call it before `end_epoch`, which may change the trained network.
        """
        records: dict[str, Any] = {}
        for name in self.attached:
            for value in self.averages[name].after_epoch(self.trained, epoch).values():
                records[name] = value  # there is at most one; it gets the name of the average
        return records

    def _has_learnt(self, average: Average) -> bool:
        """Whether the trained network has other weights than the average."""
        pairs = zip(self.trained.parameters(), average.model.parameters(), strict=True)
        return any(not torch.equal(ours, theirs) for ours, theirs in pairs)
