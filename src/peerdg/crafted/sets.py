"""Make crafted domains: a distorted copy of the validation images for each family."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from peerdg.crafted import FAMILIES
from peerdg.crafted.drawing import ARTISTIC, EDGES, SEGMENTATION
from peerdg.crafted.filters import BLUR, CONVOLUTIONAL, WEATHER
from peerdg.crafted.geometric import GEOMETRIC
from peerdg.crafted.operation import Operation, distort
from peerdg.crafted.values import ARITHMETIC, COLOR, CONTRAST
from peerdg.data import CRAFTED
from peerdg.data.cache import cached_domain
from peerdg.data.domain import Domain
from peerdg.rng import seed_for

VERSION = 1  # increase when a change to the tables or functions changes the images
OPERATIONS: dict[str, Sequence[Operation]] = {
    "arithmetic": ARITHMETIC,
    "artistic": ARTISTIC,
    "blur": BLUR,
    "color": COLOR,
    "contrast": CONTRAST,
    "convolutional": CONVOLUTIONAL,
    "edges": EDGES,
    "geometric": GEOMETRIC,
    "segmentation": SEGMENTATION,
    "weather": WEATHER,
}


def crafted_domains(
    validation: Domain, *, seed: int = 0, families: Iterable[str] | None = None
) -> dict[str, Domain]:
    """Make a distorted copy of the validation images for each family, as `"crafted:<family>"`.

    Each image gets a random operation of the family with a random strength. The draw depends only
    on seed, family and image position, so the sets are the same in every run. They are cached.

    Args:
        validation: Validation images of the source.
        seed: Random seed. Use the same one for all runs to be compared.
        families: Names of the families. Defaults to all ten.
    """
    chosen = sorted(FAMILIES if families is None else families, key=FAMILIES.index)
    return {CRAFTED + family: _crafted(validation, family, seed) for family in chosen}


def craft(images: Tensor, family: str, *, seed: int = 0) -> Tensor:
    """Distort each image in a uint8 batch [n, 3, h, w] with a random operation of the family."""
    table = OPERATIONS[family]
    result = torch.empty_like(images, memory_format=torch.contiguous_format)
    for index, image in enumerate(images):
        rng = np.random.default_rng(seed_for(seed, "crafted", family, index))
        picture = image.permute(1, 2, 0).numpy().astype(np.float32)
        distorted = distort(picture, table, rng).astype(np.uint8)
        result[index] = torch.from_numpy(distorted).permute(2, 0, 1)
    return result


def _crafted(validation: Domain, family: str, seed: int) -> Domain:
    def make() -> Domain:
        return replace(validation, name=name, images=craft(validation.images, family, seed=seed))

    name = CRAFTED + family
    domain = cached_domain(name, [name, validation.fingerprint, seed, VERSION], make)
    return replace(domain, paths=validation.paths)
