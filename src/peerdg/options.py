"""Options as frozen dataclasses: read from TOML, validated, with hints for misspelled names.

Every option of peerdg is a dataclass field made with `option`. The field defines the command-line
flag, the TOML key, the validation and the help text.
"""

import difflib
import math
import operator
import tomllib
import types
from collections.abc import Container, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from peerdg.errors import ConfigError

T = TypeVar("T")
MAX_FILE = 256 * 1024  # bytes in a config file
_LIMITS = {
    "at_least": (operator.ge, "at least"),
    "above": (operator.gt, "greater than"),
    "at_most": (operator.le, "at most"),
}


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
    """Make a dataclass field with a help text and a range.

    Args:
        default: Default value.
        help: Help text in one line.
        at_least: Minimum.
        above: Exclusive minimum.
        at_most: Maximum.
        announced: Whether to print the value when a run on the user's own images starts.
        part_of: Option that selects a component. If it is `"none"`, this option has no effect.
        names_model: Whether the value names a trained network. Runs store its fingerprint.
        is_place: Whether the value only locates files. Records and comparisons leave it out.
        formerly: Former name, which is still accepted.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most}
    metadata = {"help": help, "limits": limits, "announced": announced, "part_of": part_of}
    metadata |= {"names_model": names_model, "is_place": is_place, "formerly": formerly}
    return field(default=default, metadata=metadata)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the closest match for a misspelled `name` among `names`, or None."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[matches[0]] if matches else None


def nearest_path(path: Path, *, holding: str = "") -> str | None:
    """Suggest the most similar path in the same folder, among those that contain `holding`."""
    names = [p.name for p in path.parent.glob("*") if (p / holding).exists()]
    guess = None if path.exists() else nearest(path.name, names)
    return f"Did you mean {path.parent / guess}?" if guess else None


def did_you_mean(name: str, names: Iterable[str], *, prefix: str = "") -> str:
    """Suggest the closest known name, or list all of them, each with `prefix`."""
    names = list(names)
    if guess := nearest(name, names):
        return f"Did you mean '{prefix}{guess}'?"
    return f"Known: {', '.join(prefix + known for known in names)}."


def build(cls: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Build a `cls` from plain values. Reject unknown keys, wrong types and values out of range.

    `where` is the section name for messages, e.g. `"train"`, or `""` for the top level.
    """
    return cls(**_checked(cls, values, f"{where}." if where else ""))


def validate(config: Any) -> None:
    """Check types and limits of a dataclass created in Python. Call this in `__post_init__`."""
    for name, value in _checked(type(config), vars(config), "").items():
        object.__setattr__(config, name, value)


def _checked(cls: Any, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    hints, known = get_type_hints(cls), {f.name: f for f in fields(cls)}
    renamed = {f.metadata.get("formerly"): name for name, f in known.items()}
    checked = {}
    for key, value in values.items():
        key = key if key in known else renamed.get(key, key)
        if key not in known:
            hint = did_you_mean(key, known, prefix=prefix)
            raise ConfigError(f"Unknown option '{prefix}{key}'.", hint=hint)
        checked[key] = convert(value, hints[key], f"{prefix}{key}")
        check_limits(checked[key], known[key].metadata.get("limits", {}), f"{prefix}{key}")
    return checked


def convert(value: Any, kind: Any, name: str) -> Any:
    """Convert a TOML value to `kind`, or raise a `ConfigError` if its type does not match."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return None if value is None else convert(value, inner[0], name)
    if origin is Literal:
        if value not in args:
            raise ConfigError(
                f"'{name}' is {value!r:.100}. It must be one of {', '.join(map(str, args))}.",
                hint=did_you_mean(str(value), map(str, args)),
            )
        return value
    if origin is tuple and args[0] is str and isinstance(value, str):
        return (value,)  # a single name instead of a list
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(convert(item, args[0], name) for item in value)
    if kind is float and type(value) is int:
        return float(value)
    if kind in (int, float, str, bool) and type(value) is kind:
        return value
    expected = "list" if origin is tuple else getattr(kind, "__name__", str(kind))
    raise ConfigError(
        f"'{name}' is {value!r:.100} ({type(value).__name__}). It must be of type {expected}."
    )


def check_limits(value: Any, limits: Mapping[str, float | None], name: str) -> None:
    """Raise if a number, or any number in a tuple, is not finite or is outside of `limits`."""
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, bool) or not isinstance(item, int | float):
            continue
        if not math.isfinite(item):
            raise ConfigError(f"'{name}' is {item}. It must be a finite number.")
        for key, (is_within, words) in _LIMITS.items():
            limit = limits.get(key)
            if limit is not None and not is_within(item, limit):
                raise ConfigError(f"'{name}' is {item}. It must be {words} {limit}.")


def to_dict(config: Any, *, unset: bool = False) -> dict[str, Any]:
    """Convert a dataclass to nested plain values. `unset` includes values that are None."""
    result: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            result[f.name] = to_dict(value, unset=unset)
        elif unset or value is not None:
            result[f.name] = list(value) if isinstance(value, tuple) else value
    return result


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables key by key. Later layers win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                value = merge(result[key], value)
            result[key] = value
    return result


def dotted(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested sections: {"train": {"lr": 0.1}} -> {"train.lr": 0.1}."""
    options: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            options |= {f"{key}.{name}": inner for name, inner in dotted(value).items()}
        else:
            options[key] = value
    return options


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `dotted`: nest `{"train.lr": 0.1}` as `{"train": {"lr": 0.1}}`."""
    tables: dict[str, Any] = {}
    for name, value in flat.items():
        section, dot, key = name.partition(".")
        if dot:
            tables.setdefault(section, {})[key] = value
        else:
            tables[name] = value
    return tables


def difference(
    old: Mapping[str, Any], new: Mapping[str, Any], *, ignored: Container[str]
) -> list[str]:
    """List the options that differ between two nested tables, with both values (None if unset)."""
    a, b = dotted(old), dotted(new)
    keys = [key for key in sorted({*a, *b}) if key not in ignored and a.get(key) != b.get(key)]
    return [f"{key}: {a.get(key)!r} -> {b.get(key)!r}" for key in keys]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as nested tables. Errors name the line."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"it is larger than {MAX_FILE:,} bytes")
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"There is no config file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the config file {path}: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
