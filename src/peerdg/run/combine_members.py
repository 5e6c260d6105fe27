"""The members of a combined model: read their descriptions, check that they fit together."""

import copy
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.models.classifier import Classifier
from peerdg.models.combination import MOST_MEMBERS
from peerdg.models.description import is_ensemble, read_description
from peerdg.models.stored import DESCRIPTION, how_far, load_stored, model_folder
from peerdg.run.manifest import read_inputs
from peerdg.terminal import storable


class MemberFolder(NamedTuple):
    """A run's model, not loaded.

    Args:
        name: The name of the folder, for records.
        given: The path as it was given, for messages.
        folder: The model folder.
        description: The content of its `model.json`.
    """

    name: str
    given: Path
    folder: Path
    description: dict[str, Any]

    @property
    def training(self) -> dict[str, Any]:
        """Where the model comes from; empty if that is not recorded."""
        training: dict[str, Any] = self.description["training"]
        return training

    @property
    def run(self) -> Path | None:
        """The run folder, if it was given as such or by the model inside of it."""
        places = (self.given, self.given.parent)
        return next((place for place in places if (place / "config.toml").is_file()), None)

    def load(self, network: nn.Module | None) -> Classifier:
        """The classifier; of a network of the user's own, in a copy of it."""
        return load_stored(self.folder, copy.deepcopy(network))[0]


def read_members(runs: Sequence[Path]) -> list[MemberFolder]:
    """Read the description of each model, before any weights are loaded.

    Raises:
        ConfigError: With fewer than two, too many, or one of them twice.
    """
    if not 2 <= len(runs) <= MOST_MEMBERS:
        raise ConfigError(
            f"{len(runs)} runs were given; 2 to {MOST_MEMBERS} can be combined.",
            hint="peerdg combine runs/a runs/b -o combined",
        )
    members: list[MemberFolder] = []
    for given in runs:
        folder = model_folder(given)
        if not os.path.lexists(folder / DESCRIPTION):
            raise DataError(
                f"There is no model in {given}: {DESCRIPTION} is missing.",
                hint="Give run folders or model folders.",
            )
        place = given.resolve()
        name = place.parent.name if place.name == "model" else place.name
        member = MemberFolder(storable(name), given, folder, read_description(folder / DESCRIPTION))
        for other in members:
            if other.description["weights_sha256"] == member.description["weights_sha256"]:
                raise ConfigError(
                    f"{other.given} and {given} are the same model.",
                    hint="Name each run once; runs of one seed need another --train-seed each.",
                )
        if far := how_far(member.description):
            warnings.warn(
                f"{given} was {far}: its run is not finished.", PeerdgWarning, stacklevel=3
            )
        members.append(member)
    return members


def require_combinable(members: Sequence[MemberFolder]) -> None:
    """Refuse runs whose models cannot be one.

    Raises:
        ConfigError: For the first of them that differs, with both values.
    """
    first = members[0]
    for member in members:
        if is_ensemble(member.description):
            raise ConfigError(
                f"{member.given} is an ensemble of its own.",
                hint="Name its members instead, if they are runs; an ensemble is not combined.",
            )
        for what, value in _must_agree(member).items():
            if value != _must_agree(first)[what]:
                raise ConfigError(
                    f"{first.given} and {member.given} have other {what}: "
                    f"{_must_agree(first)[what]}; {value}.",
                    hint="Combine runs of one --backbone on the same classes and image size.",
                )


def _must_agree(member: MemberFolder) -> dict[str, str]:
    """What must be the same in all members, as text."""
    about = member.description
    numbers = (*about["mean"], *about["std"])
    return {
        "classes": ", ".join(about["classes"]),
        "networks": str(about["backbone"]),
        "layers": ", ".join(map(str, about["added_layers"])) or "none added",
        "normalisation": ", ".join(f"{number:g}" for number in numbers),
        "image sizes": f"{about['image_size']} (decoded to {about['stored_size']})",
        "batch statistics": str(member.training.get("batch_statistics", "not recorded")),
    }


def warn_of_different_starts(members: Sequence[MemberFolder]) -> None:
    """Warn if the main phases of the runs did not begin with the same weights.

    Networks that were initialised apart lie in different valleys of the loss, and the mean of
    their weights in none of them.
    """
    first, *rest = members
    ours = _starting_point(first)
    for member in rest:
        theirs = _starting_point(member)
        differing = [what for what in ours if what in theirs and ours[what] != theirs[what]]
        if ours and theirs and not differing:
            continue
        reason = f"they differ in {', '.join(differing)}" if differing else "it is not recorded"
        warnings.warn(
            f"{first.given} and {member.given} may not have started from the same weights "
            f"({reason}): the mean of their weights may be good for nothing. Train them with one "
            "--seed and another --train-seed each, or use --rule ensemble.",
            PeerdgWarning,
            stacklevel=4,
        )
        return


def _starting_point(member: MemberFolder) -> dict[str, Any]:
    """Everything recorded that decides the weights at the start of the main phase, by its name."""
    training = member.training
    if not training:
        return {}
    named = {"seed": "seed", "weights": "initial weights", "fingerprint": "training images"}
    start = {text: training[name] for name, text in named.items()}
    for name, value in training["settings"].items():
        if name.startswith(("pretrain.", "transform.")):
            start[name] = value
    if member.run is not None:
        inputs = read_inputs(member.run / "manifest.json")
        start["initial weights of the network"] = inputs.network_weights
        start["file of initial weights"] = inputs.weights_sha256
    return start
