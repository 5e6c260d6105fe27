"""`peerdg data cache`: what decoded images take up, and how to be rid of them."""

import time
from typing import Annotated

from cyclopts import Parameter

from peerdg.cli.console import console
from peerdg.errors import ConfigError


def cache_data(
    name: str | None = None,
    /,
    *,
    clear: Annotated[bool, Parameter(help="remove the entries", negative=())] = False,
) -> None:
    """Show the cache of decoded images, or clear it. Cleared data sets are decoded again.

    Leftovers of processes that were killed are removed in any case.

    Args:
        name: Only entries of this name.
    """
    from peerdg.config import did_you_mean
    from peerdg.data.cache.folder import cache_folder, cached_domains, tidy
    from peerdg.data.cache.folder import clear as clear_entries
    from peerdg.tables import plain_table

    folder = cache_folder()
    if folder is None:
        raise ConfigError("There is no home folder.", hint="Set PEERDG_CACHE to a folder.")
    freed = tidy(folder)
    entries = [entry for entry in cached_domains(folder) if name in (None, entry.name)]
    if name is not None and not entries:
        names = sorted({entry.name for entry in cached_domains(folder)})
        hint = did_you_mean(name, names) if names else "The cache is empty."
        raise ConfigError(f"The cache has no entry '{name}'.", hint=hint)
    total = sum(entry.size for entry in entries)
    if clear:
        removed = clear_entries(folder, name)
        count = sum(path.suffix == ".safetensors" for path in removed)
        console.print(f"Removed {count} entries, {_amount(total)}, from {folder}", markup=False)
        return
    rows = [
        [
            entry.name,
            _amount(entry.size),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.written)),
            "" if entry.is_whole else "damaged, will be made again",
        ]
        for entry in entries
    ]
    console.print(plain_table(["name", "size", "date", ""], rows))
    console.print(f"{len(rows)} entries, {_amount(total)}, in {folder}", markup=False)
    if freed:
        console.print(f"Removed leftovers of killed processes: {_amount(freed)}", markup=False)


def _amount(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
