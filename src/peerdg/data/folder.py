"""Find the images in a folder (`root/class/*.jpg`, `root/domain/class/*.jpg`) or a list file.

A list is a CSV, JSON, JSON lines or Parquet file. Images are not decoded here.
"""

import csv
import io
import json
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from peerdg.data.classes import class_positions, in_order
from peerdg.data.decode import IMAGE_SUFFIXES
from peerdg.data.read import ImageFile
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.options import did_you_mean
from peerdg.terminal import one_line, storable

FolderLayout = Literal["auto", "classes", "domains"]
Split = Literal["train", "validation", "test"]
# Common split names, in folder names and lists.
SPLIT_NAMES: dict[str, Split] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "crossval"), "validation"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}
# Files and folders created by operating systems. They are skipped, like hidden ones.
SYSTEM_NAMES = frozenset(
    "thumbs.db|ehthumbs.db|desktop.ini|icon\r|__macosx|@eadir|$recycle.bin|"
    "system volume information|lost+found|__pycache__".split("|")
)
_STRAY_SHARE = 0.1  # if this fraction of images is directly in top folders, these are classes
_EXAMPLES = 5
LIST_SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv")
# Accepted names of each column, in upper or lower case.
COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img"),
    "label": ("label", "class", "target", "category", "class_name", "y"),
    "domain": ("domain", "environment", "env", "style"),
    "split": ("split", "part", "subset", "fold"),
}
MAX_BYTES = 256 * 2**20
MAX_MISSING = 1000  # stop reading a list after this many missing files

_Rows = Iterable[tuple[int, Mapping[str, Any]]]  # line number and values


class ListedImage(NamedTuple):
    """An image file with its class name and, if any, domain and split."""

    path: Path
    label: str
    domain: str | None = None
    split: Split | None = None


class Problem(NamedTuple):
    """A problem with the files, and a remedy.

    An `"error"` makes the files unusable, `"training"` allows only testing on them, and a `"note"`
    does not restrict their use.
    """

    severity: Literal["error", "training", "note"]
    message: str
    remedy: str


@dataclass(frozen=True)
class Listing:
    """The images under a folder or in a list file."""

    root: Path  # paths are shown relative to it
    items: tuple[ListedImage, ...]  # sorted
    origin: Path  # the folder or list file, for messages
    ignored: tuple[str, ...] = ()  # files left out because of their type
    structure: tuple[Problem, ...] = ()  # problems with the folder structure

    @property
    def classes(self) -> tuple[str, ...]:
        return in_order({item.label for item in self.items})

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of all domains. Empty if the images have no domains."""
        return in_order({item.domain for item in self.items if item.domain is not None})

    @property
    def splits(self) -> tuple[Split, ...]:
        """Splits that the user defined, if any."""
        used = {item.split for item in self.items}
        return tuple(split for split in ("train", "validation", "test") if split in used)

    def part(self, *, domain: str | None = None, split: Split | None = None) -> "Listing":
        """Select the images of one domain or one split. None selects all."""
        items = tuple(
            item
            for item in self.items
            if domain in (None, item.domain) and split in (None, item.split)
        )
        return replace(self, items=items)

    def files(
        self, classes: Sequence[str], *, name: str, class_map: Mapping[str, str] | None = None
    ) -> list[ImageFile]:
        """Label images with indices into `classes`, matching names after applying `class_map`."""
        positions = class_positions(self.classes, classes, name=name, class_map=class_map)
        index = dict(zip(self.classes, positions, strict=True))
        return [ImageFile(item.path, index[item.label]) for item in self.items]

    def require(self, *, training: bool) -> "Listing":
        """Return this listing, or raise a `DataError` with all problems that prevent its use."""
        forbidden = {"error", "training"} if training else {"error"}
        problems = [problem for problem in self.problems if problem.severity in forbidden]
        if not problems:
            return self
        if len(problems) == 1:
            raise DataError(problems[0].message, hint=problems[0].remedy)
        lines = [f"{self.origin} cannot be used:"]
        raise DataError("\n  ".join(lines + [f"{p.message} {p.remedy}" for p in problems]))

    @property
    def problems(self) -> list[Problem]:
        """All problems with the folder structure and the classes."""
        problems = list(self.structure)
        counts = Counter(item.label for item in self.items)
        folded: dict[str, list[str]] = {}
        for name in sorted(counts):
            folded.setdefault(name.casefold(), []).append(f"'{name}'")
        if alike := [" and ".join(names) for names in folded.values() if len(names) > 1]:
            message = f"{self.origin} has classes that differ only in case: {', '.join(alike)}."
            problems.append(Problem("error", message, "Merge them, or give them different names."))
        if len(counts) == 1:
            message = f"{self.origin} has only one class ('{next(iter(counts))}')."
            remedy = "A classifier needs at least two, e.g. photos/cat and photos/dog."
            problems.append(Problem("training", message, remedy))
        if single := in_order({name for name, count in counts.items() if count == 1}):
            message = f"{self.origin} has classes with only one image: {examples(single)}."
            remedy = "Add images, so that one can be held out for validation, or remove the class."
            problems.append(Problem("training", message, remedy))
        return problems


def list_folder(root: Path, *, layout: FolderLayout = "auto") -> Listing:
    """List the images under `root` with their classes and, if any, domains or splits.

    `layout` tells whether top-level folders are classes or domains. `"auto"` detects it.
    """
    tree = _walk(root)
    if not tree.images:
        kinds = Counter(os.path.splitext(name)[1].lower() for name in tree.ignored)
        others = ", ".join(f"{n} x {kind or 'no suffix'}" for kind, n in kinds.most_common(4))
        raise DataError(
            f"There are no images in {root}" + (f" (other files: {others})." if others else "."),
            hint=f"Supported types: {' '.join(sorted(IMAGE_SUFFIXES))}.",
        )
    if not any(parts for parts, _ in tree.images):
        raise DataError(
            f"The images are directly in {root}, not in class folders.",
            hint="Put the images of each class in a separate folder, or give a list (CSV).",
        )
    depth = 1 if _first_level(root, tree, layout) == "classes" else 2
    items, misplaced = [], []
    for parts, name in tree.images:
        if len(parts) < depth:
            misplaced.append("/".join((*parts, name)))
            continue
        domain = readable(parts[0]) if depth == 2 else None
        items.append(ListedImage(root.joinpath(*parts, name), readable(parts[depth - 1]), domain))
    problems = []
    for level, kind in [(depth, "class"), (1, "domain")][:depth]:
        full = {parts[level - 1] for parts, _ in tree.images if len(parts) >= depth}
        if len({*map(readable, full)}) < len(full):  # e.g. é as one or as two code points
            message = f"{root} has {kind} folders with the same name. They are merged."
            problems.append(Problem("note", message, "Rename them if they differ."))
        if empty := sorted({p[level - 1] for p in tree.folders if len(p) == level} - full):
            message = f"{root} has {kind} folders without images: {examples(empty)}."
            problems.append(Problem("training", message, "Add images, or remove the folders."))
    if tree.unreadable:
        message = f"Folders in {root} cannot be read: {examples(tree.unreadable)}."
        problems.append(Problem("error", message, "Change their permissions."))
    if misplaced:
        message = f"{len(misplaced)} images are not in a class folder: {examples(misplaced)}."
        problems.append(Problem("note", message, "They are ignored. Move them into class folders."))
    ignored = sorted(map(readable, tree.ignored))
    listing = Listing(root, tuple(items), root, tuple(ignored), tuple(problems))
    splits = {domain: SPLIT_NAMES.get(domain.lower()) for domain in listing.domains}
    if "train" not in splits.values() or None in splits.values():
        return listing
    as_splits = (i._replace(domain=None, split=splits[i.domain or ""]) for i in listing.items)
    return replace(listing, items=tuple(as_splits))


def image_files(folder: Path) -> list[Path]:
    """List the image files at any depth, in the same order as `list_folder`."""
    tree = _walk(folder)
    for name in tree.unreadable:
        warnings.warn(f"The folder {name} cannot be read.", PeerdgWarning, stacklevel=2)
    return [folder.joinpath(*parts, name) for parts, name in tree.images]


def readable(name: str) -> str:
    """Convert a file name to text that any record can store.

    Characters are composed, because some systems store ü as one character and others as two.
    """
    return unicodedata.normalize("NFC", storable(name))


def examples(names: Sequence[str]) -> str:
    """Join the first few names for a message, and count the rest."""
    more = f" and {len(names) - _EXAMPLES:,} more" if len(names) > _EXAMPLES else ""
    return ", ".join(names[:_EXAMPLES]) + more


@dataclass
class _Tree:
    """Files and folders below a root. Folders are tuples of names, relative to the root."""

    images: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    folders: list[tuple[str, ...]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def _walk(root: Path) -> _Tree:
    """List all files below `root`. Each linked folder is followed once, unless it is a parent."""
    tree = _Tree()
    followed: set[str] = set()

    def note_unreadable(error: OSError) -> None:
        tree.unreadable.append(readable(os.path.relpath(error.filename, root)))

    for place, folders, files in os.walk(root, followlinks=True, onerror=note_unreadable):
        parts = Path(place).relative_to(root).parts
        folders.sort()
        for name in folders.copy():
            is_link, target = os.path.islink(f"{place}/{name}"), os.path.realpath(f"{place}/{name}")
            is_parent = Path(os.path.realpath(place)).is_relative_to(target)
            if _is_system(name) or (is_link and (is_parent or target in followed)):
                folders.remove(name)
            elif is_link:
                followed.add(target)
        tree.folders += [(*parts, name) for name in folders]
        for name in files:
            if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not _is_system(name):
                tree.images.append((parts, name))
            elif not _is_system(name):
                tree.ignored.append("/".join((*parts, name)))
    tree.images.sort()
    return tree


def _is_system(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def _first_level(root: Path, tree: _Tree, layout: FolderLayout) -> Literal["classes", "domains"]:
    """Decide whether the folders directly under `root` are classes or domains."""
    if layout != "auto":
        return layout
    inside = [parts for parts, _ in tree.images if parts]
    direct = Counter(parts[0] for parts in inside if len(parts) == 1)
    names = Counter(name for _, name in {parts[:2] for parts in inside if len(parts) > 1})
    tops = sorted({parts[0] for parts in inside})
    if len(names) < 2:
        return "classes"
    if all(readable(name).lower() in SPLIT_NAMES for name in names) and not direct:
        raise DataError(
            f"The folders under {root}/{tops[0]} are called {', '.join(sorted(names))}. These are "
            "splits of a data set, not classes.",
            hint=f"Give {root}/{tops[0]} or {root}/{tops[0]}/{min(names)}, or a list (CSV).",
        )
    if len(tops) == 1:
        return "classes" if direct else "domains"
    repeated = sum(count > 1 for count in names.values()) / len(names)
    if direct and (repeated < 0.5 or direct.total() >= _STRAY_SHARE * len(inside)):
        return "classes"
    if not direct and repeated >= 0.5:
        return "domains"
    raise DataError(
        f"{root} can be read in two ways: as classes {examples(tops)} with subfolders, "
        f"or as domains {examples(tops)} with classes {examples(in_order(names))}.",
        hint="Choose --own-data.layout classes or --own-data.layout domains.",
    )


def find_images(path: Path, *, layout: FolderLayout = "auto") -> Listing:
    """List the images in a folder or list file, with all problems."""
    path = path.expanduser()
    if path.is_dir():
        return list_folder(path, layout=layout)
    if not path.exists():
        raise DataError(f"The folder or list {path} does not exist.", hint="Check the path.")
    return read_list(path)


def read_list(file: Path) -> Listing:
    """Read a list of images. Paths are relative to the list's folder.

    Raises:
        DataError: If the list cannot be read, lacks a column or a value, or names missing files.
    """
    kind = file.suffix.lower()
    if kind not in LIST_SUFFIXES or not file.is_file():
        raise DataError(
            f"{file} is neither a folder of images nor a list.",
            hint=f"Lists are files of type {' '.join(LIST_SUFFIXES)}.",
        )
    if file.stat().st_size > MAX_BYTES:
        raise DataError(f"The list {file} is larger than {MAX_BYTES:,} bytes.")
    try:
        rows = _read_parquet(file) if kind == ".parquet" else _read_text(kind, file.read_bytes())
        items = _read_rows(file, rows)
    except (OSError, csv.Error, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(f"Cannot read the list {file}: {reason}.") from error
    if not items:
        raise DataError(f"The list {file} has no images.")
    return Listing(file.parent, tuple(items.values()), file)


def _read_text(kind: str, content: bytes) -> _Rows:
    text = content.decode("utf-8-sig")
    if kind in (".csv", ".tsv"):
        header = text.partition("\n")[0]
        # The most frequent separator, or on a tie the one that the file's suffix stands for.
        delimiter = max("\t;," if kind == ".tsv" else ",;\t", key=header.count)
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
    """Map each meaning, e.g. `path`, to its column in the file."""
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
    """Read the images by line number. Raise an error on missing values and duplicate files."""
    items: dict[int, ListedImage] = {}
    missing: list[str] = []
    first: dict[str, int] = {}
    columns: dict[str, str] = {}
    for number, values in rows:
        if not isinstance(values, Mapping) or None in values:
            raise ValueError(f"line {number}: the values do not match the columns")
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
        if not os.path.isfile(path):
            missing.append(f"{readable(path):.200} (line {number})")
        if len(missing) == MAX_MISSING:  # Do not check the rest of a huge list.
            break
    if missing:
        raise DataError(
            f"{len(missing):,} of the first {len(items):,} files in {file} do not exist: "
            f"{examples(missing)}.",
            hint=f"Paths are relative to {file.parent}.",
        )
    return items


def _text(value: Any) -> str:
    """Convert a value to text. A missing value becomes an empty string."""
    if value is None or value != value:  # pandas stores missing values as NaN
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas may store integers as floats
    if not isinstance(value, str | int | float):
        raise ValueError(f"a value is a {type(value).__name__}, not text")
    return str(value).strip()
