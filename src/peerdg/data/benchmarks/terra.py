"""Terra Incognita: animals before camera traps, four locations and ten classes as in DomainBed.

Two selections exist: 24,788 images in the DomainBed paper, and 24,330 since the labels of the set
were revised in 2021.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from peerdg.data.benchmark import DomainReport, check_root
from peerdg.data.benchmarks.layout import Layout
from peerdg.data.benchmarks.published import Place, Rows, load_published, verify_published
from peerdg.data.benchmarks.terra_labels import arrange
from peerdg.data.registry import BENCHMARKS
from peerdg.data.settings import TerraSettings
from peerdg.data.splits import Splits

LAYOUT = Layout(
    info=BENCHMARKS["terra"],
    counts={
        "location_100": (4741, 4879),
        "location_38": (9736, 9767),
        "location_43": (3970, 4020),
        "location_46": (5883, 6122),
    },
    wrappers=("terra_incognita", "TerraIncognita", "terra", "terra_inc"),
    arrange=arrange,
)


def load(
    settings: TerraSettings, *, root: Path | None, targets: Sequence[str] | None = None
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
    """What is there of every location."""
    return verify_published(LAYOUT, check_root(root))


def _learn(settings: TerraSettings, place: Place) -> tuple[Rows, Rows | None]:
    if settings.split == "none":
        return place.everything, None
    return place.random(settings.split_seed)


def _judge(settings: TerraSettings, place: Place) -> Rows:
    return place.everything if settings.test == "all" else place.random(settings.split_seed)[0]
