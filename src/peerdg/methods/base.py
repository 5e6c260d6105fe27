"""The interface of a training method, for `train/loop.py` or a custom loop."""

import abc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol, Self, cast

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
from peerdg.options import validate

StatisticsRule = Literal["clean", "trained"]
"""Batch statistics of evaluated networks: of the clean training images, or what training left."""

Terms = dict[str, Tensor]
"""`"loss"` and the named parts of it."""

OFF = "none"
"""The value of an option that switches its component off, see `part_of` of `config.option`."""


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Base of every method's `Settings`: its options, and facts about the method."""

    period_option: ClassVar[str | None] = None
    """The option that sets the period. None if the method does the same in every epoch."""

    own_average: ClassVar[str | None] = None
    """The kind of average that is part of the method, unless `--average` names another."""

    own_augment: ClassVar[str] = "randaugment"
    """The kind of augmentation, if the method uses any, unless `--augment` names another."""

    snapshot_options: ClassVar[tuple[str, ...]] = ()
    """Options that have an effect only if the method's own average is one of snapshots."""

    batches_from: ClassVar[Literal["pool", "source"]] = "pool"
    """The images that batches are drawn from. With `"source"` the method itself takes images that
    it added from the pool (`TrainingPool.view`)."""

    grows_pool: ClassVar[bool] = False
    """Whether the method adds images to the training pool."""

    reconstruction: ClassVar[Reconstruction] = "no"
    """Where there is neither released code nor published values. Tables mark such rows."""

    deploys: ClassVar[str] = "the trained network"
    """What is deployed where no average is, for the card of the model."""

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
        """Refuse options that do not fit images of this side, before any work is done.

        Raises:
            ConfigError: If they do not.
        """

    @property
    def trains_on_pool(self) -> bool:
        """Whether batches are drawn from a pool that grows by images that the method makes."""
        return self.batches_from == "pool" and self.grows_pool

    @property
    def averages_start(self) -> bool:
        """Whether snapshots are taken at the start of a period, so that the first is the start."""
        return bool(getattr(self, "include_init", False))

    def check_average(self, kind: str, *, last: int | None = None) -> None:
        """Refuse `snapshot_options` if the method's own average is not one of snapshots.

        Args:
            kind: The kind of the method's own average.
            last: How many of the newest snapshots the run averages. None for all.

        Raises:
            ConfigError: If one of them is given.
        """
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
    """A loss and its named parts, which are detached. `["loss"]` is `total`.

    Args:
        total: The loss to minimize.
        parts: Its terms.

    Attributes:
        total: The loss, with its graph.
        parts: The terms with their graphs.
    """

    def __init__(self, total: Tensor, **parts: Tensor) -> None:
        super().__init__(loss=total, **{name: part.detach() for name, part in parts.items()})
        self.total, self.parts = total, parts


@dataclass(frozen=True)
class ParamGroup:
    """Parameters with one learning rate.

    Args:
        parameters: What an optimizer trains.
        lr_scale: Multiplies the optimizer's learning rate.
    """

    parameters: list[nn.Parameter]
    lr_scale: float = 1.0


@dataclass(frozen=True)
class OptimizerPlan:
    """What one optimizer trains, and how.

    Args:
        groups: Its parameters.
        kind: Which optimizer; None takes that of the training phase with its learning rate and
            schedule, and everything below is ignored.
        lr: Its constant learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay.
    """

    groups: list[ParamGroup]
    kind: Literal["adam", "sgd"] | None = None
    lr: float = 1e-4
    momentum: float = 0.0
    weight_decay: float = 0.0


class OptimizerStep(Protocol):
    """Train one of a method's optimizers by one step; `Method.step` receives it."""

    def __call__(self, name: str, loss: Tensor, terms: Terms | None = None) -> None:
        """Backward, finite check, optimizer step and zero_grad of one named optimizer.

        Args:
            name: A key of `Method.optimizers`.
            loss: What it minimises; only its own parameters receive gradients.
            terms: Named parts of the loss, for the record of a failure.
        """
        ...


@dataclass(frozen=True)
class EpochResult:
    """What `end_epoch` returns to the loop.

    Args:
        records: What to record, as plain values.
        reset_optimizers: Names of optimizers whose state is cleared.
        new_images: Images to add to the training pool. The next epoch learns from them, too.
        drop_oldest: How many of the earlier additions leave the pool, the oldest first.
    """

    records: dict[str, Any] = field(default_factory=dict)
    reset_optimizers: tuple[str, ...] = ()
    new_images: PoolImages | None = None
    drop_oldest: int = 0


@dataclass(frozen=True)
class RunContext:
    """Data and options of a run from which `Method.build` makes the method.

    Args:
        seed: The run's seed.
        augment: The augmentation G of the run.
        average: Which averages follow the trained network, and their options.
        clean: All clean images of the source, in shuffled chunks with row indices and labels.
        pool: The training images: those of the source, and those that a method added.
        batch_statistics: How batch-normalised networks are evaluated: with statistics of `clean`,
            or `"trained"`: with those that training left.
        passes: How often each clean image is seen in an epoch, on average; 0 if views are random.
        period: The method's k: epochs between two snapshots, unless `average.k` is set.
        epochs: Epochs of the main phase.
        steps: Steps of an epoch.
        image_size: Side of the images that the network sees.
        validation_loss: Loss of a network on the source's validation images, if there are any.
        load_model: Reads a classifier from a run or model folder, e.g. a teacher.
    """

    seed: int
    augment: Augment
    average: AverageSettings
    clean: CleanImages
    pool: TrainingPool
    batch_statistics: StatisticsRule
    passes: float
    period: int
    epochs: int
    steps: int
    image_size: int
    validation_loss: ValidationLoss | None
    load_model: Callable[[str], Classifier]

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


class Method(nn.Module, abc.ABC):
    """Base class of training methods.

    Most methods define a `loss` and leave `step` and `optimizers` as they are: then one optimizer
    trains all parameters that require a gradient. A method with several optimizers or several
    updates per batch defines both.

    Averages may follow the trained network without any influence on it (`attach_averages`). The
    first of them is deployed instead of the network itself.
    """

    averages_used: ClassVar[int] = 0
    """How many entries of `--average` the method consumes itself; the rest are attached."""

    own_deployed: ClassVar[str | None] = None
    """The key of `networks` to deploy even if averages are attached.

    None: the first attached average, or else the trained network.
    """

    divergence_hint: ClassVar[str] = ""
    """What else to try where the loss diverges, after "Lower the learning rate"."""

    model: Classifier

    def __init__(self) -> None:
        super().__init__()
        self.attached = nn.ModuleDict()
        self._warned = False

    @classmethod
    @abc.abstractmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        """Build the method around `model` from its `Settings` and the context of the run."""

    @classmethod
    def adapt(cls, model: Classifier, settings: Any, size: int) -> Classifier:
        """Change the network before the phase that `settings.adapts_before` names.

        The result is a copy, as `Classifier.with_layers` makes it, so that a stored model loads
        without the method. By default nothing changes.

        Args:
            model: The network.
            settings: The method's `Settings`.
            size: Side of the images that it will see.
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
        parameters = [p for p in self.parameters() if p.requires_grad]
        return {"main": OptimizerPlan([ParamGroup(parameters)])}

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Learn from a batch; return the loss and its named terms, detached."""
        terms = self.loss(batch)
        update("main", terms["loss"], terms)
        return {name: value.detach() for name, value in terms.items()}

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
        """The method's networks to evaluate, by name; the trained one comes first.

        By default it is the attribute `model`.
        """
        return {"model": self.model}

    @property
    def trained(self) -> Classifier:
        """The trained network."""
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
                "`finish_epoch_averages` and `end_epoch` after each epoch. "
                "Snapshots need at least k epochs.",
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
        `finish_epoch_averages` at the end of each epoch, before `end_epoch`.

        Raises:
            ConfigError: If a name is taken, or an average has to see the network before each epoch
                (snapshots with `include_init`), which only a method's own average does.
        """
        for name, average in averages.items():
            if name in self.evaluated_networks:
                raise ConfigError(
                    f"'{name}' is the name of a network that the method has already.",
                    hint=f"Choose another name than {', '.join(self.evaluated_networks)}.",
                )
            if average.needs_epoch_start:
                raise ConfigError(
                    f"'{name}' averages networks at the start of epochs; only ends are seen.",
                    hint="Make its snapshots without include_init.",
                )
        self.attached.update(averages)

    def update_averages(self) -> None:
        """Let every average follow an optimizer step; in your own loop, call it after each."""
        for average in self.averages.values():
            average.after_step(self.trained)

    def finish_epoch_averages(self, epoch: int) -> dict[str, Any]:
        """Let the attached averages follow the end of an epoch; return what to record.

        In your own loop, call it at the end of each epoch, before `end_epoch`, which may change the
        trained network.

        Raises:
            NumericalError: If an average is not finite.
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
