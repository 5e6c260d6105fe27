"""Split the data of a run into train, validation and targets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from peerdg.data import VALIDATION, is_target
from peerdg.data.cache import select_rows
from peerdg.data.domain import Domain
from peerdg.data.folder import examples
from peerdg.data.objects import as_domain
from peerdg.errors import ConfigError, DataError
from peerdg.rng import generator_for

HASH_DIGITS = 16  # number of leading hash digits stored in records

# File hashes by path, for each part of the data ("train", "target:sketch").
FileHashes = dict[str, dict[str, str]]


@dataclass(frozen=True, init=False)
class Splits:
    """Images for training, validation and testing.

    Args:
        train: A `Domain`, or anything that `peerdg.as_domain` takes, such as `(images, labels)`.
        validation: Labeled source images, the fraction of each class in `train` to hold out, or
            None.
        targets: Labeled images of other domains, by name.
    """

    train: Domain
    validation: Domain | None
    targets: Mapping[str, Domain]

    def __init__(
        self, train: Any, validation: Any = 0.1, targets: Mapping[str, Any] | None = None
    ) -> None:
        if targets is not None and not isinstance(targets, Mapping):
            raise DataError(
                f"Expected a mapping of targets, got a {type(targets).__name__}.",
                hint="Give them by name: targets={'sketch': (images, labels)}.",
            )
        source = as_domain(train)
        side = source.image_size[0]
        if isinstance(validation, int | float):
            source, validation = hold_out(source, validation)
        elif validation is not None:
            validation = as_domain(validation, name="validation", size=side)
        tested = {
            name: as_domain(data, name=name, size=side) for name, data in (targets or {}).items()
        }
        for field, value in (("train", source), ("validation", validation), ("targets", tested)):
            object.__setattr__(self, field, value)
        if reserved := [name for name in tested if not is_target(name)]:
            raise DataError(
                f"The target name '{reserved[0]}' is reserved for the source's images.",
                hint="Give the target a different name.",
            )
        for domain in self.parts.values():
            if domain.image_size[0] != domain.image_size[1]:
                raise DataError(
                    f"Domain '{domain.name}' has non-square images of size {domain.image_size}.",
                    hint="Crop or resize them.",
                )
        present = source.labels.unique()
        if len(present) < 2:
            raise DataError(
                f"Domain '{source.name}' has images of only one class "
                f"('{source.classes[int(present)]}'). A classifier needs at least two."
            )

    @property
    def parts(self) -> dict[str, Domain]:
        """Domains by their names in records: `train`, `validation`, `target:sketch`."""
        parts = {"train": self.train, **{f"target:{k}": v for k, v in self.targets.items()}}
        if self.validation is not None:
            parts[VALIDATION] = self.validation
        return parts

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Fingerprint of each part, for the run's manifest."""
        return {name: domain.fingerprint for name, domain in self.parts.items()}


def with_targets(splits: Splits) -> Splits:
    """Add the target images to the training images, for an oracle."""
    if not splits.targets:
        raise ConfigError(
            "An oracle trains on the targets, but there are none.", hint="Add one with --target."
        )
    domains = [splits.train, *splits.targets.values()]
    with_files = all(domain.paths and domain.hashes for domain in domains)
    train = Domain(
        "+".join(domain.name for domain in domains),
        splits.train.classes,
        torch.cat([domain.images for domain in domains]),
        torch.cat([domain.labels for domain in domains]),
        paths=tuple(p for d in domains for p in d.paths or ()) if with_files else None,
        hashes=tuple(h for d in domains for h in d.hashes or ()) if with_files else None,
        skipped=tuple(bad for domain in domains for bad in domain.skipped),
    )
    return Splits(train, splits.validation, splits.targets)


def hold_out(domain: Domain, fraction: float, seed: int = 0) -> tuple[Domain, Domain | None]:
    """Split off `fraction` of each class. The second part is None if it is empty."""
    train_rows, held_out = stratified(domain.labels, fraction, seed)
    if len(held_out) == 0:
        return domain, None
    validation = select_rows(domain, held_out, name=f"{domain.name}-validation")
    return select_rows(domain, train_rows), validation


def stratified(
    labels: Int64[Tensor, " n"], fraction: float, seed: int
) -> tuple[Int64[Tensor, " t"], Int64[Tensor, " v"]]:
    """Draw rows for training and rows for validation, both in ascending order.

    Each class holds out `fraction` of its rows, rounded by largest remainder, but keeps at least
    one for training. The same seed gives the same rows.
    """
    if not 0 <= fraction < 1:
        raise ConfigError(f"The validation fraction is {fraction}, but must be in [0, 1).")
    generator = generator_for(seed, "split")
    members = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    shuffled = [rows[torch.randperm(len(rows), generator=generator)] for rows in members]
    counts = _shares([len(rows) for rows in members], fraction)
    train = [rows[count:] for rows, count in zip(shuffled, counts, strict=True)]
    held_out = [rows[:count] for rows, count in zip(shuffled, counts, strict=True)]
    return torch.cat(train).sort().values, torch.cat(held_out).sort().values


def _shares(sizes: list[int], fraction: float) -> list[int]:
    """Return the number of rows to hold out from each class, rounded by largest remainder."""
    exact = [fraction * size for size in sizes]
    counts = [min(int(share), size - 1) for share, size in zip(exact, sizes, strict=True)]
    missing = round(sum(exact)) - sum(counts)
    by_remainder = sorted(range(len(sizes)), key=lambda i: (counts[i] - exact[i], i))
    could_give = [index for index in by_remainder if counts[index] < sizes[index] - 1]
    for index in could_give[:missing]:
        counts[index] += 1
    return counts


def file_hashes(splits: Splits) -> FileHashes:
    """Return the file hashes of each part that comes from files, for the run's records."""
    return {
        name: dict(zip(domain.paths, (h[:HASH_DIGITS] for h in domain.hashes), strict=True))
        for name, domain in splits.parts.items()
        if domain.paths is not None and domain.hashes is not None
    }


def describe_changes(old: Mapping[str, Mapping[str, str]], new: FileHashes) -> list[str]:
    """Describe added, removed and changed files between two results of `file_hashes`."""
    lines = []
    for part in sorted({*old, *new}):
        before, after = old.get(part, {}), new.get(part, {})
        kinds = {
            "added": after.keys() - before.keys(),
            "removed": before.keys() - after.keys(),
            "changed": {path for path in before.keys() & after if before[path] != after[path]},
        }
        lines += [
            f"{part}: {len(paths):,} {kind}: {examples(sorted(paths))}"
            for kind, paths in kinds.items()
            if paths
        ]
    return lines
