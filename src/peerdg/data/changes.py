"""Which files of a data set changed between two runs."""

from collections.abc import Mapping

from peerdg.data.domain import Domain, Splits

_SHOWN = 10
HASH_DIGITS = 16  # of each hash that records keep

# For each part of the data ("train", "target:sketch"), the hash of each file by its path.
Contents = dict[str, dict[str, str]]


def contents_of(splits: Splits) -> Contents:
    """The files behind each part, as plain values for the run's records.

    Parts that do not come from files are left out; their fingerprint is all there is.
    """
    parts: dict[str, Domain] = {
        "train": splits.train,
        **{f"target:{name}": domain for name, domain in splits.targets.items()},
    }
    if splits.validation is not None:
        parts["validation"] = splits.validation
    return {
        name: dict(zip(domain.paths, (h[:HASH_DIGITS] for h in domain.hashes), strict=True))
        for name, domain in parts.items()
        if domain.paths is not None and domain.hashes is not None
    }


def describe_changes(old: Mapping[str, Mapping[str, str]], new: Contents) -> list[str]:
    """One line for each kind of change of each part: how many files, and the first ten.

    Args:
        old: What `contents_of` gave when the run was started.
        new: What it gives now.
    """
    lines = []
    for part in sorted({*old, *new}):
        before, after = old.get(part, {}), new.get(part, {})
        kinds = {
            "added": sorted(after.keys() - before.keys()),
            "removed": sorted(before.keys() - after.keys()),
            "changed": sorted(p for p in before.keys() & after.keys() if before[p] != after[p]),
        }
        for kind, paths in kinds.items():
            if paths:
                more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
                shown = ", ".join(paths[:_SHOWN])
                lines.append(f"{part}: {len(paths):,} {kind}: {shown}{more}")
    return lines
