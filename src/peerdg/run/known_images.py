"""`images.json`: the images that a run was trained on, to detect evaluations on them.

It holds a hash of the decoded pixels of each image, which finds it under another file name and in
another lossless format. Runs that were started before there was such a file have the hashes of
files alone (`files.json`); both are looked up.
"""

from dataclasses import dataclass
from pathlib import Path

from peerdg.data import VALIDATION
from peerdg.data.domain import Domain
from peerdg.data.splits import HASH_DIGITS, FileHashes, Splits
from peerdg.evaluate.detail import Overlap
from peerdg.files import write_json
from peerdg.run.folder import RunFolder
from peerdg.schema import conform, read_json

_TRAIN = "train"


@dataclass(frozen=True)
class KnownImages:
    """Hashes of the pixels and files that a run was trained and validated on."""

    train: frozenset[str]
    validation: frozenset[str]

    def count(self, domain: Domain) -> Overlap:
        """How many images of `domain` are among them."""
        files = domain.hashes or domain.pixel_hashes
        keys = [
            {pixels, file[:HASH_DIGITS]}
            for pixels, file in zip(domain.pixel_hashes, files, strict=True)
        ]
        trained = [not key.isdisjoint(self.train) for key in keys]
        validated = [not key.isdisjoint(self.validation) for key in keys]
        only = sum(v and not t for t, v in zip(trained, validated, strict=True))
        return Overlap(sum(trained), only, len(domain))


def write_known_images(run: RunFolder, splits: Splits) -> None:
    """Record which images the run learns from and is validated on."""
    parts = {_TRAIN: splits.train}
    if splits.validation is not None:
        parts[VALIDATION] = splits.validation
    hashes = {part: sorted(set(domain.pixel_hashes)) for part, domain in parts.items()}
    write_json(run.images_file, hashes)


def read_known_images(folder: Path) -> KnownImages | None:
    """What `folder` records about the images of its run; None if it is no run folder.

    Args:
        folder: A run folder, or the model folder inside of one.

    Raises:
        DamagedError: If a record is not what peerdg wrote.
    """
    if folder.name == "model" and (folder.parent / "manifest.json").is_file():
        folder = folder.parent
    run = RunFolder(folder)
    pixels: dict[str, list[str]] = {}
    files: FileHashes = {}
    if run.images_file.exists():
        pixels = conform(dict[str, list[str]], read_json(run.images_file), run.images_file)
    if run.files_file.exists():
        files = conform(FileHashes, read_json(run.files_file), run.files_file)
    if not pixels and not files:
        return None
    known = {
        part: frozenset(pixels.get(part, ())) | frozenset(files.get(part, {}).values())
        for part in (_TRAIN, VALIDATION)
    }
    return KnownImages(known[_TRAIN], known[VALIDATION])
