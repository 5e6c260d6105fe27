"""Define the options of averages. Import classes lazily so that parsing does not import torch."""

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple, cast

from peerdg.errors import ConfigError
from peerdg.options import did_you_mean, option, validate

if TYPE_CHECKING:
    from peerdg.averages.base import Average, ValidationLoss
    from peerdg.models.classifier import Classifier

# The averages and their options.
KINDS = {
    "snapshots": ("k", "start", "last"),  # mean of snapshots taken every k epochs
    "swa": ("swa_start",),  # mean of snapshots taken every epoch
    "ema": ("decay",),  # exponential moving average over steps
    "sma": ("t0",),  # mean over all steps from t0 on
    "swad": ("every", "converge", "tolerance", "ratio"),  # mean over the flat part of the loss
}


class SnapshotRule(NamedTuple):
    """When to take snapshots and which ones to average. See `Snapshots`."""

    k: int
    start: int = 0
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class AverageSettings:
    """Settings of the weight averages."""

    kind: tuple[str, ...] = option((), "averages, e.g. snapshots,ema; the first is deployed")
    k: int | None = option(None, "epochs between snapshots; default: the method's k", at_least=1)
    start: int = option(0, "skip the first N snapshots when averaging", at_least=0)
    last: int | None = option(None, "average only the newest N snapshots; default: all", at_least=1)
    also: tuple[str, ...] = option((), "more means: last-3 (newest 3), start-4 (skip first 4)")
    swa_start: float = option(0.0, "SWA: fraction of the epochs to skip", at_least=0, at_most=1)
    decay: float = option(
        1.0, "EMA: maximum decay d; 1: average the last ninth of the steps", at_least=0, at_most=1
    )
    t0: int | None = option(
        None, "SMA: start after this many steps; default 100, a tenth of short runs", at_least=0
    )
    every: int | None = option(
        None, "SWAD: steps between validations; default 100, at most one epoch", at_least=1
    )
    converge: int = option(3, "SWAD: converged if the first of N losses is the lowest", at_least=1)
    tolerance: int = option(6, "SWAD: stop after N losses in a row above the threshold", at_least=1)
    ratio: float = option(0.3, "SWAD: relative margin of the threshold", at_least=0)

    def __post_init__(self) -> None:
        validate(self)
        for name in ("kind", "also"):
            parts = tuple(part.strip() for text in getattr(self, name) for part in text.split(","))
            object.__setattr__(self, name, parts)
        for kind in self.kind:
            if kind not in KINDS:
                raise ConfigError(f"Unknown average '{kind}'.", hint=did_you_mean(kind, KINDS))
        for name in self.also:
            _window(name, k=1)
        names = (*self.kind, *self.also)
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"The average '{twice[0]}' is listed twice.")

    @property
    def window(self) -> str | None:
        """Name of the window set by `start` and `last`, as in `also`. None if it has no name."""
        if self.last is not None and not self.start:
            return f"last-{self.last}"
        return f"start-{self.start}" if self.start and self.last is None else None

    def check_validation(self, *, available: bool) -> None:
        """Raise if an average needs validation images and there are none."""
        if "swad" in self.kind and not available:
            raise ConfigError(
                "SWAD needs validation images from the source, but there are none.",
                hint="Reserve some (--own-data.validation-fraction) or choose another average.",
            )

    def check_used(self, own: str | None) -> None:
        """Raise if an option is set for an unused average. `own` is the method's own average."""
        kinds = self.kind or (own,)
        defaults = {f.name: f.default for f in fields(self)}
        for kind, names in KINDS.items():
            for name in names:
                is_used = kind in kinds or (name == "k" and self.also)
                if getattr(self, name) != defaults[name] and not is_used:
                    raise ConfigError(
                        f"average.{name} is set, but the average '{kind}' is not used.",
                        hint=f"Add '{kind}' to --average or remove average.{name}.",
                    )

    def snapshots_of(self, kind: str, *, k: int, epochs: int) -> SnapshotRule | None:
        """Return the snapshot rule of the average `kind`, or None if it uses no snapshots."""
        if kind in self.also:
            return _window(kind, k=self.k or k)
        if kind == "snapshots":
            return SnapshotRule(self.k or k, self.start, self.last)
        if kind == "swa":
            return SnapshotRule(1, int(self.swa_start * epochs))
        return None


def _window(name: str, *, k: int) -> SnapshotRule:
    """Parse a name such as `last-3` or `start-4`."""
    match = re.fullmatch(r"last-([1-9][0-9]{0,3})|start-([0-9]{1,4})", name)
    if match is None:
        raise ConfigError(
            f"Unknown snapshot window '{name}'.",
            hint="Use last-N for the newest N snapshots, or start-N to leave out the first N.",
        )
    return SnapshotRule(k, last=int(match[1])) if match[1] else SnapshotRule(k, start=int(match[2]))


def make_average(
    kind: str,
    model: "Classifier",
    settings: AverageSettings,
    *,
    k: int,
    epochs: int,
    steps: int,
    validation_loss: "ValidationLoss | None",
) -> "Average":
    """Build an average of `model`. `kind` is one of `KINDS` or a window from `settings.also`.

    Args:
        kind: Name of the average.
        model: Network to average.
        settings: Options for all kinds.
        k: Epochs between two snapshots, unless `settings.k` is set.
        epochs: Number of training epochs.
        steps: Steps per epoch.
        validation_loss: Computes a network's loss on the source's validation images, for SWAD.
    """
    from peerdg.averages.moving import EMA, SMA
    from peerdg.averages.snapshots import Snapshots
    from peerdg.averages.swad import SWAD

    rule = settings.snapshots_of(kind, k=k, epochs=epochs)
    if rule is not None:
        return Snapshots(model, k=rule.k, start=rule.start, last=rule.last)
    if kind == "ema":
        return EMA(model, decay=settings.decay)
    if kind == "sma":
        default = min(100, epochs * steps // 10)
        return SMA(model, start=default if settings.t0 is None else settings.t0)
    return SWAD(
        model,
        loss=cast("ValidationLoss", validation_loss),
        epochs=epochs,
        every=settings.every or min(100, steps),
        converge=settings.converge,
        tolerance=settings.tolerance,
        ratio=settings.ratio,
    )
