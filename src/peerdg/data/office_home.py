"""Office-Home: 65 kinds of objects in art, clipart, product pictures and photos.

The release has one folder of classes for each domain; Dassl's copy has train and val between.
"""

from collections.abc import Sequence
from pathlib import Path

from peerdg.data.benchmarks import BENCHMARKS, DomainReport, OfficeHomeSettings
from peerdg.data.disk import check_root
from peerdg.data.published import (
    FoundDomain,
    PublishedLayout,
    Rows,
    load_published,
    require_published,
    verify_published,
)
from peerdg.data.splits import Splits
from peerdg.errors import DataError

LAYOUT = PublishedLayout(
    info=BENCHMARKS["office-home"],
    counts={"art": (2427,), "clipart": (4365,), "product": (4439,), "real_world": (4357,)},
    wrappers=("OfficeHomeDataset_10072016", "OfficeHome", "office_home_dg", "OfficeHomeDataset"),
    split_folders=("train", "val"),
)


def load(
    settings: OfficeHomeSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """Load the chosen source and targets; see `load_published`."""
    return load_published(LAYOUT, settings, root, targets, train_rows=_train_rows)


def require_source(settings: OfficeHomeSettings, root: Path | None) -> None:
    """Check that the source's folder is under `root`."""
    require_published(LAYOUT, settings, root)


def verify(root: Path | None) -> list[DomainReport]:
    """Report what is there of every domain."""
    return verify_published(LAYOUT, check_root(root))


def _train_rows(settings: OfficeHomeSettings, found: FoundDomain) -> tuple[Rows, Rows | None]:
    if settings.split == "none":
        return found.all_rows, None
    if settings.split == "random":
        return found.random(settings.split_seed)
    train, validation = found.in_folder("train"), found.in_folder("val")
    if not train or not validation:
        raise DataError(
            f"{found.folder} has no train and val folders.",
            hint="Dassl's copy has them; else choose --office-home.split random.",
        )
    return train, validation
