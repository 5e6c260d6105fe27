"""Make an average by the name of its kind."""

from peerdg.averages.base import Average, ValidationLoss
from peerdg.averages.moving import EMA, SMA
from peerdg.averages.settings import KINDS, AverageSettings, no_validation
from peerdg.averages.snapshots import Snapshots
from peerdg.averages.swad import SWAD
from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier
from peerdg.options import did_you_mean


def make_average(
    kind: str,
    model: Classifier,
    settings: AverageSettings,
    *,
    k: int,
    epochs: int,
    steps: int,
    validation_loss: ValidationLoss | None,
) -> Average:
    """Make the average `kind` of `model`.

    Args:
        kind: A key of `KINDS`, or the name of a window of snapshots (`window_of`).
        model: The network to follow.
        settings: Options of all kinds.
        k: Epochs between two snapshots, unless `settings.k` is set.
        epochs: Epochs of the whole training.
        steps: Steps of an epoch.
        validation_loss: Loss of a network on the source's validation images, if there are any.

    Raises:
        ConfigError: If there is no such average, or it needs validation images.
    """
    rule = settings.snapshots_of(kind, k=k, epochs=epochs)
    if rule is not None:
        return Snapshots(model, k=rule.k, start=rule.start, last=rule.last)
    match kind:
        case "ema":
            return EMA(model, decay=settings.decay, warm_up=settings.warm_up)
        case "sma":
            few = min(100, epochs * steps // 10)
            return SMA(model, start=few if settings.t0 is None else settings.t0)
        case "swad":
            if validation_loss is None:
                raise no_validation()
            return SWAD(
                model,
                loss=validation_loss,
                epochs=epochs,
                every=settings.every or min(100, steps),
                converge=settings.converge,
                tolerance=settings.tolerance,
                ratio=settings.ratio,
            )
    raise ConfigError(f"Unknown average '{kind}'.", hint=did_you_mean(kind, KINDS))
