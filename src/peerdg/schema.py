"""Stored files are checked whole before anything of them is used.

Each kind of file has one dataclass that says which keys it has, of which types and within which
limits (`peerdg.options.option`). A damaged file, or one forged with right checksums, is refused
here with its name and the first thing that is wrong, and not by whoever happens to use it.
"""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from peerdg.errors import ConfigError, DamagedError
from peerdg.files import read_text
from peerdg.options import check_limits, convert
from peerdg.terminal import visible

T = TypeVar("T")
LARGEST = 256 * 1024**2  # bytes; the hashes of some million image files
_HINT = "Restore it from a backup, or copy it again from its origin."


def within(
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    default: Any = MISSING,
) -> Any:
    """A dataclass field whose number, or each of whose numbers, must lie in a range."""
    limits = {"at_least": at_least, "above": above, "at_most": at_most}
    return field(default=default, metadata={"limits": limits}, kw_only=True)


def read_json(path: Path, *, hint: str = _HINT) -> Any:
    """The JSON value in a regular file.

    Raises:
        DamagedError: If it cannot be read, is a link, or is not JSON; NaN and Infinity are not.
    """
    try:
        return json.loads(read_text(path, limit=LARGEST), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise DamagedError(f"{path} is damaged: {reason}.", hint=hint) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has the value {name}, which is not JSON")


def read_stored(cls: type[T], path: Path, *, hint: str = _HINT) -> T:
    """The content of a JSON file as a `cls`.

    Raises:
        DamagedError: If it cannot be read or does not conform.
    """
    return conform(cls, read_json(path, hint=hint), path, hint=hint)


def conform(kind: type[T], value: Any, where: object, *, hint: str = _HINT) -> T:
    """`value`, as JSON or TOML gave it, as a `kind`; keys that `kind` does not have are left out.

    Args:
        kind: A dataclass, a container of such, or a plain type.
        value: The plain value.
        where: The file it comes from, for the message.
        hint: What to do if it does not conform.

    Raises:
        DamagedError: If a key is missing, or a value has the wrong type or lies out of range.
    """
    try:
        result: T = _conform(value, kind, "")
    except ConfigError as error:
        raise DamagedError(
            f"{visible(str(where))} is damaged: {visible(error.message)}", hint=hint
        ) from error
    return result


def _conform(value: Any, kind: Any, name: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType) and type(None) in args:
        inner = next(arg for arg in args if arg is not type(None))
        return None if value is None else _conform(value, inner, name)
    if is_dataclass(kind):
        return _conform_fields(value, kind, name)
    if origin is dict:
        _require(value, Mapping, "table", name)
        return {key: _conform(item, args[1], _inside(name, key)) for key, item in value.items()}
    if origin in (tuple, list):
        _require(value, list, "list", name)
        return origin(_conform(item, args[0], name) for item in value)
    return convert(value, kind, name)


def _conform_fields(value: Any, cls: Any, name: str) -> Any:
    _require(value, Mapping, "table", name)
    hints = get_type_hints(cls)
    checked = {}
    for f in fields(cls):
        inside = _inside(name, f.name)
        if f.name in value:
            checked[f.name] = _conform(value[f.name], hints[f.name], inside)
            if "limits" in f.metadata:
                check_limits(checked[f.name], f.metadata["limits"], inside)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"'{inside}' is missing.")
    return cls(**checked)


def _require(value: Any, kind: type[Any], called: str, name: str) -> None:
    if not isinstance(value, kind):
        what = f"'{name}'" if name else "its content"
        raise ConfigError(f"{what} must be a {called}, not {type(value).__name__}.")


def _inside(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
