"""The families of distortions by name, and which of them a training has already seen.

A family that was trained on is not evidence about unseen domains, so it is excluded from model
selection. Free of torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from peerdg.errors import ConfigError
from peerdg.options import did_you_mean

FAMILIES = (
    "arithmetic",
    "artistic",
    "blur",
    "color",
    "contrast",
    "convolutional",
    "edges",
    "geometric",
    "segmentation",
    "weather",
)

RANDAUGMENT = frozenset({"arithmetic", "color", "contrast", "geometric"})
"""What RandAugment trains on: affine maps, brightness, color and contrast, solarize, posterize.

Its Sharpness is a mild relative of one of five operations of `convolutional`; that one stays.
"""

DISJOINT = tuple(name for name in FAMILIES if name not in RANDAUGMENT)
"""The six families that decide by default, for every method alike."""


def overlap_free(families: Iterable[str], trained: Iterable[str]) -> tuple[str, ...]:
    """Those of `families` that are not in `trained`, in the usual order.

    Raises:
        ConfigError: If a name is unknown.
    """
    families, trained = set(families), set(trained)
    for name in sorted(families | trained):
        require_family(name)
    return tuple(name for name in FAMILIES if name in families - trained)


def require_family(name: str) -> None:
    """Refuse a name that is not in `FAMILIES`.

    Raises:
        ConfigError: With the nearest name.
    """
    if name not in FAMILIES:
        raise ConfigError(
            f"Unknown family of distortions '{name}'.", hint=did_you_mean(name, FAMILIES)
        )


@dataclass(frozen=True)
class Fold:
    """A split of the families into those to train on and those to validate on."""

    train: tuple[str, ...]
    validate: tuple[str, ...]


FOLDS = (Fold(FAMILIES[:5], FAMILIES[5:]), Fold(FAMILIES[5:], FAMILIES[:5]))
"""The paper's two folds, for methods that will train on all ten in the end.

Each value of a hyper-parameter is trained twice, once per fold, and scored by `two_fold_score`;
the best value then trains with all families.
"""


def two_fold_score(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Mean accuracy over all families, each judged by the model that did not train on it.

    Args:
        first: Accuracy per family of the model trained on `FOLDS[0].train`.
        second: Accuracy per family of the model trained on `FOLDS[1].train`.

    Raises:
        ConfigError: If a model is judged on a family it was trained on, or a family is missing.
    """
    values: list[float] = []
    for number, (fold, accuracy) in enumerate(zip(FOLDS, (first, second), strict=True), start=1):
        if seen := sorted(accuracy.keys() - set(fold.validate)):
            raise ConfigError(
                f"The model of fold {number} cannot be judged on {', '.join(seen)}.",
                hint=f"It was trained there; judge it on {', '.join(fold.validate)}.",
            )
        if missing := sorted(set(fold.validate) - accuracy.keys()):
            raise ConfigError(f"Fold {number} lacks the accuracy on {', '.join(missing)}.")
        values += accuracy.values()
    return sum(values) / len(values)
