"""Office-Home: 65 kinds of objects in art, clipart, product pictures and photos.

The release has one folder of classes for each domain; Dassl's copy has train and val between.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from peerdg.data.benchmark import DomainReport, check_root
from peerdg.data.benchmarks.layout import Layout
from peerdg.data.benchmarks.published import Place, Rows, load_published, verify_published
from peerdg.data.registry import BENCHMARKS
from peerdg.data.settings import OfficeHomeSettings
from peerdg.data.splits import Splits
from peerdg.errors import DataError

LAYOUT = Layout(
    info=BENCHMARKS["office-home"],
    counts={"art": (2427,), "clipart": (4365,), "product": (4439,), "real_world": (4357,)},
    wrappers=("OfficeHomeDataset_10072016", "OfficeHome", "office_home_dg", "OfficeHomeDataset"),
    split_folders=("train", "val"),
)


def load(
    settings: OfficeHomeSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """The chosen source and targets; see `load_published`."""
    return load_published(
        LAYOUT,
        root,
        source=settings.source,
        targets=targets,
        learn=partial(_learn, settings),
        judge=partial(_judge, settings),
    )


def verify(root: Path | None) -> list[DomainReport]:
    """What is there of every domain."""
    return verify_published(LAYOUT, check_root(root))


def _learn(settings: OfficeHomeSettings, place: Place) -> tuple[Rows, Rows | None]:
    if settings.split == "none":
        return place.everything, None
    if settings.split == "random":
        return place.random(settings.split_seed)
    train, validation = place.in_folder("train"), place.in_folder("val")
    if not train or not validation:
        raise DataError(
            f"{place.folder} has no train and val folders.",
            hint="Dassl's copy has them; else choose --office-home.split random.",
        )
    return train, validation


def _judge(settings: OfficeHomeSettings, place: Place) -> Rows:
    return place.everything if settings.test == "all" else place.random(settings.split_seed)[0]
