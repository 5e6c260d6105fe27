"""Layers that a method adds to a network, as the data that a model folder keeps. Free of torch."""

from dataclasses import dataclass
from typing import Literal

from peerdg.schema import within

LARGEST_WIDTH = 2**16


@dataclass(frozen=True)
class AddedLayer:
    """One layer; kinds and places are closed lists, so that no file can name code to run.

    Args:
        kind: `"gaussian-bottleneck"`: `peerdg.models.bottleneck.GaussianBottleneck`.
        place: `"features"`: between encoder and head, whose input it becomes.
        inputs: Width of what it takes.
        outputs: Width of what it gives.
        noise: Scale of the noise that it adds in training.
    """

    kind: Literal["gaussian-bottleneck"]
    place: Literal["features"]
    inputs: int = within(at_least=1, at_most=LARGEST_WIDTH)
    outputs: int = within(at_least=1, at_most=LARGEST_WIDTH)
    noise: float = within(at_least=0, at_most=100)
