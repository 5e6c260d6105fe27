"""The crafted domains: a distorted copy of the validation images for each family."""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from peerdg.data import CRAFTED
from peerdg.data.cache.domains import cached_domain
from peerdg.data.domain import Domain
from peerdg.evaluate.crafted.operation import Operation, distort
from peerdg.evaluate.crafted.overlap import FAMILIES, overlap_free
from peerdg.rng import seed_for

VERSION = 1  # of the tables and functions: a change of any makes other images


def crafted_domains(
    validation: Domain, *, seed: int = 0, families: Iterable[str] | None = None
) -> dict[str, Domain]:
    """A distorted copy of the validation images for each family, under `"crafted:<family>"`.

    Each image draws one operation of the family and its strength. The draw depends only on seed,
    family and the image's position, so the sets are the same in every run; they are kept in the
    cache.

    Args:
        validation: The source's own validation images.
        seed: Of the draws. Keep it over all runs that are compared.
        families: Which ones; all ten if not given.

    Raises:
        ConfigError: If a family is unknown.
    """
    chosen = overlap_free(FAMILIES if families is None else families, ())
    return {CRAFTED + family: _crafted(validation, family, seed) for family in chosen}


def operations(family: str) -> Sequence[Operation]:
    """The table of a family."""
    table: Sequence[Operation] = importlib.import_module(f"peerdg.evaluate.crafted.{family}").FAMILY
    return table


def craft(images: Tensor, family: str, *, seed: int = 0) -> Tensor:
    """Distort each image of a uint8 batch [n, 3, h, w] with an operation of the family."""
    table = operations(family)
    result = torch.empty_like(images, memory_format=torch.contiguous_format)
    for index, image in enumerate(images):
        rng = np.random.default_rng(seed_for(seed, "crafted", family, index))
        picture = image.permute(1, 2, 0).numpy().astype(np.float32)
        distorted = distort(picture, table, rng).astype(np.uint8)
        result[index] = torch.from_numpy(distorted).permute(2, 0, 1)
    return result


def _crafted(validation: Domain, family: str, seed: int) -> Domain:
    name = CRAFTED + family
    key = {"name": name, "of": validation.fingerprint, "seed": seed, "crafted": VERSION}
    made = cached_domain(
        key,
        lambda: replace(
            validation, name=name, images=craft(validation.images, family, seed=seed), paths=None
        ),
    )
    return replace(made, paths=validation.paths)
