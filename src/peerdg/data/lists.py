"""List the images of a CSV, JSON, JSON lines or Parquet file with path, label, domain and split."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peerdg.data.folder import (
    SPLIT_NAMES,
    FolderLayout,
    ListedImage,
    Listing,
    examples,
    list_folder,
    readable,
)
from peerdg.errors import ConfigError, DataError
from peerdg.options import did_you_mean
from peerdg.terminal import one_line

LIST_SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv")
# Names that each column may have, in any case.
COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img"),
    "label": ("label", "class", "target", "category", "class_name", "y"),
    "domain": ("domain", "environment", "env", "style"),
    "split": ("split", "part", "subset", "fold"),
}
MAX_BYTES = 256 * 2**20

_Rows = Iterable[tuple[int, Mapping[str, Any]]]  # line number and values


def find_images(path: Path, *, layout: FolderLayout = "auto") -> Listing:
    """List the images of a folder or a list file, with all their problems."""
    path = path.expanduser()
    if path.is_dir():
        return list_folder(path, layout=layout)
    if not path.exists():
        raise DataError(f"There is no folder or list {path}.", hint="Check the path.")
    return read_list(path)


def read_list(file: Path) -> Listing:
    """Read the images that a list names. Paths are relative to the list's folder.

    Raises:
        DataError: If it cannot be read, lacks a column or a value, or names files that do not
            exist.
    """
    kind = file.suffix.lower()
    if kind not in LIST_SUFFIXES or not file.is_file():
        raise DataError(
            f"{file} is neither a folder of images nor a list.",
            hint=f"Lists are files of type {' '.join(LIST_SUFFIXES)}.",
        )
    if file.stat().st_size > MAX_BYTES:
        raise DataError(f"The list {file} has more than {MAX_BYTES:,} bytes.")
    try:
        rows = _read_parquet(file) if kind == ".parquet" else _read_text(kind, file.read_bytes())
        items = _read_rows(file, rows)
    except (OSError, csv.Error, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(f"Cannot read the list {file}: {reason}.") from error
    if not items:
        raise DataError(f"The list {file} has no images.")
    missing = [
        f"{readable(str(item.path)):.200} (line {line})"
        for line, item in items.items()
        if not os.path.isfile(item.path)
    ]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(items):,} files in {file} do not exist: "
            f"{examples(missing)}.",
            hint=f"Paths are relative to {file.parent}.",
        )
    return Listing(file.parent, tuple(items.values()), file)


def _read_text(kind: str, content: bytes) -> _Rows:
    text = content.decode("utf-8-sig")
    if kind in (".csv", ".tsv"):
        header = text.partition("\n")[0]
        delimiter = max("\t;,", key=header.count)  # the comma wins a tie
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return ((reader.line_num, values) for values in reader)
    if kind == ".json":
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise ValueError('it is not of the form [{"path": ..., "label": ...}, ...]')
        return enumerate(entries, start=1)
    return _read_json_lines(text)


def _read_json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error


def _read_parquet(file: Path) -> _Rows:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"Reading {file.name} needs pyarrow.",
            hint="pip install 'peerdg[parquet]', or give a CSV list.",
        ) from error
    try:
        columns = _columns(file, parquet.read_schema(file).names)
        table = parquet.read_table(file, columns=list(columns.values()))
        return enumerate(table.to_pylist(), start=1)
    except (pyarrow.ArrowException, KeyError, OverflowError) as error:
        raise ValueError(one_line(error)) from error


def _columns(file: Path, header: Sequence[str]) -> dict[str, str]:
    """Find the column of the list for each meaning."""
    names = {name.strip().lower(): name for name in header if name is not None}
    columns = {}
    for meaning, known in COLUMNS.items():
        if present := [names[name] for name in known if name in names]:
            columns[meaning] = present[0]
    for meaning in ("path", "label"):
        if meaning not in columns:
            raise DataError(
                f"{file} has no column '{meaning}'. Its columns are {', '.join(names)!r:.200}.",
                hint="Name the columns in the first line, e.g. path,label,domain.",
            )
    return columns


def _read_rows(file: Path, rows: _Rows) -> dict[int, ListedImage]:
    """Read the images by line number. Refuse missing values and a file that is named twice."""
    items: dict[int, ListedImage] = {}
    first: dict[str, int] = {}
    columns: dict[str, str] = {}
    for number, values in rows:
        if not isinstance(values, Mapping) or None in values:
            raise ValueError(f"line {number}: the values do not fit the columns")
        columns = columns or _columns(file, list(values))
        texts = {meaning: _text(values.get(column)) for meaning, column in columns.items()}
        for meaning in ("path", "label"):
            if not texts[meaning]:
                raise ValueError(f"line {number}: there is no {meaning}")
        path = os.path.normpath(file.parent / os.path.expanduser(texts["path"]))
        if (earlier := first.setdefault(path, number)) != number:
            raise ValueError(f"line {number}: {readable(path)} is already in line {earlier}")
        split = texts.get("split", "").lower()
        if split and split not in SPLIT_NAMES:
            hint = did_you_mean(split, ("train", "validation", "test"))
            raise ValueError(f"line {number}: the split '{readable(split)}' is unknown. {hint}")
        domain = readable(texts.get("domain", "")) or None
        label = readable(texts["label"])
        items[number] = ListedImage(Path(path), label, domain, SPLIT_NAMES.get(split))
    return items


def _text(value: Any) -> str:
    """Convert one value to text. Empty if there is none."""
    if value is None or value != value:  # NaN is how pandas writes a missing value
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas makes floats of whole numbers
    if not isinstance(value, str | int | float):
        raise ValueError(f"a value is a {type(value).__name__}, not text")
    return str(value).strip()
