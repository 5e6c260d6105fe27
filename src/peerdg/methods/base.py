"""Define the interface between training methods and `train/loop.py` or a custom loop."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from peerdg.augment.protocol import Augment
from peerdg.averages.average_options import AverageSettings, make_average
from peerdg.averages.base import Average, ValidationLoss
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.methods.clean import CleanImages, as_bytes, as_view
from peerdg.methods.pool import PoolImages, TrainingPool
from peerdg.methods.recipes import Reconstruction
from peerdg.models.classifier import Classifier, require_classifier
from peerdg.options import did_you_mean, option, validate

StatisticsRule = Literal["clean", "trained"]
"""Batch statistics for evaluation: recomputed on clean images, or kept from training."""

Terms = dict[str, Tensor]
"""`"loss"` and its named terms."""

OFF = "none"
"""Option value that turns a component off. See `part_of` in `peerdg.options.option`."""

weight_option = partial(option, at_least=0, announced=True)
"""Make an option for the weight of a loss term. Announced, because results depend on it."""


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Base class of each method's `Settings`: its options, and facts about the method."""

    # Name of the option that sets the period. None if all epochs are alike.
    period_option: ClassVar[str | None] = None
    # Kind of average that is part of the method. `--average` overrides it.
    own_average: ClassVar[str | None] = None
    # Kind of augmentation, if the method uses one. `--augment.kind` overrides it.
    own_augment: ClassVar[str] = "randaugment"
    # Options that have an effect only if the method averages snapshots.
    snapshot_options: ClassVar[tuple[str, ...]] = ()
    # Where batches are drawn from. With "source", the method itself reads the images that it added
    # to the pool (`TrainingPool.view`).
    batches_from: ClassVar[Literal["pool", "source"]] = "pool"
    # Whether the method adds images to the training pool.
    grows_pool: ClassVar[bool] = False
    # Data sets for which the method has no released code or published values. Tables mark these.
    reconstruction: ClassVar[Reconstruction] = "no"
    # Description of the deployed network for the model card, if there is no average.
    deploys: ClassVar[str] = "the trained network"

    def __new__(cls, **values: object) -> Self:
        """Reject unknown options, and suggest a known one."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"Unknown option '{name}'.", hint=did_you_mean(name, known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def is_oracle(self) -> bool:
        """Whether the method uses a network trained elsewhere. Tables mark such rows."""
        return False

    @property
    def augments(self) -> bool:
        """Whether the method trains on augmented images, as set by its option `augment`, if any."""
        return bool(getattr(self, "augment", True))

    @property
    def is_baseline(self) -> bool:
        """Whether the loss is cross-entropy alone. Reports compare other methods with it."""
        return False

    @property
    def period(self) -> int:
        """Number of epochs between policy draws or snapshots."""
        return 1 if self.period_option is None else int(getattr(self, self.period_option))

    @property
    def adapts_before(self) -> Literal["pretrain", "train"] | None:
        """Phase before which `Method.adapt` changes the network. None if it never does."""
        return None

    def for_time_estimate(self) -> Self:
        """Return options without work between epochs that does not grow with the data."""
        return self

    @property
    def caution(self) -> str | None:
        """A warning about these options, from our studies. Shown when a run starts."""
        return None

    def check_images(self, side: int) -> None:
        """Raise a `ConfigError` if an option does not work for images of `side` pixels."""

    def inert(self, epochs: Sequence[Mapping[str, Any]]) -> str | None:
        """Return why the method had no effect in a run, given the records of its main phase.

        Tables mark such a row as inert and give the reason, e.g. "perturbation 0.1 gray levels".
        The result is None if the method had an effect, or if the records cannot tell.
        """
        return None

    @property
    def trains_on_pool(self) -> bool:
        """Whether batches are drawn from a pool that includes images made by the method."""
        return self.batches_from == "pool" and self.grows_pool

    @property
    def averages_start(self) -> bool:
        """Whether snapshots are taken at the start of a period, initial weights included."""
        return bool(getattr(self, "include_init", False))

    def check_average(self, kind: str, *, last: int | None = None) -> None:
        """Reject `snapshot_options` that do not fit the kind and window of the method's average."""
        defaults = {f.name: f.default for f in fields(self)}
        changed = [n for n in self.snapshot_options if getattr(self, n) != defaults[n]]
        if changed and kind not in ("snapshots", "swa"):
            raise ConfigError(
                f"The option '{changed[0]}' applies to snapshots, but the average is '{kind}'.",
                hint=f"Leave out either {changed[0]} or the average '{kind}'.",
            )
        if "average" in changed and last not in (None, 1):
            raise ConfigError(f"average.last is {last}, but the option 'average' disables it.")
        if self.averages_start and "reset_proxy" in changed:
            raise ConfigError("The options include_init and reset_proxy cannot be used together.")


@dataclass(frozen=True)
class Batch:
    """A batch of training images with optional metadata.

    Args:
        images: Clean images, uint8 or floating point in [0, 1]. The latter are rounded to uint8.
        labels: Class indices of the images.
        index: Rows of the images in the training set, if the clean images are the same in every
            epoch. Lets a method cache results per image.
        seed: Seed for all randomness in this batch. None uses torch's global generator.
        augmented: Augmented images, if `Method.prepare` has made them. Either uint8, or floating
            point where 1.0 is white and values may leave [0, 1].
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
        """Return a fresh generator for this batch, or None for the global one."""
        return None if self.seed is None else torch.Generator().manual_seed(self.seed)


class Loss(Terms):
    """A loss (`total` or `["loss"]`) and its detached terms. `parts` keeps their gradients."""

    def __init__(self, total: Tensor, **parts: Tensor) -> None:
        super().__init__(loss=total, **{name: part.detach() for name, part in parts.items()})
        self.total, self.parts = total, parts


@dataclass(frozen=True)
class ParamGroup:
    """Parameters trained with `lr_scale` times the learning rate of their optimizer."""

    parameters: list[nn.Parameter]
    lr_scale: float = 1.0


@dataclass(frozen=True)
class OptimizerPlan:
    """Parameters and options of one optimizer.

    Without a `kind`, the training phase determines optimizer, learning rate and schedule, and the
    other options are ignored.
    """

    groups: list[ParamGroup]
    kind: Literal["adam", "sgd"] | None = None
    lr: float = 1e-4
    momentum: float = 0.0
    weight_decay: float = 0.0

    @classmethod
    def of(cls, *modules: nn.Module, **options: Any) -> Self:
        """Plan one group with all parameters of `modules` that require a gradient."""
        parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        return cls([ParamGroup(parameters)], **options)


OptimizerStep = Callable[..., None]
"""`update(name, loss, terms)`: backward, finite check, optimizer step and zero_grad.

`name` is a key of `Method.optimizers`. Only the parameters of that optimizer receive gradients.
`terms` are the named parts of the loss, recorded if the check fails.
"""


@dataclass(frozen=True)
class EpochResult:
    """Result of `Method.end_epoch`, for the training loop."""

    records: dict[str, Any] = field(default_factory=dict)  # plain values for the run's records
    reset_optimizers: tuple[str, ...] = ()  # names of optimizers whose state to clear
    new_images: PoolImages | None = None  # added to the training pool from the next epoch on
    drop_oldest: int = 0  # number of oldest additions to remove from the pool


@dataclass(frozen=True)
class RunContext:
    """Data and options of a run, passed to `Method.build`."""

    seed: int
    augment: Augment  # G
    average: AverageSettings
    clean: CleanImages  # all source images, with row indices and labels
    pool: TrainingPool  # source images, and images added by the method
    batch_statistics: StatisticsRule
    passes: float  # mean number of uses of each clean image per epoch, or 0 if views are random
    period: int  # the method's k: epochs between two snapshots, unless `average.k` is set
    epochs: int  # epochs of the main phase
    steps: int  # steps per epoch
    batch_size: int
    image_size: int  # side of the network's input images
    validation_loss: ValidationLoss | None  # loss of a network on the source's validation images
    load_model: Callable[[str], Classifier]  # loads a run or model folder, e.g. a teacher

    def make_average(self, kind: str, model: Classifier) -> Average:
        """Make an average of a kind that `--average` accepts."""
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

    Most methods define only a `loss`. One optimizer then trains all parameters that require a
    gradient. A method with several optimizers, or several updates per batch, overrides `step` and
    `optimizers`.

    `attach_averages` adds weight averages of the trained network. They do not influence training,
    and the first of them is deployed instead of the network itself.

    Args:
        model: The network to train. None if the method stores its `networks` itself.
        settings: The method's `Settings`.
    """

    # Number of entries of `--average` that the method uses itself. The rest are attached.
    averages_used: ClassVar[int] = 0
    # Key of `networks` to deploy even if averages are attached. None deploys the first attached
    # average, or else the trained network.
    own_deployed: ClassVar[str | None] = None
    # Advice for a diverging loss, appended to "Lower the learning rate".
    divergence_hint: ClassVar[str] = ""

    model: Classifier

    def __init__(self, model: Classifier | None = None, settings: Any = None) -> None:
        super().__init__()
        self.attached = nn.ModuleDict()
        self._warned = False
        if model is not None:
            require_classifier(model)
            self.model = model
        self.settings = settings

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        """Build the method around `model` from its `Settings` and the run's context."""
        return cls(model, settings)

    @classmethod
    def adapt(cls, model: Classifier, settings: Any, size: int) -> Classifier:
        """Change the network before the phase named by `settings.adapts_before`.

        The result is a copy made by `Classifier.with_layers`, so that a stored model can be
        loaded without the method. `size` is the side of the input images.
        """
        return model

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        """Augment several batches at once, or do other work that does not need the weights.

        This only saves time and must not change any loss. A custom loop need not call it.
        """
        return batches

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """Return a plan for each optimizer, by name. By default `"main"` trains everything."""
        return {"main": OptimizerPlan.of(self)}

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Train on one batch. Return the loss and its named terms."""
        terms = self.loss(batch)
        update("main", terms["loss"], terms)
        return terms

    def forward(self, batch: Batch | Tensor, labels: Tensor | None = None) -> Loss:
        """Compute the loss of a `Batch`, or of images and their labels."""
        return self.loss(self.as_batch(batch, labels))

    def as_batch(self, batch: Batch | Tensor, labels: Tensor | None = None) -> Batch:
        """Combine images and labels into a `Batch`. A `Batch` is returned unchanged."""
        if isinstance(batch, Batch):
            return batch
        if labels is None:
            raise TypeError("Labels are missing. Pass a Batch, or images and labels.")
        classes, is_index = len(self.trained.classes), not labels.is_floating_point()
        if labels.is_cpu:  # Reading values would wait for any other device.
            is_index = is_index and bool(((labels >= 0) & (labels < classes)).all())
        if not is_index or labels.shape != (len(batch),):
            raise DataError(
                f"Labels must be {len(batch)} class indices from 0 to {classes - 1}.",
                hint="For one-hot labels, pass labels.argmax(1).",
            )
        return Batch(batch, labels.long())

    def loss(self, batch: Batch) -> Loss:
        """Compute the loss to minimize, and its named terms."""
        raise TypeError(f"{type(self).__name__} defines neither `loss` nor `step`.")

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Called before each epoch, counted from 0. Returns plain values to record.

        The effect may depend only on the state and the epoch number, because a resumed run calls
        this again for the epoch it continues.
        """
        return {}

    def end_epoch(self, epoch: int) -> EpochResult:
        """Called after each epoch, counted from 0."""
        return EpochResult()

    @property
    def networks(self) -> dict[str, Classifier]:
        """The method's networks to evaluate, by name. The trained network comes first."""
        return {"model": self.model}

    @property
    def trained(self) -> Classifier:
        return next(iter(self.networks.values()))

    @property
    def averages(self) -> dict[str, Average]:
        """All averages of the trained network, by key in `evaluated_networks`."""
        return {name: cast(Average, module) for name, module in self.attached.items()}

    @property
    def evaluated_networks(self) -> dict[str, Classifier]:
        """Networks and averages to evaluate, by name. The trained network comes first."""
        averages = {name: average.deployed for name, average in self.averages.items()}
        return {**self.networks, **averages}

    @property
    def frozen_statistics(self) -> bool:
        """Whether training keeps batch statistics fixed. Evaluation then uses them unchanged."""
        return False

    @property
    def needs_clean_statistics(self) -> dict[str, Classifier]:
        """Networks whose batch statistics must be recomputed on clean images for evaluation."""
        if self.frozen_statistics:
            return {}
        done = {name for name, average in self.averages.items() if average.has_clean_statistics}
        return {name: model for name, model in self.evaluated_networks.items() if name not in done}

    @property
    def deployed_name(self) -> str:
        """Key of the deployed network in `evaluated_networks`."""
        return self.own_deployed or next(iter(self.averages), None) or next(iter(self.networks))

    @property
    def deployed(self) -> Classifier:
        """Network to deploy. A warning is issued once if it is an average that is still empty."""
        average = self.averages.get(self.deployed_name)
        if average and average.count == 0 and not self._warned and self._differs_from(average):
            self._warned = True
            warnings.warn(
                f"'{self.deployed_name}' is still the initial network: nothing was averaged yet. "
                "The first snapshot is taken after k epochs: train longer, or lower k. In your "
                "own loop, call `start_epoch` before and `end_epoch` after each epoch.",
                PeerdgWarning,
                stacklevel=2,
            )
        return self.evaluated_networks[self.deployed_name]

    def epochs_seen(self, epoch: int) -> int:
        """Return how many of the first `epoch` epochs the deployed network was trained on."""
        average = self.averages.get(self.deployed_name)
        return epoch if average is None else average.epochs_seen(epoch)

    def attach_averages(self, averages: dict[str, Average]) -> None:
        """Attach averages of the trained network by name.

        In a custom loop, call `update_averages` after each optimizer step, and
        `finish_epoch_averages` at the end of each epoch, before `end_epoch`. Snapshots with
        `include_init` need the network before each epoch, so only a method's own average has them.
        """
        for name, average in averages.items():
            if name in self.evaluated_networks:
                raise ConfigError(f"The method already has a network named '{name}'.")
            if average.needs_epoch_start:
                raise ConfigError(f"The average '{name}' cannot be attached with include_init.")
        self.attached.update(averages)

    def update_averages(self) -> None:
        """Update all averages. In a custom loop, call this after each optimizer step."""
        for average in self.averages.values():
            average.after_step(self.trained)

    def finish_epoch_averages(self, epoch: int) -> dict[str, Any]:
        """Update the attached averages at the end of an epoch. Return values to record.

        In a custom loop, call this before `end_epoch`, which may change the trained network.
        """
        records: dict[str, Any] = {}
        for name in self.attached:
            for value in self.averages[name].after_epoch(self.trained, epoch).values():
                records[name] = value  # an average records at most one value
        return records

    def _differs_from(self, average: Average) -> bool:
        pairs = zip(self.trained.parameters(), average.model.parameters(), strict=True)
        return any(not torch.equal(ours, theirs) for ours, theirs in pairs)
