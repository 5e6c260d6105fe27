"""A list of images with path, label, domain and split: CSV, JSON, JSON lines or Parquet."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peerdg.config import did_you_mean
from peerdg.data.listing import (
    SPLIT_NAMES,
    Item,
    Listing,
    Split,
    readable,
)
from peerdg.errors import ConfigError, DataError

SUFFIXES = frozenset({".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet"})
# What each column may be called, in any case.
COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img"),
    "label": ("label", "class", "target", "category", "class_name", "y"),
    "domain": ("domain", "environment", "env", "style"),
    "split": ("split", "part", "subset", "fold"),
}
_SHOWN = 20


class _Row(NamedTuple):
    """The values of one image and the line, or number, it stands at."""

    number: int
    values: Mapping[str, Any]


def read_list(file: Path) -> Listing:
    """The images that a list names; paths are relative to the list's folder.

    Raises:
        DataError: If it cannot be read, lacks a column or a value, or names files that are not
            there; with line numbers.
    """
    kind = file.suffix.lower()
    if kind not in _READERS:
        raise DataError(
            f"{file} is not a list of a known type.", hint=f"Known: {' '.join(sorted(SUFFIXES))}."
        )
    try:
        rows = list(_READERS[kind](file))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"Cannot read the list {file}: {reason}.") from error
    if not rows:
        raise DataError(f"The list {file} has no images.")
    columns = _columns(file, [name for name in rows[0].values if name is not None])
    items = [_item(file, row, columns) for row in rows]
    _refuse_missing(file, rows, items)
    _refuse_contradictions(file, rows, items)
    return Listing(file.parent, tuple(items), file)


def _read_csv(file: Path) -> Iterator[_Row]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        header = lines.readline()
        lines.seek(0)
        delimiter = max("\t;,", key=header.count)  # the comma wins a tie
        reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
        for values in reader:
            if None in values:
                raise DataError(f"{file}, line {reader.line_num}: more values than columns.")
            yield _Row(reader.line_num, values)


def _read_json(file: Path) -> Iterator[_Row]:
    content = json.loads(file.read_text("utf-8-sig"))
    if not isinstance(content, list):
        raise DataError(
            f"{file} holds no list of images.", hint='Write [{"path": ..., "label": ...}, ...].'
        )
    return _numbered(file, enumerate(content, start=1), "entry")


def _read_json_lines(file: Path) -> Iterator[_Row]:
    def parsed() -> Iterator[tuple[int, Any]]:
        lines = file.read_text("utf-8-sig").split("\n")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise DataError(f"{file}, line {number}: {error}.") from error

    return _numbered(file, parsed(), "line")


def _read_parquet(file: Path) -> Iterator[_Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ConfigError(
            f"Reading {file.name} needs pyarrow.",
            hint="pip install 'peerdg[parquet]', or give a CSV list.",
        ) from error
    try:
        table = parquet.read_table(file)
    except ArrowException as error:
        raise DataError(f"Cannot read the list {file}: {error}.") from error
    return _numbered(file, enumerate(table.to_pylist(), start=1), "row")


_READERS: dict[str, Callable[[Path], Iterator[_Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}


def _numbered(file: Path, entries: Iterable[tuple[int, Any]], what: str) -> Iterator[_Row]:
    for number, values in entries:
        if not isinstance(values, dict):
            raise DataError(
                f"{file}, {what} {number}: {values!r:.60} is not a table of columns and values."
            )
        yield _Row(number, values)


def _columns(file: Path, header: Sequence[str]) -> dict[str, str]:
    """Which column of the list holds what."""
    there = {name.strip().lower(): name for name in header}
    found = {}
    for meaning, names in COLUMNS.items():
        same = [there[name] for name in names if name in there]
        if same:
            found[meaning] = same[0]
    for meaning in ("path", "label"):
        if meaning not in found:
            known = did_you_mean(meaning, header) if len(header) > 1 else ""
            raise DataError(
                f"{file} has no column '{meaning}'; its first line is {', '.join(header)!r:.200}.",
                hint=f"Name the columns in the first line, e.g. path,label,domain. {known}".strip(),
            )
    return found


def _item(file: Path, row: _Row, columns: Mapping[str, str]) -> Item:
    def text(meaning: str) -> str:
        value = row.values.get(columns[meaning])
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas makes floats of whole numbers
        return "" if value is None or value != value else str(value).strip()

    for meaning in ("path", "label"):
        if not text(meaning):
            raise DataError(f"{file}, line {row.number}: there is no {meaning}.")
    domain = text("domain") if "domain" in columns else ""
    split: Split | None = None
    if "split" in columns and text("split"):
        split = SPLIT_NAMES.get(text("split").lower())
        if split is None:
            raise DataError(
                f"{file}, line {row.number}: unknown split '{text('split')}'.",
                hint=did_you_mean(text("split"), ("train", "validation", "test")),
            )
    path = file.parent / os.path.expanduser(text("path"))
    return Item(path, readable(text("label")), readable(domain) or None, split)


def _refuse_missing(file: Path, rows: Sequence[_Row], items: Sequence[Item]) -> None:
    missing = [
        f"  line {row.number}: {item.path}"
        for row, item in zip(rows, items, strict=True)
        if not os.path.isfile(item.path)
    ]
    if missing:
        more = f"\n  ... and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
        raise DataError(
            f"{len(missing):,} of the {len(items):,} files in {file} are not there:\n"
            + "\n".join(missing[:_SHOWN])
            + more,
            hint=f"Paths are relative to {file.parent}.",
        )


def _refuse_contradictions(file: Path, rows: Sequence[_Row], items: Sequence[Item]) -> None:
    """One file under two labels or in two parts would be learnt from or judged wrongly."""
    first: dict[str, int] = {}
    for position, item in enumerate(items):
        earlier = first.setdefault(os.path.normpath(item.path), position)
        if earlier != position:
            raise DataError(
                f"{file}, line {rows[position].number}: {item.path.name} is already in line "
                f"{rows[earlier].number}, as '{items[earlier].label}'.",
                hint="Name each file once.",
            )
