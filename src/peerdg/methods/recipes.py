"""Named methods of the literature that are an objective of ours with some options, as data.

`peerdg train --method NAME` expands a recipe; the run's config holds what it expanded to, and its
name. Free of torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peerdg.config import merge


@dataclass(frozen=True)
class Recipe:
    """An objective and the options that make it a method of the literature.

    Args:
        summary: One line for people.
        method: The objective.
        average: What averages the network it trains.
    """

    summary: str
    method: str
    average: str

    @property
    def tables(self) -> dict[str, Any]:
        """What it expands to, as in a config file."""
        return {"method": self.method, "average": {"kind": [self.average]}}


RECIPES = {
    "p-ens": Recipe(
        "RandAugment, deployed as the mean of its snapshots: PEER without its regulariser",
        method="randaugment",
        average="snapshots",
    ),
    "swa": Recipe("RandAugment with SWA: the mean over epochs", "randaugment", "swa"),
    "ema": Recipe("RandAugment with an exponential moving average", "randaugment", "ema"),
    "sma": Recipe("RandAugment with SMA: the mean over steps", "randaugment", "sma"),
    "swad": Recipe(
        "RandAugment with SWAD: the mean over the flat part of the validation loss",
        method="randaugment",
        average="swad",
    ),
}


def expand(layers: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """`layers` with the recipe that the last of them names replaced by what it stands for.

    The method of an earlier layer is forgotten, and so is what it would have expanded to.
    """
    last = max((n for n, layer in enumerate(layers) if "method" in layer), default=None)
    return tuple(
        _expanded(layer) if number == last else _without_method(layer)
        for number, layer in enumerate(layers)
    )


def _expanded(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    name = layer.get("method")
    if not isinstance(name, str) or name not in RECIPES:
        return layer
    tables = RECIPES[name].tables
    return merge(tables, layer, {"method": tables["method"], "recipe": name})


def _without_method(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in layer.items() if key != "method"}
