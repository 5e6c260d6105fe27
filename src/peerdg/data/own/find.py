"""Turn a path that a user typed, a folder or a list file, into a listing."""

from dataclasses import replace
from pathlib import Path

from peerdg.data.own.folder import FolderLayout, list_folder
from peerdg.data.own.list_file import LIST_SUFFIXES, read_list
from peerdg.data.own.listing import SPLIT_NAMES, Listing
from peerdg.errors import DataError


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
