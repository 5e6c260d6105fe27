"""Define methods from the literature as methods with options, without importing torch.

A `Recipe` is a method with some options. `peerdg train --method NAME` expands it, and the run's
config stores the expanded options and the name. A `Combination` trains several runs, which
`peerdg combine` merges into one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from peerdg.models.names import Outputs, Rule
from peerdg.options import dotted, merge

Reconstruction = Literal["no", "on digits", "on photos", "everywhere"]
"""Data sets on which a method has neither released code nor published values."""

_RECONSTRUCTED_ON: dict[Reconstruction, frozenset[str]] = {
    "no": frozenset(),
    "on digits": frozenset({"digits", "digits-mini"}),
    "on photos": frozenset({"pacs", "office-home", "vlcs", "terra"}),
}


def reconstructed_on(where: Reconstruction, data: str) -> bool:
    """Return whether a method that is a reconstruction `where` counts as one on `data`.

    On a user's own images, only methods marked `"everywhere"` count as reconstructions.
    """
    return where == "everywhere" or data in _RECONSTRUCTED_ON[where]


@dataclass(frozen=True)
class Recipe:
    """A method from the literature, defined as one of our methods with options."""

    summary: str  # one line for help texts
    method: str  # name of the method that it expands to
    average: str | None = None  # kind of weight average, or None for the method's own
    # As in a config file, e.g. {"augment": {"kind": "randconv"}}.
    options: Mapping[str, Any] = field(default_factory=dict)
    # Options that must keep these default values (None: unset). Otherwise a run no longer counts as
    # the recipe. They are not part of the expansion.
    unchanged: Mapping[str, Any] = field(default_factory=dict)
    # Data sets for which it has no released code or published values.
    reconstruction: Reconstruction = "no"

    @property
    def tables(self) -> dict[str, Any]:
        """Expanded options, as in a config file."""
        average = {} if self.average is None else {"average": {"kind": [self.average]}}
        return merge({"method": self.method}, average, self.options)

    @property
    def flags(self) -> str:
        """Equivalent command-line flags."""
        average = [] if self.average is None else [f"--average {self.average}"]
        rest = [_flag(name, value) for name, value in dotted(self.options).items()]
        return " ".join([f"--method {self.method}", *average, *rest])

    def describes(self, tables: Mapping[str, Any]) -> bool:
        """Return whether a run with the given options still counts as this recipe."""
        options, needed = dotted(tables), dotted(merge(self.tables, self.unchanged))
        return all(options.get(name) == value for name, value in needed.items())


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
        "ERM on source and targets: an oracle, e.g. to guide a student, not a fair baseline",
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
        "Cross-entropy on clean images and progressive random convolutions (a reconstruction)",
        method="randaugment",
        options={"augment": {"kind": "pro-randconv"}},
        reconstruction="everywhere",
    ),
    "advst-me": Recipe(
        "AdvST whose maximization also raises the entropy of predictions",
        method="advst",
        options={"advst": {"eta": 10.0}},  # released code: 10 for PACS, "above 0" for Digits
    ),
}


@dataclass(frozen=True)
class Combination:
    """A method from the literature that trains several runs and combines them."""

    summary: str  # one line for help texts
    member: str  # the method or recipe that each run trains
    members: int
    rule: Rule  # rule of `peerdg combine`
    outputs: Outputs | None = None  # outputs that an ensemble averages
    # Whether all runs share a seed, and thus initialization and pre-training. They then differ only
    # in the seed of the main phase. Otherwise each run has its own seed.
    shares_start: bool = True
    # Learning rates of the main phase as multiples of the preset's. Runs cycle through them.
    lr_scales: tuple[float, ...] = (1.0,)
    weight_decays: tuple[float, ...] = ()  # runs cycle through these, too. Empty: use the preset's

    def options(self, number: int, *, seed: int, lr: float) -> dict[str, Any]:
        """Return the options of run `number`, counted from 0, as in a config file.

        Combinations with different seeds share no runs. `lr` is the member's learning rate in the
        main phase.
        """
        run_seed = seed * self.members + number
        seeds = {"seed": seed, "train_seed": run_seed} if self.shares_start else {"seed": run_seed}
        train: dict[str, float] = {}
        if self.lr_scales != (1.0,):
            train["lr"] = lr * self.lr_scales[number % len(self.lr_scales)]
        if self.weight_decays:
            turn = number // len(self.lr_scales)  # use all pairs before repeating one
            train["weight_decay"] = self.weight_decays[turn % len(self.weight_decays)]
        return {"method": self.member, **seeds, **({"train": train} if train else {})}


COMBINATIONS = {
    "diwa": Combination(
        "Weight average of RandAugment runs that share their start (DiWA)",
        member="randaugment",
        members=6,  # assumption: as in EoA. The authors train 20 or 60 runs
        rule="uniform",
        # Released code: learning rates 5e-5 (default), 3e-5 and 1e-5, and these weight decays.
        lr_scales=(1.0, 0.6, 0.2),
        weight_decays=(1e-4, 1e-6),
    ),
    "eoa": Combination(
        "Ensemble of runs, each averaged over its steps (EoA)",
        member="sma",
        members=6,  # paper
        rule="ensemble",
        outputs="logits",  # released code
        shares_start=False,
    ),
}


def _flag(option: str, value: Any) -> str:
    """Format a command-line flag: `--augment.num-ops 2`, `--peer.no-average`, `--oracle`."""
    section, dot, name = option.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f"--{section}{dot}{name if value else f'no-{name}'}"
    return f"--{section}{dot}{name} {value}"


def expand(layers: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Expand the recipe in config layers. Only the last layer with a method counts."""
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
