"""`peerdg predict`: what a trained model sees in images."""

import csv
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from peerdg.cli.console import error_console
from peerdg.errors import DataError
from peerdg.files import replace_atomically

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def predict(
    run: Path,
    images: tuple[Path, ...],
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
) -> None:
    """Class and probability of each image, as CSV.

    Args:
        run: Run folder or model folder.
        images: Image files, or folders of them.
        output: CSV file to write; default: standard output.
    """
    from peerdg import api

    paths = _expand(images)
    model = api.load_model(run)
    predictions = model.predict(paths)
    rows = [
        [str(p), q.label, f"{q.probability:.4f}"] for p, q in zip(paths, predictions, strict=True)
    ]
    if output is None:
        _write(sys.stdout, rows)
        return
    with (
        replace_atomically(output) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        _write(file, rows)
    error_console.print(f"{len(rows)} predictions in {output}", markup=False)


def _expand(images: tuple[Path, ...]) -> list[Path]:
    paths: list[Path] = []
    for path in images:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
            if not found:
                raise DataError(f"There are no images in {path}.")
            paths += found
        elif path.is_file():
            paths.append(path)
        else:
            raise DataError(f"There is no image {path}.", hint="Check the path.")
    if not paths:
        raise DataError("No image was given.", hint="Name image files or a folder of them.")
    return paths


def _write(file: object, rows: list[list[str]]) -> None:
    writer = csv.writer(file)  # type: ignore[arg-type]
    writer.writerow(["image", "label", "probability"])
    writer.writerows(rows)
