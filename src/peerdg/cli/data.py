"""`peerdg data`: list, show, verify and prepare data sets, and clear the cache."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.filesize import decimal

from peerdg.data.benchmarks import BENCHMARKS, PUBLISHED, Benchmark, no_such_data
from peerdg.errors import ConfigError, DataError
from peerdg.files import remove, replace_atomically
from peerdg.options import did_you_mean
from peerdg.run.progress import ReadingBar
from peerdg.terminal import Table, console, error_console

if TYPE_CHECKING:
    from peerdg.data.domain import Domain
    from peerdg.data.folder import Problem

Root = Annotated[Path | None, Parameter(help="folder with the data set's files")]


def list_data() -> None:
    """List the data sets with their domains, license and origin."""
    for name in PUBLISHED:
        data = BENCHMARKS[name]
        console.print(f"{name}: {data.title}", style="bold")
        console.print(f"  source   {data.source}\n  targets  {', '.join(data.targets)}")
        console.print(f"  license  {data.license}\n  origin   {data.obtain}")


def show_data(
    name: str,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("sheet.png"),
    root: Root = None,
) -> None:
    """Write a contact sheet with images of every domain and class.

    Example: `peerdg data show digits-mini -o sheet.png`

    Args:
        name: Data set, or a folder or list of your own images.
        output: PNG file to write.
    """
    from peerdg.data.domain import contact_sheet

    domains = read_domains(name, root)
    sheet = contact_sheet(domains)
    with replace_atomically(output) as temporary:
        sheet.save(temporary, format="PNG")
    console.print(f"{len(domains)} domains in {output}")


def verify_data(name: str, /, *folders: Path, root: Root = None) -> None:
    """Check the images of each domain on disk, and show where to get missing ones.

    Your own images are decoded and compared with each other. The command exits with code 5
    if there is a problem or there are no source images.

    Example: `peerdg data verify photos/ sketches/`

    Args:
        name: Data set, or a folder or list of your own images.
        folders: More folders and lists, to find images that occur more than once.
    """
    if _is_path(name):
        _verify_folders([Path(name), *folders])
        return
    if folders:
        raise ConfigError(f"The data set {name} cannot be verified together with folders.")
    data = _data_set(name, root)
    reports = data.verify(root)
    rows = []
    for r in reports:
        counts = ["-" if r.count is None else f"{r.count}", f"{r.expected}"]
        rows += [[f"{r.domain} {r.split}", r.status, *counts, "optional" if r.optional else ""]]
    console.print(Table(["domain", "status", "images", "expected", ""], rows, is_text=True))
    for report in reports:
        for problem in report.problems:
            console.print(f"{report.domain}: {problem}")
        if report.status == "missing" and not report.optional:
            console.print(f"{report.domain}: available from {report.obtain}")
    if problems := [report.domain for report in reports if report.problems]:
        raise DataError(f"{name}: problems with {', '.join(dict.fromkeys(problems))}.")
    if hasattr(data.settings, "source"):  # any domain can be the source
        is_missing = all(report.count is None for report in reports)
    else:
        needed = [r for r in reports if r.domain == data.source and not r.optional]
        is_missing = any(report.count is None for report in needed)
    if is_missing:
        raise DataError(f"{name}: no source images under {root}.")


def prepare_data(name: str, /, *archives: Path, root: Root = None) -> None:
    """Unpack a data set's archives, or decode it into the cache.

    Archives are unpacked into the new folder --root, which is then verified. Without archives, all
    images under --root are decoded, so that training can start right away.

    Example: `peerdg data prepare pacs ~/Downloads/PACS.zip --root ~/data/PACS`

    Args:
        name: Data set.
        archives: Downloaded zip and tar files.
    """
    if archives:
        from peerdg.data.archive import unpack

        data = _data_set(name, root)
        with _bar() as bar:
            for path in unpack(data, archives, root or Path(), progress=bar):
                console.print(f"{path}")
        verify_data(name, root=root)
        return
    from peerdg.data.cache import cache_folder

    for domain in _load(name, root):
        console.print(f"{domain.name}: {len(domain)} images")
    console.print(f"Ready in {cache_folder()}")


def cache_data(
    name: str | None = None,
    /,
    *,
    clear: Annotated[bool, Parameter(help="remove the entries")] = False,
) -> None:
    """Show the cache of decoded images and shared pre-training, or clear it.

    Cleared entries are recomputed when needed.

    Example: `peerdg data cache --clear`

    Args:
        name: Name of entries. `pretraining` selects all shared pre-training. Default: all.
    """
    from peerdg.data.cache import cache_entries, cache_folder, clear_cache
    from peerdg.run.pretraining import FOLDER, shared_pretrainings

    folder = cache_folder()
    if folder is None:
        raise ConfigError("There is no home folder.", hint="Set PEERDG_CACHE to a folder.")
    entries = [(entry.name, entry.size, entry.written) for entry in cache_entries(folder)]
    for path in shared_pretrainings(folder):
        size = sum(file.stat().st_size for file in path.iterdir())
        entries.append((FOLDER, size, path.stat().st_mtime))
    names = {each for each, _, _ in entries}
    if name is not None and name not in names:
        hint = did_you_mean(name, names) if names else "The cache is empty."
        raise ConfigError(f"The cache has no entry '{name}'.", hint=hint)
    entries = [entry for entry in entries if name in (None, entry[0])]
    summary = f"{len(entries)} entries, {decimal(sum(entry[1] for entry in entries))}"
    if clear:
        clear_cache(folder, name)
        if name in (None, FOLDER):
            remove(folder / FOLDER)
        console.print(f"Removed {summary}, from {folder}")
        return
    rows = [
        [each, decimal(size), time.strftime("%Y-%m-%d %H:%M", time.localtime(written))]
        for each, size, written in entries
    ]
    console.print(Table(["name", "size", "date"], rows, is_text=True))
    console.print(f"{summary}, in {folder}")


def read_domains(name: str, root: Path | None) -> "list[Domain]":
    """Read all domains of a data set, or of a folder or list of the user's images."""
    if _is_path(name):
        return list(_read_folders([Path(name)])[0].values())
    return _load(name, root)


def _is_path(name: str) -> bool:
    return name not in BENCHMARKS and Path(name).expanduser().exists()


def _verify_folders(paths: Sequence[Path]) -> None:
    parts, problems = _read_folders(paths)
    rows = [
        [name, f"{len(domain)}", f"{len(domain) + len(domain.skipped)}", f"{len(domain.classes)}"]
        for name, domain in parts.items()
    ]
    console.print(Table(["images of", "usable", "files", "classes"], rows, is_text=True))
    for problem in problems:
        kind = "Note" if problem.severity == "note" else "Problem"
        console.print(f"{kind}: {problem.message}\n  {problem.remedy}")
    if errors := [problem for problem in problems if problem.severity != "note"]:
        where = ", ".join(str(path) for path in paths)
        raise DataError(f"{len(errors)} problems must be fixed before training on {where}.")
    console.print("All images can be decoded.")


def _read_folders(paths: Sequence[Path]) -> "tuple[dict[str, Domain], list[Problem]]":
    from peerdg.data.own_data import check_folders

    for path in paths:
        if not path.expanduser().exists():
            raise no_such_data(str(path))
    with _bar() as bar:
        return check_folders([path.expanduser() for path in paths], progress=bar)


def _load(name: str, root: Path | None) -> "list[Domain]":
    """Load the training images and targets of a data set with default options."""
    data = _data_set(name, root)
    with _bar() as bar:
        splits = data.load(data.settings(), root=root, progress=bar)
    return [splits.train, *splits.targets.values()]


def _data_set(name: str, root: Path | None) -> Benchmark:
    if name not in PUBLISHED:
        raise no_such_data(name)
    data = BENCHMARKS[name]
    data.refuse_unused_root(root)
    if data.needs_root and root is None:  # it need not exist yet for `prepare`
        raise ConfigError(f"{name} needs a data folder.", hint="Give it with --root DIR.")
    return data


def _bar() -> "contextlib.closing[ReadingBar]":
    return contextlib.closing(ReadingBar(error_console))
