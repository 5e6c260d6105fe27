"""Images that a method added to the training pool, stored once and named by their content.

A checkpoint names them in order; the files lie beside the checkpoints, in `checkpoint/pool/`.
"""

import contextlib
import re
from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from peerdg.errors import DamagedError, DataError
from peerdg.files import open_regular, remove, replace_atomically, require_real_folder, writing
from peerdg.methods.pool import PoolImages
from peerdg.models.stored import save_tensors

POOL = "pool"
_SUFFIX = ".safetensors"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def store_addition(folder: Path, addition: PoolImages) -> None:
    """Write images into the pool of `folder`, unless they are there, whole.

    Raises:
        DamagedError: If the pool has become a link: nothing is written through it.
        OutputError: If they cannot be written.
    """
    with contextlib.suppress(DamagedError):  # then they are written again
        load_addition(folder, addition.digest)
        return
    require_real_folder(folder / POOL)
    with replace_atomically(_file(folder, addition.digest)) as temporary:
        save_tensors(temporary, {"images": addition.images, "labels": addition.labels})


def load_addition(folder: Path, digest: str) -> PoolImages:
    """Read and verify images of the pool.

    Raises:
        DamagedError: If they are missing, changed, or behind a link or pipe.
    """
    path = _file(folder, digest)
    try:
        require_real_folder(path.parent)
        open_regular(path).close()  # refuses links, pipes and devices
        tensors = load_file(path)
        addition = PoolImages(tensors["images"], tensors["labels"])
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError, DataError) as error:
        raise DamagedError(f"The pool's images {path} are damaged: {error}.") from error
    if addition.digest != digest:
        raise DamagedError(f"The pool's images {path} are not what was saved.")
    return addition


def has_addition(folder: Path, digest: str) -> bool:
    """Whether a file of this name is there; it may be damaged."""
    return _file(folder, digest).is_file()


def remove_unnamed(folder: Path, named: Collection[str]) -> None:
    """Remove the pool's files that are not among `named`, and nothing else.

    Raises:
        DamagedError: If the pool has become a link: nothing is removed through it.
    """
    pool = folder / POOL
    require_real_folder(pool)
    for path in pool.iterdir() if pool.is_dir() else ():
        digest = path.name.removesuffix(_SUFFIX)
        is_ours = path.name.endswith(_SUFFIX) and _DIGEST.fullmatch(digest)
        if is_ours and digest not in named:
            with writing(path):
                remove(path)


def _file(folder: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):  # it may come from a forged file, and lead elsewhere
        raise DamagedError(f"'{digest[:80]}' is no name of images in a pool.")
    return folder / POOL / f"{digest}{_SUFFIX}"
