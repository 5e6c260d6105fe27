"""`images.json`: which images a run has learnt from, so that no evaluation on them goes unnoticed.

It holds a hash of the decoded pixels of each image, which finds it under another file name and in
another lossless format. Runs that were started before there was such a file have the hashes of
files alone (`files.json`); both are looked up.
"""

from dataclasses import dataclass
from pathlib import Path

from peerdg.data import VALIDATION
from peerdg.data.domain import Domain
from peerdg.data.splits import HASH_DIGITS, FileHashes, Splits
from peerdg.files import write_json
from peerdg.schema import conform, read_json
from peerdg.train.rundir import RunFolder

_TRAIN = "train"


@dataclass(frozen=True)
class Seen:
    """How many images of a domain a run knows.

    Args:
        trained: Images that it was trained on.
        validated: Images that it was validated on, and not trained.
        n: All images of the domain.
    """

    trained: int
    validated: int
    n: int

    def __str__(self) -> str:
        """A sentence for a person; empty if the run knows none of them."""
        if self.trained:
            rest = f", {self.validated:,} used for validation" if self.validated else ""
            return (
                f"{self.trained:,} of {self.n:,} images were trained on{rest}: this is not a "
                "measure of generalisation."
            )
        if self.validated:
            return f"{self.validated:,} of {self.n:,} images were used for the run's validation."
        return ""


@dataclass(frozen=True)
class KnownImages:
    """Hashes of the pixels and files that a run was trained and validated on."""

    train: frozenset[str]
    validation: frozenset[str]

    def count(self, domain: Domain) -> Seen:
        """How many images of `domain` are among them."""
        files = domain.hashes or domain.pixel_hashes
        keys = [
            {pixels, file[:HASH_DIGITS]}
            for pixels, file in zip(domain.pixel_hashes, files, strict=True)
        ]
        trained = [not key.isdisjoint(self.train) for key in keys]
        validated = [not key.isdisjoint(self.validation) for key in keys]
        only = sum(v and not t for t, v in zip(trained, validated, strict=True))
        return Seen(sum(trained), only, len(domain))


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
