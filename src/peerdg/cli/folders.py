"""`peerdg data verify` and `show` for folders and lists of a user's own images."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from peerdg.data.benchmarks import BENCHMARKS, no_such_data
from peerdg.errors import DataError
from peerdg.terminal import console, error_console

if TYPE_CHECKING:
    from peerdg.data.check import FolderReport


def is_folder(name: str) -> bool:
    """Whether `name` means files and not a known data set."""
    return name not in BENCHMARKS and Path(name).expanduser().exists()


def verify_folders(paths: Sequence[Path]) -> None:
    """Print what was found, and end with code 5 if something must be put right."""
    from peerdg.terminal import Table

    report = read_folders(paths)
    rows = [
        [name, f"{len(domain)}", f"{report.counts[name]}", f"{len(domain.classes)}"]
        for name, domain in report.parts.items()
    ]
    console.print(Table(["images of", "usable", "files", "classes"], rows, is_text=True))
    for problem in report.problems:
        kind = "Note" if problem.severity == "note" else "Problem"
        text = f"{kind}: {problem.message}\n  {problem.remedy}"
        console.print(text, markup=False, soft_wrap=True)
    if report.errors:
        what = ", ".join(str(path) for path in paths)
        raise DataError(
            f"{len(report.errors)} problems must be put right before training on {what}."
        )
    console.print("Everything can be decoded.", markup=False)


def read_folders(paths: Sequence[Path]) -> "FolderReport":
    """Decode everything, with a bar."""
    from peerdg.data.check import check_folders

    for path in paths:
        if not path.expanduser().exists():
            raise no_such_data(str(path))
    with _bar():
        return check_folders([path.expanduser() for path in paths])


@contextmanager
def _bar() -> Iterator[None]:
    from peerdg.data.progress import showing
    from peerdg.run.progress import ReadingBar

    bar = ReadingBar(error_console)
    try:
        with showing(bar):
            yield
    finally:
        bar.close()
