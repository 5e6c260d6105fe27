"""Layers that a method adds to a network, as the data that a model folder keeps. Free of torch."""

import re
from dataclasses import dataclass, fields
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.schema import within

LARGEST_WIDTH = 2**16
MOST_ATOMS, MOST_ADDRESSED = 4096, 256
FEATURES = "features"
_INSIDE = re.compile(r"(after|before) (.{1,200})")

# The options that each kind has; the others are None.
_OPTIONS = {
    "gaussian-bottleneck": {"noise"},
    "style-mixing": {"channel", "p", "alpha"},
    "meta-features": {"channel", "atoms", "addressed", "ridge", "threshold", "gradient"},
}


@dataclass(frozen=True, repr=False)
class AddedLayer:
    """One layer; kinds and places are closed lists, so that no file can name code to run.

    Args:
        kind: `"gaussian-bottleneck"`: `peerdg.models.bottleneck.GaussianBottleneck`;
            `"style-mixing"`: `peerdg.models.style_mixing.StyleMixing`;
            `"meta-features"`: `peerdg.models.meta_features.MetaFeatures`.
        place: `"features"`: between encoder and head, whose input it becomes, for the bottleneck;
            `"after NAME"` and `"before NAME"`: behind or in front of a module of the encoder, for
            all others.
        inputs: Width of what it takes: features or channels.
        outputs: Width of what it gives.
        noise: Scale of the noise that the bottleneck adds in training.
        channel: Which dimension of a batch of maps holds the channels.
        p: Probability that styles are mixed in a training pass.
        alpha: Of the Beta distribution that the shares of mixed styles are drawn from.
        atoms: Size of the dictionary of meta-features.
        addressed: How many of its atoms compose a feature.
        ridge: Of the regression that composes it.
        threshold: Smallest cosine of an addressed atom.
        gradient: What a feature receives of the gradient of its composition.

    Raises:
        ConfigError: If the place or the options are not those of the kind, or do not go together.
    """

    kind: Literal["gaussian-bottleneck", "style-mixing", "meta-features"]
    place: str
    inputs: int = within(at_least=1, at_most=LARGEST_WIDTH)
    outputs: int = within(at_least=1, at_most=LARGEST_WIDTH)
    noise: float | None = within(at_least=0, at_most=100, default=None)
    channel: int | None = within(at_least=1, at_most=3, default=None)
    p: float | None = within(at_least=0, at_most=1, default=None)
    alpha: float | None = within(above=0, at_most=100, default=None)
    atoms: int | None = within(at_least=1, at_most=MOST_ATOMS, default=None)
    addressed: int | None = within(at_least=1, at_most=MOST_ADDRESSED, default=None)
    ridge: float | None = within(above=0, at_most=1e6, default=None)
    threshold: float | None = within(at_least=-1, at_most=1, default=None)
    gradient: Literal["closed-form", "straight-through"] | None = None

    def __post_init__(self) -> None:
        at_features = self.kind == "gaussian-bottleneck"
        if not (self.place == FEATURES if at_features else _INSIDE.fullmatch(self.place)):
            raise ConfigError(f"'place' is {self.place!r}; no {self.kind} stands there.")
        needed = _OPTIONS[self.kind]
        for name in set().union(*_OPTIONS.values()):
            if (getattr(self, name) is None) == (name in needed):
                problem = "is missing" if name in needed else "has no meaning"
                raise ConfigError(f"'{name}' {problem} in a {self.kind}.")
        if self.is_inside and self.inputs != self.outputs:
            raise ConfigError(f"'outputs' is {self.outputs}; a {self.kind} gives {self.inputs}.")
        if self.atoms is not None and self.addressed is not None and self.addressed > self.atoms:
            raise ConfigError(f"'addressed' is {self.addressed}, but there are {self.atoms} atoms.")

    def __repr__(self) -> str:
        """Code that makes it, without the options that it does not have."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return f"AddedLayer({', '.join(f'{k}={v!r}' for k, v in given.items() if v is not None)})"

    @property
    def is_inside(self) -> bool:
        """Whether it stands inside the encoder."""
        return self.place != FEATURES

    @property
    def neighbour(self) -> tuple[str, str]:
        """`"after"` or `"before"`, and the module of the encoder, of a layer inside it."""
        side, _, name = self.place.partition(" ")
        return side, name
