"""Files that cannot be decoded: all of them in one error, and in a file if they are many."""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from peerdg.data.cache import cache_folder
from peerdg.data.domain import BadImage
from peerdg.errors import DataError, OutputError
from peerdg.files import replace_atomically

SHOWN = 20
FOLDER = "bad-images"
REMEDY = "Repair or remove them; of your own images --own-data.skip-bad-images leaves them out."


def refuse(bad: Sequence[BadImage], *, count: int, name: str = "") -> NoReturn:
    """Raise a `DataError` with the first of them and the place of the full list.

    Args:
        bad: The files and what is wrong with each.
        count: How many files were tried.
        name: The domain, if it has a name.
    """
    where = f" of '{name}'" if name else ""
    lines = [f"{len(bad):,} of {count:,} images{where} cannot be used:"]
    lines += [f"  {path}: {reason}" for path, reason in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"  ... all of them in {write_list(bad)}")
    raise DataError("\n".join(lines), hint=REMEDY)


def write_list(bad: Sequence[BadImage]) -> Path:
    """Write one line per file, its path and the reason; where they are."""
    text = "".join(f"{path}\t{reason}\n" for path, reason in bad)
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.tsv"
    folder = cache_folder()
    for place in (folder and folder / FOLDER, Path(tempfile.gettempdir()) / f"peerdg-{FOLDER}"):
        if place is None:
            continue
        try:
            with replace_atomically(place / name) as temporary:
                temporary.write_text(text, "utf-8")
            return place / name
        except OutputError:
            continue
    raise DataError(text)  # no place to write to: then all of it is the message
