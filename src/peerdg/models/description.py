"""`model.json`: the description stored with the weights, checked whole before it is used."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peerdg.errors import DamagedError
from peerdg.models.combination import CombinedFrom
from peerdg.models.names import LARGEST_SIDE, MEAN_LIMITS, STD_LIMITS
from peerdg.schema import conform, read_json, within

FORMAT = 1
ADAPTED = 2  # the format of networks with added layers, which older versions cannot build
ENSEMBLE = 3  # likewise of several networks whose outputs are averaged
HINT = "Copy it again from its origin."


@dataclass(frozen=True)
class Progress:
    """How far the model was trained; `peerdg.models.stored.how_far` describes it in words.

    The epochs are needed if it is not complete.
    """

    complete: bool
    epoch: int | None = within(at_least=0, default=None)
    epochs: int | None = within(at_least=0, default=None)
    pretrain_epoch: int | None = within(at_least=0, default=None)
    pretrain_epochs: int | None = within(at_least=0, default=None)

    @property
    def missing(self) -> list[str]:
        """Names of the values that it needs and does not have."""
        return [] if self.complete else [name for name, v in vars(self).items() if v is None]


@dataclass(frozen=True)
class Accuracy:
    """Accuracy in percent on `n` images."""

    accuracy: float = within(at_least=0, at_most=100)
    n: int = within(at_least=1)


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error on `n` images."""

    error: float = within(at_least=0, at_most=1)
    bins: int = within(at_least=1)
    n: int = within(at_least=1)


@dataclass(frozen=True)
class Training:
    """Where the model comes from, as `peerdg.run.training_record` writes it for the card."""

    data: str
    source: str
    images: dict[str, int]
    fingerprint: str
    method: str
    weights: str
    budget: str
    seed: int
    settings: dict[str, Any]
    selection: str
    train_seed: int | None = None
    oracle: bool = False
    batch_statistics: str | None = None
    accuracy: dict[str, Accuracy] = field(default_factory=dict)
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Description:
    """All that the weights need to become a model again, and where they come from."""

    format: int
    backbone: str
    classes: tuple[str, ...]
    mean: tuple[float, ...] = within(**MEAN_LIMITS)
    std: tuple[float, ...] = within(**STD_LIMITS)
    image_size: int = within(at_least=1, at_most=LARGEST_SIDE)
    weights_sha256: str = ""
    stored_size: int | None = within(at_least=1, at_most=LARGEST_SIDE, default=None)
    training: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    added_layers: tuple[dict[str, Any], ...] = ()
    combined: CombinedFrom | None = None
    peerdg: str = ""
    torch: str = ""


def read_description(path: Path) -> dict[str, Any]:
    """The content of a `model.json`, complete and of the right types.

    Raises:
        DamagedError: If it is not what was saved, or not a description of a model.
    """
    values = read_json(path, hint=HINT)
    if not isinstance(values, dict) or values.get("sha256") != checksum(values):
        raise DamagedError(f"{path} is not what was saved.", hint=HINT)
    if values.get("format") != format_of(values):
        raise DamagedError(
            f"{path} is of a format that this version of peerdg does not know.",
            hint="Use the version of peerdg that wrote it, or a newer one.",
        )
    about = conform(Description, values, path, hint=HINT)
    if about.training:
        conform(Training, about.training, path, hint=HINT)
    for problem in _problems(about):
        raise DamagedError(f"{path} is damaged: {problem}.", hint=HINT)
    values["stored_size"] = about.stored_size or about.image_size
    values["training"] = about.training
    values["added_layers"] = list(about.added_layers)
    return values


def format_of(description: Mapping[str, Any]) -> int:
    """The oldest format that can store a description, so that older versions can read it."""
    if is_ensemble(description):
        return ENSEMBLE
    return ADAPTED if description.get("added_layers") else FORMAT


def is_ensemble(description: Mapping[str, Any]) -> bool:
    """Whether it describes several networks whose outputs are averaged."""
    combined = description.get("combined")
    return isinstance(combined, Mapping) and combined.get("rule") == "ensemble"


def _problems(about: Description) -> list[str]:
    """Errors that types and limits do not express."""
    wrong = []
    if not about.classes or len(set(about.classes)) < len(about.classes):
        wrong.append("'classes' must be different names")
    if len(about.mean) != 3 or len(about.std) != 3:
        wrong.append("'mean' and 'std' must have a number for each of three channels")
    if about.progress is not None and about.progress.missing:
        wrong.append(f"'progress.{about.progress.missing[0]}' is missing")
    if about.combined is not None and about.combined.problem:
        wrong.append(about.combined.problem)
    return wrong


def checksum(description: Mapping[str, Any]) -> str:
    """SHA-256 of the rest of the description: a class name is as vital as a weight."""
    content = {name: value for name, value in description.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
