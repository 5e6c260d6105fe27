"""Sort and match class names, and apply class maps to targets with different names.

A class map is stored as strings such as `Dog=dog` (target=source), so that config files, flags
and records share one form. This module does not import torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from peerdg.errors import ConfigError, DataError
from peerdg.options import did_you_mean, nearest


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names as numbers if all are numbers, otherwise as text. The locale has no effect."""
    names = list(names)
    if names and all(name.isascii() and name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def class_positions(
    own: Sequence[str],
    classes: Sequence[str],
    *,
    name: str,
    class_map: Mapping[str, str] | None = None,
) -> list[int]:
    """Return the index in `classes` of each class name in `own`, after applying `class_map`."""
    position = {known: index for index, known in enumerate(classes)}
    renamed = [(class_map or {}).get(label, label) for label in own]
    if extra := [label for label in renamed if label not in position]:
        near = {label: nearest(label, classes) for label in extra[:5]}
        guesses = ", ".join(
            f"'{label}' (did you mean '{guess}'?)" if guess else f"'{label}'"
            for label, guess in near.items()
        )
        example = next((f"{label}={guess}" for label, guess in near.items() if guess), "Dog=dog")
        raise DataError(
            f"{len(extra)} of {len(own)} classes of domain '{name}' do not exist in the source: "
            f"{guesses}.",
            hint=f"Rename or remove them, or map them with --map {quote(example)}.",
        )
    return [position[label] for label in renamed]


def class_map_entries(mapping: Mapping[str, str]) -> list[str]:
    """Convert `{"Dog": "dog"}` to `["Dog=dog"]`. Raise an error if keys or values are not names."""
    if not isinstance(mapping, Mapping) or not all(
        isinstance(name, str) for pair in mapping.items() for name in pair
    ):
        raise ConfigError(
            "A class map must map names to names.", hint="For example class_map={'Dog': 'dog'}."
        )
    entries = [f"{theirs}={ours}" for theirs, ours in mapping.items()]
    parse_class_map(entries)  # rejects names with "="
    return entries


def parse_class_map(entries: Sequence[str] | None) -> dict[str, str]:
    """Convert `["Dog=dog"]` to `{"Dog": "dog"}`."""
    mapping: dict[str, str] = {}
    for entry in entries or ():
        theirs, _, ours = entry.partition("=")
        if not theirs or not ours or "=" in ours:
            raise ConfigError(
                f"'{entry}' is not a pair of class names.",
                hint="Write THEIRS=OURS, e.g. Dog=dog. Names with '=' cannot be mapped.",
            )
        if mapping.setdefault(theirs, ours) != ours:
            raise ConfigError(
                f"The class '{theirs}' is mapped twice, to '{mapping[theirs]}' and '{ours}'."
            )
    return mapping


def check_class_map(
    mapping: Mapping[str, str], *, theirs: Iterable[str], ours: Sequence[str]
) -> None:
    """Check that each mapped class occurs in a target and is mapped to a class of the model."""
    known = sorted(set(theirs))
    for theirs_name, ours_name in mapping.items():
        if theirs_name not in known:
            hint = did_you_mean(theirs_name, known) if known else "There are no targets."
            raise ConfigError(f"No target has the mapped class '{theirs_name}'.", hint=hint)
        if ours_name not in ours:
            raise ConfigError(
                f"'{theirs_name}' is mapped to '{ours_name}', which is not a class of the model.",
                hint=did_you_mean(ours_name, ours),
            )
