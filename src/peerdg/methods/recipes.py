"""Named methods of the literature that are an objective of ours with some options, as data.

`peerdg train --method NAME` expands a recipe; the run's config holds what it expanded to, and its
name. Free of torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peerdg.config import merge
from peerdg.methods.metadata import Reconstruction


@dataclass(frozen=True)
class Recipe:
    """An objective and the options that make it a method of the literature.

    Args:
        summary: One line for people.
        method: The objective.
        average: What averages the network it trains; None leaves that to the objective.
        options: Sections of a config file, e.g. `{"augment": {"kind": "randconv"}}`.
        reconstruction: Where there is neither released code nor published values for it.
    """

    summary: str
    method: str
    average: str | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reconstruction: Reconstruction = "no"

    @property
    def tables(self) -> dict[str, Any]:
        """What it expands to, as in a config file."""
        average = {} if self.average is None else {"average": {"kind": [self.average]}}
        return merge({"method": self.method}, average, self.options)

    @property
    def flags(self) -> str:
        """What it is short for on the command line."""
        average = [] if self.average is None else [f"--average {self.average}"]
        rest = [
            _flag(section, name, value)
            for section, values in self.options.items()
            for name, value in values.items()
        ]
        return " ".join([f"--method {self.method}", *average, *rest])

    def describes(self, tables: Mapping[str, Any]) -> bool:
        """Whether a run with these options is still what the recipe stands for."""
        return _contains(tables, self.tables)


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
    "peer-no-average": Recipe(
        "PEER without averaging: the task model is the proxy's latest snapshot",
        method="peer",
        options={"peer": {"average": False}},
    ),
    "peer-ema": Recipe("PEER whose task model is the proxy's EMA", "peer", "ema"),
    "peer-sma": Recipe("PEER whose task model is the proxy's mean over steps", "peer", "sma"),
    "advst-me": Recipe(
        "AdvST whose maximisation also raises the entropy of predictions",
        method="advst",
        options={"advst": {"eta": 10.0}},  # released for PACS; for Digits only as above 0
    ),
}


def _flag(section: str, name: str, value: Any) -> str:
    """An option as one types it: `--augment.num-ops 2`, `--peer.no-average`."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{section}.{name if value else f'no-{name}'}"
    return f"--{section}.{name} {value}"


def _contains(tables: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    return all(
        _contains(tables.get(key, {}), value)
        if isinstance(value, Mapping)
        else tables.get(key) == value
        for key, value in part.items()
    )


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
