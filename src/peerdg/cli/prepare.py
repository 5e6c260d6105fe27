"""`peerdg data prepare`: from downloaded archives to files in their place, checked and decoded."""

from pathlib import Path

from peerdg.cli.data import Root, load_data, require_root, verify_data
from peerdg.data.benchmarks import benchmark
from peerdg.terminal import console


def prepare_data(name: str, /, *archives: Path, root: Root = None) -> None:
    """Unpack a data set's archives, say what is there, or decode it into the cache.

    With archives: they are unpacked under --root, without trusting them, and verified. Without:
    everything under --root is decoded, so that the next training starts at once.

    Args:
        name: The data set.
        archives: Files that you downloaded, as they are: zip, tar, tar.gz, tar.bz2, tar.xz; for
            pacs also hdf5 files and kfold lists.
    """
    if archives:
        _unpack(name, archives, root)
        verify_data(name, root=root)
        return
    from peerdg.data.cache import cache_folder

    splits = load_data(name, root)
    for domain in (splits.train, *splits.targets.values()):
        console.print(f"{domain.name}: {len(domain)} images", markup=False)
    console.print(f"Ready in {cache_folder()}", markup=False, soft_wrap=True)


def _unpack(name: str, archives: tuple[Path, ...], root: Path | None) -> None:
    from peerdg.data.prepare import unpack

    data, folder = benchmark(name), require_root(name, root)
    for path in unpack(data, archives, folder):
        console.print(f"{path}", markup=False, soft_wrap=True)
