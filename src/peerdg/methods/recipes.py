"""Named methods of the literature that are made of objectives of ours, as data. Free of torch.

A `Recipe` is an objective with some options: `peerdg train --method NAME` expands it; the run's
config holds what it expanded to, and its name. A `Combination` is several runs that `peerdg
combine` makes into one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from peerdg.models.names import Outputs, Rule
from peerdg.options import dotted, merge

Reconstruction = Literal["no", "on digits", "on photos", "everywhere"]
"""Where a method is built without released code or values to compare with."""

_RECONSTRUCTED_ON: dict[Reconstruction, frozenset[str]] = {
    "no": frozenset(),
    "on digits": frozenset({"digits", "digits-mini"}),
    "on photos": frozenset({"pacs", "office-home", "vlcs", "terra"}),
}


def reconstructed_on(where: Reconstruction, data: str) -> bool:
    """Tell whether a method that is a reconstruction `where` is one on the data set `data`.

    No method has published values for a user's own images: there, only a method that is a
    reconstruction everywhere counts as one.
    """
    return where == "everywhere" or data in _RECONSTRUCTED_ON[where]


@dataclass(frozen=True)
class Recipe:
    """An objective and the options that make it a method of the literature."""

    summary: str  # one line for people
    method: str  # the objective
    average: str | None = None  # of the network it trains; None leaves that to the objective
    # As in a config file, e.g. {"augment": {"kind": "randconv"}}.
    options: Mapping[str, Any] = field(default_factory=dict)
    # Further options that must stay what they are by default, None for unset. With other values it
    # is something else. Nothing has to be typed for them.
    unchanged: Mapping[str, Any] = field(default_factory=dict)
    # Where there is neither released code nor published values for it.
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
        rest = [_flag(name, value) for name, value in dotted(self.options).items()]
        return " ".join([f"--method {self.method}", *average, *rest])

    def describes(self, tables: Mapping[str, Any]) -> bool:
        """Whether a run with these options is still what the recipe stands for."""
        given, needed = dotted(tables), dotted(merge(self.tables, self.unchanged))
        return all(given.get(name) == value for name, value in needed.items())


ALL_SNAPSHOTS = {"average": {"start": 0, "last": None}}

RECIPES = {
    "p-ens": Recipe(
        "RandAugment, deployed as the mean of its snapshots: PEER without its regularizer",
        method="randaugment",
        average="snapshots",
        unchanged=ALL_SNAPSHOTS,
    ),
    "swa": Recipe("RandAugment with SWA: the mean over epochs", "randaugment", "swa"),
    "ema": Recipe("RandAugment with an exponential moving average", "randaugment", "ema"),
    "sma": Recipe("RandAugment with SMA: the mean over steps", "randaugment", "sma"),
    "swad": Recipe(
        "RandAugment with SWAD: the mean over the flat part of the validation loss",
        method="randaugment",
        average="swad",
    ),
    "oracle-erm": Recipe(
        "ERM on source and targets: an oracle, e.g. to guide a student; never a fair baseline",
        method="erm",
        options={"oracle": True},
    ),
    "peer-no-average": Recipe(
        "PEER without averaging: the task model is the proxy's latest snapshot",
        method="peer",
        options={"peer": {"average": False}},
    ),
    "peer-ema": Recipe("PEER whose task model is the proxy's EMA", "peer", "ema"),
    "peer-sma": Recipe("PEER whose task model is the proxy's mean over steps", "peer", "sma"),
    "pro-randconv": Recipe(
        "Cross-entropy on clean images and progressive random convolutions; a reconstruction",
        method="randaugment",
        options={"augment": {"kind": "pro-randconv"}},
        reconstruction="everywhere",
    ),
    "advst-me": Recipe(
        "AdvST whose maximisation also raises the entropy of predictions",
        method="advst",
        options={"advst": {"eta": 10.0}},  # released for PACS; for Digits only as above 0
    ),
}


@dataclass(frozen=True)
class Combination:
    """A method of the literature that trains several runs and combines them."""

    summary: str  # one line for people
    member: str  # the method or recipe that each run trains
    members: int
    rule: Rule  # of `peerdg combine`
    outputs: Outputs | None = None  # what an ensemble averages; None for a mean of weights
    # Whether all runs have one seed, and so one initialization and pre-training, and differ in that
    # of the main phase. Otherwise each has a seed of its own.
    shares_start: bool = True
    # Learning rates of the main phase as multiples of the preset's. Runs take them in turn.
    lr_scales: tuple[float, ...] = (1.0,)
    weight_decays: tuple[float, ...] = ()  # likewise, as they are; empty leaves the preset's

    def options(self, number: int, *, seed: int, lr: float) -> dict[str, Any]:
        """The options of run `number`, counted from 0, as in a config file.

        No two seeds of the whole have a run in common. `lr` is the learning rate of the main phase
        that the member has by itself.
        """
        own = seed * self.members + number
        seeds = {"seed": seed, "train_seed": own} if self.shares_start else {"seed": own}
        train: dict[str, float] = {}
        if self.lr_scales != (1.0,):
            train["lr"] = lr * self.lr_scales[number % len(self.lr_scales)]
        if self.weight_decays:
            turn = number // len(self.lr_scales)  # so that all pairs come before one comes again
            train["weight_decay"] = self.weight_decays[turn % len(self.weight_decays)]
        return {"method": self.member, **seeds, **({"train": train} if train else {})}


COMBINATIONS = {
    "diwa": Combination(
        "Mean of the weights of runs that share their start, by RandAugment (DiWA)",
        member="randaugment",
        members=6,  # assumption: EoA's number; the authors train 20 or 60
        rule="uniform",
        # Released code: rates 1e-5, 3e-5, 5e-5, of which the last is the default; these decays.
        lr_scales=(1.0, 0.6, 0.2),
        weight_decays=(1e-4, 1e-6),
    ),
    "eoa": Combination(
        "Mean of the outputs of runs, each deployed as its mean over steps (EoA)",
        member="sma",
        members=6,  # paper
        rule="ensemble",
        outputs="logits",  # released code
        shares_start=False,
    ),
}


def _flag(option: str, value: Any) -> str:
    """An option as one types it: `--augment.num-ops 2`, `--peer.no-average`, `--oracle`."""
    section, dot, name = option.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"--{section}{dot}{name if value else f'no-{name}'}"
    return f"--{section}{dot}{name} {value}"


def expand(layers: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """`layers` with the recipe that the last of them names replaced by what it stands for.

    The method of an earlier layer is forgotten, and so is what it would have expanded to.
    """
    last = max((n for n, layer in enumerate(layers) if "method" in layer), default=None)
    expanded = [{k: v for k, v in layer.items() if k != "method"} for layer in layers]
    if last is not None:
        name = layers[last]["method"]
        if isinstance(name, str) and name in RECIPES:
            tables = RECIPES[name].tables
            expanded[last] = merge(tables, expanded[last], {"recipe": name})
        else:
            expanded[last]["method"] = name
    return tuple(expanded)
