"""Frozen dataclasses <-> TOML: strict keys, checked values, and the difference of two configs.

Every option of peerdg is a field of a frozen dataclass, made with `option`. The same field gives
the command-line flag, the key in a TOML file, the check of its value and its line of help.
"""

import difflib
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from peerdg.errors import ConfigError
from peerdg.files import read_text

T = TypeVar("T")
LARGEST_FILE = 256 * 1024  # bytes of a config file
MOST_DOTS = 50  # in a key: the parser takes memory by the square of their number
SHOWN = 100  # characters of a wrong value in a message


def option(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    announced: bool = False,
    part_of: str | None = None,
    names_model: bool = False,
    is_place: bool = False,
    formerly: str | None = None,
) -> Any:
    """A dataclass field with its help text and the range it must lie in.

    Args:
        default: Its value unless another is given.
        help: What it is, in a line.
        at_least: Smallest value.
        above: What the value must exceed.
        at_most: Largest value.
        announced: Whether a run on a user's own images prints it at the start, because results
            depend on it.
        part_of: The option that chooses the component this one belongs to: where that is `"none"`,
            this one has no effect.
        names_model: Whether its value says which trained network is used, so that a run keeps a
            fingerprint of it.
        is_place: Whether its value says only where files are, so that neither records nor
            comparisons of runs have it.
        formerly: Old name of the option, still accepted.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most}
    metadata = {"help": help, "limits": limits, "announced": announced, "part_of": part_of}
    metadata |= {"names_model": names_model, "is_place": is_place, "formerly": formerly}
    return field(default=default, metadata=metadata)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that a person who typed `name` most likely meant, if any is close."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, or all of them."""
    names = list(names)
    guess = nearest(name, names)
    return f"Did you mean '{guess}'?" if guess else f"Known: {', '.join(names)}."


def build(cls: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Make a `cls` from plain values, refusing unknown keys, wrong types and values out of range.

    Args:
        cls: A dataclass whose fields were made with `option`.
        values: Keys and values as TOML or the command line gave them.
        where: The section the values stand in, for messages, e.g. `"train"`; `""` for the top.
    """
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    renamed = {
        f.metadata["formerly"]: name for name, f in known.items() if "formerly" in f.metadata
    }
    checked = {}
    for key, value in values.items():
        key = renamed.get(key, key)
        name = f"{where}.{key}".lstrip(".")
        if key not in known:
            raise ConfigError(f"Unknown option '{name}'.", hint=suggest(key, known, where))
        checked[key] = convert(value, hints[key], name)
        check_limits(checked[key], known[key].metadata.get("limits", {}), name)
    return cls(**checked)


def validate(config: Any) -> None:
    """Check types and limits of a dataclass made in Python; use it as `__post_init__`."""
    hints = get_type_hints(type(config))
    for f in fields(config):
        value = convert(getattr(config, f.name), hints[f.name], f.name)
        check_limits(value, f.metadata.get("limits", {}), f.name)
        object.__setattr__(config, f.name, value)


def suggest(key: str, known: Iterable[str], where: str) -> str:
    """`did_you_mean` with the section in front of each name."""
    prefix = f"{where}." if where else ""
    guess = nearest(key, known)
    if guess:
        return f"Did you mean '{prefix}{guess}'?"
    return f"Known: {', '.join(prefix + name for name in known)}."


def convert(value: Any, kind: Any, name: str) -> Any:
    """`value` as `kind`, if its TOML type is already equivalent.

    Raises:
        ConfigError: If it does not, or no option could have this value: a number of more than 64
            bits, or text with a NUL character, which no path may have.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return None if value is None else convert(value, inner[0], name)
    if origin is Literal:
        if value not in args:
            raise ConfigError(
                f"'{name}' is {_shown(value)}; it must be one of {', '.join(map(str, args))}.",
                hint=did_you_mean(_shown(value).strip("'"), map(str, args)),
            )
        return value
    if origin is tuple and args[0] is str and isinstance(value, str):
        return (value,)  # one name where several may stand
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(convert(item, args[0], name) for item in value)
    if isinstance(value, int) and value.bit_length() > 63:
        raise ConfigError(f"'{name}' is {_shown(value)}; no option is that large.")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"'{name}' is {_shown(value)}; it must not have a NUL character.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, str, bool) and type(value) is kind:
        return value
    expected = "list" if origin is tuple else getattr(kind, "__name__", str(kind))
    raise ConfigError(
        f"'{name}' is {_shown(value)} ({type(value).__name__}); it must be of type {expected}.",
    )


def _shown(value: Any) -> str:
    """Abridge a value to a line, for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no integer of more than 4,300 digits
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def check_limits(value: Any, limits: Mapping[str, float | None], name: str) -> None:
    """Check that a number, or each of several, is finite and within `limits` of `option`.

    Raises:
        ConfigError: If not.
    """
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, bool) or not isinstance(item, int | float):
            continue
        low, above, high = limits.get("at_least"), limits.get("above"), limits.get("at_most")
        if item != item or abs(item) == float("inf"):
            raise ConfigError(f"'{name}' is {item}; it must be a finite number.")
        if low is not None and item < low:
            raise ConfigError(f"'{name}' is {item}; it must be at least {low}.")
        if above is not None and item <= above:
            raise ConfigError(f"'{name}' is {item}; it must be greater than {above}.")
        if high is not None and item > high:
            raise ConfigError(f"'{name}' is {item}; it must be at most {high}.")


def to_dict(config: Any, *, unset: bool = False) -> dict[str, Any]:
    """A dataclass as nested plain values.

    Args:
        config: The dataclass.
        unset: Include the options that are None; TOML has no null, JSON has.
    """
    result: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            result[f.name] = to_dict(value, unset=unset)
        elif unset or value is not None:
            result[f.name] = list(value) if isinstance(value, tuple) else value
    return result


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; nested tables are merged key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping):
                value = merge(result.get(key, {}), value)
            result[key] = value
    return result


@dataclass(frozen=True)
class Change:
    """One option whose value differs between two configs; None where it is not set."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} -> {self.new!r}"


def difference(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[Change]:
    """Every option that differs between two nested tables, with its dotted name."""
    changes = []
    for key in sorted({*old, *new}):
        a, b, name = old.get(key), new.get(key), f"{where}{key}"
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            changes += difference(_table(a), _table(b), f"{name}.")
        elif a != b:
            changes.append(Change(name, a, b))
    return changes


def dotted(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Name the options of all sections: {"train": {"lr": 0.1}} -> {"train.lr": 0.1}."""
    options: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            options.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            options[key] = value
    return options


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def read_toml(path: Path, *, follow_links: bool = True, levels: int = 1) -> dict[str, Any]:
    """A TOML file as nested tables.

    Args:
        path: The file.
        follow_links: Whether it may be a symbolic link.
        levels: How deep sections may be within each other.

    Raises:
        ConfigError: If it cannot be read, with the place where it is wrong.
    """
    try:
        text = read_text(path, limit=LARGEST_FILE, follow_links=follow_links)
        _refuse_long_keys(text)
        tables = tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"There is no config file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the config file {path}: {error}.") from error
    except (ValueError, RecursionError) as error:  # also integers of thousands of digits
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    if _depth(tables, levels + 1) > levels:
        allowed = "one level" if levels == 1 else f"{levels} levels"
        raise ConfigError(f"{path} has a section within a section; options have {allowed} of them.")
    return tables


def _refuse_long_keys(text: str) -> None:
    """Raise a ValueError for a line whose key or section has more than `MOST_DOTS` dots."""
    for number, line in enumerate(text.split("\n"), 1):
        keys_anywhere = line.lstrip().startswith("[") or "{" in line or "}" in line
        if (line if keys_anywhere else line.partition("=")[0]).count(".") > MOST_DOTS:
            raise ValueError(f"a key of more than {MOST_DOTS} parts (at line {number})")


def _depth(table: Mapping[str, Any], most: int) -> int:
    """Levels of tables within a table, counted up to `most`."""
    inner = [value for value in table.values() if isinstance(value, Mapping)] if most else []
    return max((1 + _depth(value, most - 1) for value in inner), default=0)
