"""`peerdg data cache`: what decoded images and shared pre-training take up, and how to clear it."""

import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from peerdg.errors import ConfigError
from peerdg.terminal import console

if TYPE_CHECKING:
    from peerdg.data.cache import CachedDomain


def cache_data(
    name: str | None = None,
    /,
    *,
    clear: Annotated[bool, Parameter(help="remove the entries", negative=())] = False,
) -> None:
    """Show the cache of decoded images and shared pre-training, or clear it.

    What was cleared is decoded or trained again. Leftovers of processes that were killed are
    removed in any case.

    Args:
        name: Only entries of this name; `pretraining` is all shared pre-training.
    """
    from peerdg.data.cache import cache_folder, cached_domains, tidy
    from peerdg.data.cache import clear as clear_entries
    from peerdg.options import did_you_mean
    from peerdg.run.pretraining import FOLDER, clear_pretrainings, shared_pretrainings
    from peerdg.terminal import Table

    folder = cache_folder()
    if folder is None:
        raise ConfigError("There is no home folder.", hint="Set PEERDG_CACHE to a folder.")
    freed = tidy(folder)
    entries = [entry for entry in cached_domains(folder) if name in (None, entry.name)]
    trained = shared_pretrainings(folder) if name in (None, FOLDER) else []
    if name not in (None, FOLDER) and not entries:
        names = sorted({entry.name for entry in cached_domains(folder)})
        hint = did_you_mean(name, names) if names else "The cache is empty."
        raise ConfigError(f"The cache has no entry '{name}'.", hint=hint)
    sizes = [sum(file.stat().st_size for file in path.iterdir()) for path in trained]
    total = sum(entry.size for entry in entries) + sum(sizes)
    if clear:
        count = clear_pretrainings(folder) if trained else 0
        if name != FOLDER or entries:
            removed = clear_entries(folder, name)
            count += sum(path.suffix == ".safetensors" for path in removed)
        console.print(f"Removed {count} entries, {_amount(total)}, from {folder}", markup=False)
        return
    rows = [_row(entry) for entry in entries]
    rows += [
        [FOLDER, _amount(size), _date(path.stat().st_mtime), path.name]
        for path, size in zip(trained, sizes, strict=True)
    ]
    console.print(Table(["name", "size", "date", ""], rows, is_text=True))
    console.print(f"{len(rows)} entries, {_amount(total)}, in {folder}", markup=False)
    if freed:
        console.print(f"Removed leftovers of killed processes: {_amount(freed)}", markup=False)


def _row(entry: "CachedDomain") -> list[str]:
    remark = "" if entry.is_whole else "damaged, will be made again"
    return [entry.name, _amount(entry.size), _date(entry.written), remark]


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _amount(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
