"""What the rest of the package knows about a method besides its options. Free of torch."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal, NamedTuple

from peerdg.options import validate

OFF = "none"
"""The value of an option that switches its component off, see `part_of` of `config.option`."""


Reconstruction = Literal["no", "on digits", "on photos", "everywhere"]
"""Where a method is built without released code or values to compare with."""

_RECONSTRUCTED_ON: dict[Reconstruction, frozenset[str]] = {
    "no": frozenset(),
    "on digits": frozenset({"digits", "digits-mini"}),
    "on photos": frozenset({"pacs", "office-home", "vlcs", "terra"}),
}


def reconstructed_on(where: Reconstruction, data: str) -> bool:
    """Whether a method that is a reconstruction `where` is one on the data set `data`.

    No method has published values for a user's own images: there, only a method that is a
    reconstruction everywhere counts as one.
    """
    return where == "everywhere" or data in _RECONSTRUCTED_ON[where]


class PoolChange(NamedTuple):
    """How the training pool changes at the end of an epoch."""

    added: int
    dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Base of every method's `Settings`: facts about the method, with the usual answers."""

    period_option: ClassVar[str | None] = None
    """The option that sets the period; None for a method that does the same in every epoch."""

    own_average: ClassVar[str | None] = None
    """The kind of average that is part of the method, unless `--average` names another."""

    own_augment: ClassVar[str] = "randaugment"
    """The kind of augmentation, if the method uses any, unless `--augment` names another."""

    batches_from: ClassVar[Literal["pool", "source"]] = "pool"
    """Which images batches are drawn from; with `"source"` the method takes images that it added
    from the pool by itself (`TrainingPool.view`)."""

    reconstruction: ClassVar[Reconstruction] = "no"
    """Where there is neither released code nor published values; tables mark such rows."""

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
        """Whether the method trains on images augmented by the run's augmentation."""
        return True

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
        """Before which phase `Method.adapt` changes the network; None if it never does."""
        return None

    def check_images(self, side: int) -> None:
        """Refuse options that do not fit images of this side, before any work is done.

        Raises:
            ConfigError: If they do not.
        """

    def pool_changes(self, images: int, epochs: int) -> tuple[PoolChange, ...]:
        """How many images enter and leave the training pool after each epoch; () if none ever do.

        From this a run knows in advance how much memory, disk and time it needs.

        Args:
            images: Images of the source.
            epochs: Epochs of the main phase.
        """
        return ()

    @property
    def trains_on_pool(self) -> bool:
        """Whether batches are drawn from a pool that grows by images that the method makes."""
        return self.batches_from == "pool" and bool(self.pool_changes(1, 1))

    @property
    def averages_start(self) -> bool:
        """Whether snapshots are taken at the start of a period, so that the first is the start."""
        return False

    def check_average(self, kind: str, *, last: int | None = None) -> None:
        """Refuse options that mean nothing with `kind` as the method's own average.

        Args:
            kind: A kind of average.
            last: How many of the newest snapshots the run wants averaged; None for all.

        Raises:
            ConfigError: If there are any.
        """

    def notes(self, epochs: int) -> list[str]:
        """What a person should know about a legal but surprising choice, for so many epochs."""
        return []


def parts_of(settings: type[MethodSettings] | MethodSettings, component: str) -> frozenset[str]:
    """The options of a component, among them the one that chooses it."""
    parts = {f.name for f in fields(settings) if f.metadata.get("part_of") == component}
    return frozenset({component, *parts} if parts else ())


def components(settings: type[MethodSettings] | MethodSettings) -> tuple[str, ...]:
    """The options that choose a component, and switch it off with the value `OFF`."""
    named = (f.metadata.get("part_of") for f in fields(settings))
    return tuple(dict.fromkeys(name for name in named if name is not None))
