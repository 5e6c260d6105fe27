"""The config of a run on a user's own images: what they do not say, their images decide."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peerdg.config import build
from peerdg.data.domain import Splits
from peerdg.data.glance import glance
from peerdg.data.registry import OWN_DATA
from peerdg.data.settings import OwnDataSettings
from peerdg.models.names import OWN
from peerdg.train.choices import Choices, choose
from peerdg.train.settings import RunConfig, resolve


def resolve_own(
    given: Mapping[str, Any], splits: Splits | None = None
) -> tuple[RunConfig, Choices]:
    """The complete config for the images under `given["root"]`, or for `splits` in memory.

    Args:
        given: What the user said, nested as in a config file.
        splits: Domains from Python; their images are not looked for.

    Returns:
        The config, and what was chosen in it and why.
    """
    given = _with_whole_paths({**given, "benchmark": OWN_DATA})
    if splits is None:
        settings = build(OwnDataSettings, given.get(OWN_DATA, {}), where=OWN_DATA)
        images, side = glance(Path(given["root"]), settings)
    else:
        images, side = len(splits.train), splits.train.image_size[0]
    budget = str(given.get("budget", RunConfig.budget))
    own_network = given.get("backbone") == OWN
    choices = choose(images=images, side=side, budget=budget, own_network=own_network)
    return resolve(given, choices=choices), choices


def _with_whole_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """Paths that mean the same wherever the run is resumed; names of domains stay."""
    whole = dict(given)
    if "root" in whole:
        whole["root"] = _whole(whole["root"])
    if whole.get("targets"):
        whole["targets"] = [_whole(target) for target in whole["targets"]]
    own = dict(whole.get(OWN_DATA, {}))
    if own.get("validation_folder"):
        whole[OWN_DATA] = {**own, "validation_folder": _whole(own["validation_folder"])}
    return whole


def _whole(path: str) -> str:
    place = Path(path).expanduser()
    return str(place.resolve()) if place.exists() else path
