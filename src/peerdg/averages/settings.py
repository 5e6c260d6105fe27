"""Options of the averages, free of torch."""

import re
from collections import Counter
from dataclasses import dataclass, fields
from typing import NamedTuple

from peerdg.errors import ConfigError
from peerdg.options import did_you_mean, option, validate

KINDS = {
    "snapshots": "mean of a snapshot every k epochs",
    "swa": "mean of the network after every epoch (SWA)",
    "ema": "exponential moving average of every step",
    "sma": "mean of every step from the t0-th on (SMA)",
    "swad": "mean over the flat part of the validation loss (SWAD)",
}
OPTIONS_OF = {
    "snapshots": ("k", "start", "last"),
    "swa": ("swa_start",),
    "ema": ("decay", "warm_up"),
    "sma": ("t0",),
    "swad": ("every", "converge", "tolerance", "ratio"),
}


@dataclass(frozen=True, kw_only=True)
class AverageSettings:
    """Averages of weights that follow the trained network."""

    kind: tuple[str, ...] = option(
        (), "averages to follow, e.g. snapshots,ema; the first is deployed"
    )
    k: int | None = option(
        None, "epochs between two snapshots; default: the method's k", at_least=1
    )
    start: int = option(0, "first snapshots that are left out of the mean", at_least=0)
    last: int | None = option(
        None, "mean of the newest snapshots only, this many; default: all", at_least=1
    )
    also: tuple[str, ...] = option(
        (), "further means of snapshots in the same run: last-3 newest three, start-4 without four"
    )
    swa_start: float = option(
        0.0, "part of the epochs before SWA begins; 0.75 as published", at_least=0, at_most=1
    )
    decay: float = option(0.999, "d of the exponential moving average", at_least=0, at_most=1)
    warm_up: bool = option(True, "EMA: let d grow from 0.1 in the first steps")
    t0: int | None = option(
        None, "SMA: steps before its mean begins; default 100, a tenth of short runs", at_least=0
    )
    every: int | None = option(
        None,
        "SWAD: steps between two looks at the validation loss; default 100, at most an epoch",
        at_least=1,
    )
    converge: int = option(
        3, "SWAD: losses in a row of which the first is the smallest at convergence", at_least=1
    )
    tolerance: int = option(6, "SWAD: looks above the threshold before the mean ends", at_least=1)
    ratio: float = option(0.3, "SWAD: how far above the minimum the threshold lies", at_least=0)

    @property
    def window(self) -> str | None:
        """The name in `also` of the snapshots that the mean is over; None if it has none."""
        if self.last is not None and not self.start:
            return f"last-{self.last}"
        return f"start-{self.start}" if self.start and self.last is None else None

    def check_validation(self, *, available: bool) -> None:
        """Refuse an average that looks at validation images where there are none.

        Raises:
            ConfigError: If so.
        """
        if "swad" in self.kind and not available:
            raise no_validation()

    def snapshots_of(self, kind: str, *, k: int, epochs: int) -> "SnapshotRule | None":
        """Which snapshots the average `kind` is the mean of; None if it is none of snapshots.

        Args:
            kind: A key of `KINDS`, or one of `also`.
            k: Epochs between two snapshots, unless `self.k` is set.
            epochs: Epochs of the whole training.
        """
        if kind in self.also:
            return SnapshotRule(self.k or k, *window_of(kind))
        if kind == "snapshots":
            return SnapshotRule(self.k or k, self.start, self.last)
        if kind == "swa":
            return SnapshotRule(1, int(self.swa_start * epochs))
        return None

    def check_used(self, own: str | None) -> None:
        """Refuse options of averages that the run does not have.

        Args:
            own: The kind that is part of the method, unless another one is named.

        Raises:
            ConfigError: If such an option does not have its default value.
        """
        kinds = self.kind or (own,)
        defaults = {f.name: f.default for f in fields(self)}
        for kind, names in OPTIONS_OF.items():
            for name in names:
                is_used = kind in kinds or (name == "k" and self.also)
                if getattr(self, name) != defaults[name] and not is_used:
                    raise ConfigError(
                        f"average.{name} is an option of the average '{kind}', which this run "
                        "does not have.",
                        hint=f"Add '{kind}' to --average, or leave average.{name} out.",
                    )

    def __post_init__(self) -> None:
        validate(self)
        for name in ("kind", "also"):
            parts = tuple(part.strip() for text in getattr(self, name) for part in text.split(","))
            object.__setattr__(self, name, parts)
        for kind, times in Counter((*self.kind, *self.also)).items():
            if times > 1:
                raise ConfigError(
                    f"The average '{kind}' is named twice.", hint="Name each of them once."
                )
        for kind in self.kind:
            if kind not in KINDS:
                raise ConfigError(f"Unknown average '{kind}'.", hint=did_you_mean(kind, KINDS))
        for name in self.also:
            window_of(name)  # refuses what is none


def no_validation() -> ConfigError:
    """What to raise where SWAD has no validation images."""
    return ConfigError(
        "SWAD needs validation images of the source.",
        hint="Hold some back (--own-data.validation-fraction), or choose another average.",
    )


class SnapshotRule(NamedTuple):
    """When snapshots are taken, and which of them a mean is over; see `Snapshots`."""

    k: int
    start: int = 0
    last: int | None = None


class Window(NamedTuple):
    """Which snapshots a mean is over; see `Snapshots`."""

    start: int = 0
    last: int | None = None


def window_of(name: str) -> Window:
    """The snapshots that a name such as `last-3` or `start-4` stands for.

    Raises:
        ConfigError: If it is no such name.
    """
    match = re.fullmatch(r"(last|start)-([1-9][0-9]{0,3})", name)
    if match is None:
        raise ConfigError(
            f"Unknown window of snapshots '{name}'.",
            hint="Write last-N for the newest N snapshots, or start-N to leave the first N out.",
        )
    number = int(match[2])
    return Window(last=number) if match[1] == "last" else Window(start=number)
