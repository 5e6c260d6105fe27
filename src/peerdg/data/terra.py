"""Terra Incognita: animals before camera traps, four locations and ten classes as in DomainBed.

Two selections exist: 24,788 images in the DomainBed paper, and 24,330 since the labels of the set
were revised in 2021. The original release is a folder of images and a JSON file in COCO's camera
trap format: `sort_release` puts it into folders of locations and classes.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peerdg.data.benchmarks import BENCHMARKS, DomainReport, TerraSettings
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
from peerdg.files import read_text

_INFO = BENCHMARKS["terra"]
_MOST_BYTES = 500_000_000  # of the labels


def sort_release(trees: Sequence[Path]) -> None:
    """Sort the images of one unpacked archive by the labels of another, if both are there.

    The selection of locations and classes is DomainBed's. An image with animals of two classes is
    in both folders, as there.
    """
    labels = _find(trees, lambda names: [name for name in names if name.endswith(".json")])
    if labels is None:
        return
    content = _read(labels)
    names = {image[1] for image in _chosen(labels, content)}
    images = _find(trees, lambda found: [name for name in found if name in names])
    if images is None:
        raise DataError(f"No archive has images that {labels.name} names.", hint=_INFO.obtain)
    _sort(labels, content, images.parent)


def _find(trees: Sequence[Path], choose: Callable[[list[str]], list[str]]) -> Path | None:
    for tree in trees:
        for folder, _, files in os.walk(tree):
            chosen = choose([name for name in files if not name.startswith(".")])
            if chosen:
                return Path(folder) / sorted(chosen)[0]
    return None


def _read(labels: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(read_text(labels, limit=_MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{labels.name} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= set(content):
        raise DataError(f"{labels.name} has no images, annotations and categories.")
    return content


def _chosen(labels: Path, content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield location, file and class of every chosen annotation."""
    places = {name.removeprefix("location_"): name for name in _INFO.domains}
    try:
        kinds = {item["id"]: item["name"] for item in content["categories"]}
        images = {
            image["id"]: (places[str(image["location"])], image["file_name"])
            for image in content["images"]
            if str(image["location"]) in places
        }
        for annotation in content["annotations"]:
            kind = kinds[annotation["category_id"]]
            if annotation["image_id"] in images and kind in _INFO.classes:
                place, name = images[annotation["image_id"]]
                if Path(name).name != name or "\\" in name:
                    raise DataError(f"{labels.name} names '{name}', not a plain file name.")
                yield place, name, kind
    except (KeyError, TypeError) as error:
        raise DataError(f"{labels.name} is not in the camera trap format: {error!r}.") from error


def _sort(labels: Path, content: Mapping[str, Any], folder: Path) -> None:
    missing = []
    wanted = sorted(set(_chosen(labels, content)))
    for place, name, kind in wanted:
        if not (folder / name).is_file():
            missing.append(name)
            continue
        target = folder / place / kind / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target)
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} images that {labels.name} names are not in the "
            f"archive, e.g. {missing[0]}.",
            hint=f"Get both from {_INFO.obtain}",
        )


LAYOUT = PublishedLayout(
    info=_INFO,
    counts={
        "location_100": (4741, 4879),
        "location_38": (9736, 9767),
        "location_43": (3970, 4020),
        "location_46": (5883, 6122),
    },
    wrappers=("terra_incognita", "TerraIncognita", "terra", "terra_inc"),
    arrange=sort_release,
)


def load(
    settings: TerraSettings, *, root: Path | None, targets: Sequence[str] | None = None
) -> Splits:
    """Load the chosen source and targets; see `load_published`."""
    return load_published(LAYOUT, settings, root, targets, train_rows=_train_rows)


def require_source(settings: TerraSettings, root: Path | None) -> None:
    """Check that the source's folder is under `root`."""
    require_published(LAYOUT, settings, root)


def verify(root: Path | None) -> list[DomainReport]:
    """Report what is there of every location."""
    return verify_published(LAYOUT, check_root(root))


def _train_rows(settings: TerraSettings, found: FoundDomain) -> tuple[Rows, Rows | None]:
    if settings.split == "none":
        return found.all_rows, None
    return found.random(settings.split_seed)
