"""A list of images with path, label, domain and split: CSV, JSON, JSON lines or Parquet."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from peerdg.data.folder import (
    SPLIT_NAMES,
    FolderLayout,
    ListedImage,
    Listing,
    Split,
    list_folder,
    readable,
)
from peerdg.errors import ConfigError, DataError
from peerdg.files import open_regular
from peerdg.options import did_you_mean
from peerdg.terminal import one_line

LIST_SUFFIXES = frozenset({".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet"})
# What each column may be called, in any case.
COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img"),
    "label": ("label", "class", "target", "category", "class_name", "y"),
    "domain": ("domain", "environment", "env", "style"),
    "split": ("split", "part", "subset", "fold"),
}
MOST_BYTES = 256 * 2**20  # of a list, and of the columns of a Parquet file once unpacked
_MOST_CHARACTERS = 4096  # of one value; a path cannot be longer
_ROWS_AT_ONCE = 4096
_SHOWN = 20


class _Row(NamedTuple):
    """The values of one image and the line, or number, it stands at."""

    number: int
    values: Mapping[str, Any]


def read_list(file: Path) -> Listing:
    """Read the images that a list names; paths are relative to the list's folder.

    Raises:
        DataError: If it cannot be read, lacks a column or a value, or names files that are not
            there; with line numbers.
    """
    kind = file.suffix.lower()
    if kind not in _READERS:
        raise DataError(
            f"{file} is not a list of a known type.",
            hint=f"Known: {' '.join(sorted(LIST_SUFFIXES))}.",
        )
    try:
        with open_regular(file, follow_links=True) as content:
            _check_size(file, os.fstat(content.fileno()).st_size)
            numbers, items = _read_rows(file, _READERS[kind](file, content))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(f"Cannot read the list {file}: {reason}.") from error
    if not items:
        raise DataError(f"The list {file} has no images.")
    _refuse_missing(file, numbers, items)
    return Listing(file.parent, tuple(items), file)


def _check_size(file: Path, size: int) -> None:
    if size > MOST_BYTES:
        raise DataError(
            f"The list {file} has {size:,} bytes; at most {MOST_BYTES:,} are read.",
            hint="Leave out columns that are not needed, or make several lists.",
        )


def _read_rows(file: Path, rows: Iterable[_Row]) -> tuple[list[int], list[ListedImage]]:
    """Read line numbers and images; refuse one file under two labels or in two parts."""
    numbers: list[int] = []
    items: list[ListedImage] = []
    first: dict[str, int] = {}
    columns: dict[str, str] = {}
    keys: set[str] = set()
    for row in rows:
        columns = columns or _columns(file, [name for name in row.values if name is not None])
        keys = keys or set(row.values)
        if row.values.keys() != keys:  # of JSON; columns of other lists are the same in every row
            _refuse_other_columns(file, row, columns, first=numbers[0])
        item = _item(file, row, columns)
        earlier = first.setdefault(os.path.normpath(item.path), len(items))
        if earlier != len(items):
            raise DataError(
                f"{file}, line {row.number}: {readable(item.path.name)} is already in line "
                f"{numbers[earlier]}, as '{items[earlier].label}'.",
                hint="Name each file once.",
            )
        numbers.append(row.number)
        items.append(item)
    return numbers, items


def _read_csv(file: Path, content: BufferedReader) -> Iterator[_Row]:
    with io.TextIOWrapper(content, "utf-8-sig", newline="") as lines:
        header = lines.readline()
        lines.seek(0)
        delimiter = max("\t;,", key=header.count)  # the comma wins a tie
        reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
        for values in reader:
            if None in values:
                raise DataError(f"{file}, line {reader.line_num}: more values than columns.")
            yield _Row(reader.line_num, values)


def _read_json(file: Path, content: BufferedReader) -> Iterator[_Row]:
    entries = json.loads(content.read().decode("utf-8-sig"))
    if not isinstance(entries, list):
        raise DataError(
            f"{file} holds no list of images.", hint='Write [{"path": ..., "label": ...}, ...].'
        )
    return _numbered(file, enumerate(entries, start=1), "entry")


def _read_json_lines(file: Path, content: BufferedReader) -> Iterator[_Row]:
    def parsed() -> Iterator[tuple[int, Any]]:
        with io.TextIOWrapper(content, "utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except ValueError as error:
                        raise DataError(f"{file}, line {number}: {error}.") from error

    return _numbered(file, parsed(), "line")


def _read_parquet(file: Path, content: BufferedReader) -> Iterator[_Row]:
    """Read the needed columns, some rows at a time; texts stay in dictionaries until checked."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"Reading {file.name} needs pyarrow.",
            hint="pip install 'peerdg[parquet]', or give a CSV list.",
        ) from error
    try:
        schema = parquet.read_schema(content)
        columns = list(_columns(file, schema.names).values())
        texts = [name for name in columns if _check_type(file, name, schema.field(name).type)]
        opened = parquet.ParquetFile(content, read_dictionary=texts, pre_buffer=False)
        _check_size(file, _unpacked_bytes(opened.metadata, columns))
        number = 0
        for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False):
            for name in texts:
                _check_lengths(file, name, batch.column(name))
            for values in batch.to_pylist():
                number += 1
                yield _Row(number, values)
    except (pyarrow.ArrowException, KeyError, OverflowError) as error:
        raise DataError(f"Cannot read the list {file}: {one_line(error)}.") from error


def _check_type(file: Path, name: str, kind: Any) -> bool:
    """Tell whether the column is text; refuse what is neither text nor numbers."""
    from pyarrow import types

    while types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return True
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(f"{file}: the column '{name}' is {kind}, neither text nor numbers.")
    return False


def _unpacked_bytes(metadata: Any, columns: Sequence[str]) -> int:
    """Sum the bytes of the columns once unpacked, as the file's own directory has them."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    parts = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(part.total_uncompressed_size for part in parts if part.path_in_schema in columns)


def _check_lengths(file: Path, name: str, column: Any) -> None:
    """Refuse long texts: one may stand in the dictionary once and in a million rows."""
    from pyarrow import compute

    texts = column.dictionary if hasattr(column, "dictionary") else column
    longest = compute.max(compute.binary_length(texts)).as_py() or 0
    if longest > 4 * _MOST_CHARACTERS:  # bytes of UTF-8
        raise DataError(f"{file}: a value of the column '{name}' has {longest:,} bytes.")


_READERS: dict[str, Callable[[Path, BufferedReader], Iterator[_Row]]] = {
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
    """Find which column of the list holds what."""
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


def _refuse_other_columns(file: Path, row: _Row, columns: Mapping[str, str], *, first: int) -> None:
    """Refuse a row that lacks a column of the first row, or has one that the first row lacks.

    A split or domain that only some images have would be lost without a message.
    """
    names = {name.strip().lower() for name in row.values}
    for meaning, known in COLUMNS.items():
        column = columns.get(meaning)
        if column is None and not names.isdisjoint(known):
            lacks, has = first, row.number
        elif column is not None and column not in row.values:
            lacks, has = row.number, first
        else:
            continue
        raise DataError(
            f"{file}, line {lacks}: there is no '{column or meaning}', but line {has} has one.",
            hint="Give it in every line, under one name, or in none.",
        )


def _text(file: Path, row: _Row, meaning: str, column: str) -> str:
    """Read one value as text; empty if there is none.

    Raises:
        DataError: If it is neither text nor a number, or no text that a record could hold.
    """
    value = row.values.get(column)
    if value is None or value != value:  # not a number: how pandas writes a missing value
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes floats of whole numbers
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise DataError(f"{file}, line {row.number}: the {meaning} is a {kind}, not text.")
    text = str(value).strip()
    if "\0" in text or len(text) > _MOST_CHARACTERS:
        problem = "has a null character" if "\0" in text else f"has {len(text):,} characters"
        raise DataError(f"{file}, line {row.number}: the {meaning} {problem}.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        reason = f"the {meaning} has half of a character (a lone surrogate)"
        raise DataError(f"{file}, line {row.number}: {reason}.") from error
    return text


def _item(file: Path, row: _Row, columns: Mapping[str, str]) -> ListedImage:
    texts = {meaning: _text(file, row, meaning, column) for meaning, column in columns.items()}
    for meaning in ("path", "label"):
        if not texts[meaning]:
            raise DataError(f"{file}, line {row.number}: there is no {meaning}.")
    split: Split | None = None
    if name := texts.get("split"):
        split = SPLIT_NAMES.get(name.lower())
        if split is None:
            raise DataError(
                f"{file}, line {row.number}: unknown split '{readable(name)}'.",
                hint=did_you_mean(name, ("train", "validation", "test")),
            )
    path = file.parent / os.path.expanduser(texts["path"])
    domain = readable(texts.get("domain", "")) or None
    return ListedImage(path, readable(texts["label"]), domain, split)


def _refuse_missing(file: Path, numbers: Sequence[int], items: Sequence[ListedImage]) -> None:
    missing = [
        f"  line {number}: {readable(str(item.path))}"
        for number, item in zip(numbers, items, strict=True)
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


def find_images(path: Path, *, layout: FolderLayout = "auto") -> Listing:
    """List what is in a folder or a list file, with all that is wrong with it.

    A folder whose first level is called train, val, test and the like has splits, not domains.

    Raises:
        DataError: If there is nothing of the kind.
    """
    path = path.expanduser()
    if path.is_dir():
        return _with_splits(list_folder(path, layout=layout))
    if not path.exists():
        raise DataError(f"There is no folder or list {path}.", hint="Check the path.")
    if path.suffix.lower() in LIST_SUFFIXES:
        return read_list(path)
    raise DataError(
        f"{path} is neither a folder of images nor a list.",
        hint=f"Lists are files of type {' '.join(sorted(LIST_SUFFIXES))}.",
    )


def _with_splits(listing: Listing) -> Listing:
    splits = {domain: SPLIT_NAMES.get(domain.lower()) for domain in listing.domains}
    if "train" not in splits.values() or None in splits.values():
        return listing
    items = tuple(
        item._replace(domain=None, split=splits[item.domain or ""]) for item in listing.items
    )
    return replace(listing, items=items)
