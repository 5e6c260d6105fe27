"""VLCS: five classes in PASCAL VOC 2007, LabelMe, Caltech 101 and SUN 09.

Two releases: one with train, crossval and test folders (70 and 30 percent; the classes are called
0 to 4), or all of it once more in a folder `full` where a file's name starts with its split; and
DomainBed's, which has class names and no splits.
"""

from collections.abc import Sequence
from pathlib import Path

from peerdg.data.benchmarks import BENCHMARKS, DomainReport, VlcsSettings
from peerdg.data.disk import check_root
from peerdg.data.published import (
    FoundDomain,
    PublishedLayout,
    Rows,
    count_report,
    load_published,
    require_published,
    verify_published,
)
from peerdg.data.splits import Splits
from peerdg.errors import DataError

_CLASSES = BENCHMARKS["vlcs"].classes

LAYOUT = PublishedLayout(
    info=BENCHMARKS["vlcs"],
    counts={"caltech": (1415,), "labelme": (2656,), "sun09": (3282,), "voc2007": (3376,)},
    wrappers=("VLCS",),
    class_folders={str(label): name for label, name in enumerate(_CLASSES)},
    split_folders=("train", "crossval", "test"),
    whole_folder="full",
)
# For learning (train and crossval) and for test.
_PARTS = {
    "caltech": (991, 424), "labelme": (1859, 797), "sun09": (2297, 985), "voc2007": (2363, 1013)
}  # fmt: skip
_TENTH = 0.1


def load(
    settings: VlcsSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """Load the chosen source and targets; see `load_published`."""
    return load_published(
        LAYOUT, settings, root, targets, train_rows=_train_rows, test_rows=_test_rows
    )


def require_source(settings: VlcsSettings, root: Path | None) -> None:
    """Check that the source's folder is under `root`."""
    require_published(LAYOUT, settings, root)


def verify(root: Path | None) -> list[DomainReport]:
    """Report what is there of every domain, and of its splits where it has any."""
    return verify_published(LAYOUT, check_root(root), _verify_splits)


def _train_rows(settings: VlcsSettings, found: FoundDomain) -> tuple[Rows, Rows | None]:
    if settings.split == "random":
        return found.random(settings.split_seed)
    learning = _official(found, "train", "crossval")
    if settings.validation == "tenth":
        part = found._replace(items=[found.items[row] for row in learning])
        kept, tenth = part.random(settings.split_seed, fraction=_TENTH)
        return [learning[row] for row in kept], [learning[row] for row in tenth]
    crossval = found.in_folder("crossval")
    if not crossval:
        raise DataError(
            f"{found.folder} has no crossval images to validate on.",
            hint="Choose --vlcs.validation tenth.",
        )
    return found.in_folder("train"), crossval


def _test_rows(settings: VlcsSettings, found: FoundDomain) -> Rows:
    if settings.test == "random":
        return found.random(settings.split_seed)[0]
    return found.all_rows if settings.test == "all" else _official(found, "test")


def _official(found: FoundDomain, *splits: str) -> list[int]:
    rows = found.in_folder(*splits)
    if not rows:
        raise DataError(
            f"{found.folder} has no {splits[0]} folder, so the published 70/30 split is not known.",
            hint="Choose --vlcs.split random --vlcs.test all, or get the release with splits.",
        )
    return rows


def _verify_splits(found: FoundDomain) -> list[DomainReport]:
    learning, test = found.in_folder("train", "crossval"), found.in_folder("test")
    if not learning and not test:
        return []
    expected = _PARTS[found.name]
    return [
        count_report(found, "train + crossval", len(learning), expected[0]),
        count_report(found, "test", len(test), expected[1]),
    ]
