"""Resolve the config of a run on own images; options not given follow from the images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peerdg.config import build, merge
from peerdg.data.benchmarks import OWN_DATA, OwnDataSettings
from peerdg.data.own_data import glance
from peerdg.data.splits import Splits
from peerdg.models.names import OWN
from peerdg.run.choices import Choices, choose
from peerdg.run.settings import RunConfig, resolve


def resolve_own_data(
    given: Mapping[str, Any],
    splits: Splits | None = None,
    *,
    file: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, Choices]:
    """Complete the config for the images under `given["root"]`, or for `splits` in memory.

    Args:
        given: Options given by the user, nested as in a config file.
        splits: Domains from Python; their images are not looked for.
        file: Options from a config file; `given` wins over them.

    Returns:
        The config, and what was chosen in it and why.
    """
    layers = [_with_whole_paths(layer) for layer in (file or {}, {**given, "benchmark": OWN_DATA})]
    wanted = merge(*layers)
    if splits is None:
        settings = build(OwnDataSettings, wanted.get(OWN_DATA, {}), where=OWN_DATA)
        images, side = glance(Path(wanted["root"]), settings)
    else:
        images, side = len(splits.train), splits.train.image_size[0]
    budget = str(wanted.get("budget", RunConfig.budget))
    own_network = wanted.get("backbone") == OWN
    choices = choose(images=images, side=side, budget=budget, own_network=own_network)
    return resolve(*layers, choices=choices), choices


def _with_whole_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """Paths that mean the same wherever the run is resumed; names of domains stay.

    Values of a wrong type stay as they are: `resolve` refuses them with a message.
    """
    whole = dict(given)
    if "root" in whole:
        whole["root"] = _whole(whole["root"])
    if isinstance(whole.get("targets"), str):
        whole["targets"] = [whole["targets"]]
    if isinstance(whole.get("targets"), list | tuple):
        whole["targets"] = [_whole(target) for target in whole["targets"]]
    own = whole.get(OWN_DATA)
    if isinstance(own, Mapping) and own.get("validation_folder"):
        whole[OWN_DATA] = {**own, "validation_folder": _whole(own["validation_folder"])}
    return whole


def _whole(path: Any) -> Any:
    if not isinstance(path, str):
        return path
    place = Path(path).expanduser()
    return str(place.resolve()) if place.exists() else path
