"""`peerdg predict`: what a trained model sees in images."""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

from cyclopts import Parameter, validators

from peerdg.cli.flags import whole_number
from peerdg.errors import DataError, PeerdgWarning, Stopped
from peerdg.run.hardware import DEVICES
from peerdg.terminal import VisibleRows, error_console

if TYPE_CHECKING:
    from peerdg.report.prediction_file import PredictionWriter


def predict(
    run: Path,
    images: tuple[Path, ...],
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    all_classes: Annotated[bool, Parameter(name="--all", negative=())] = False,
    top: Annotated[int, Parameter(validator=validators.Number(gte=1), converter=whole_number)] = 1,
    strict: Annotated[bool, Parameter(negative=())] = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), negative=())] = False,
    device: Annotated[str, Parameter(help=DEVICES)] = "auto",
) -> None:
    """Class and probability of each image, as CSV, JSON or JSON lines.

    Any number of images takes the same memory. An image that cannot be decoded gives a row with
    the reason in its last column; if none can be, or with --strict any cannot, the command ends
    with code 5. Until all rows are there they stand in FILE.partial, also after Ctrl-C.

    Args:
        run: Run folder or model folder.
        images: Image files, or folders of them.
        output: File to write: a JSON list if it ends in .json, JSON lines if in .jsonl, else CSV;
            default: CSV on standard output.
        all_classes: The probability of every class, not only of the most probable one.
        top: How many of the most probable classes to write, at most all; the further ones in
            columns label_2, probability_2, ...
        strict: End with code 5 if any image cannot be decoded; the rows are written all the same.
        quiet: No progress.
    """
    total = _count(images)
    from peerdg.files import require_replaceable
    from peerdg.model import load_model
    from peerdg.report.prediction_file import partial_path, text_format
    from peerdg.run.progress import ReadingBar

    if output is not None:
        text_format(output)  # a wrong name is refused before the model is read
        require_replaceable(output)
    model = load_model(run, device=device)
    bar = ReadingBar(error_console)
    with _writer(output, model.classes, all_classes=all_classes, top=top) as writer:
        try:
            for prediction in model.predict_files(_files(images)):
                writer.write(prediction)
                if not quiet:
                    bar(writer.rows, total, "predicting")
        except KeyboardInterrupt as stop:
            place = "" if output is None else f" The rows are in {partial_path(output)}."
            message = f"Stopped after {writer.rows:,} of {total:,} images.{place}"
            raise Stopped(message, signal_number=signal.SIGINT) from stop
        finally:
            bar.close()
    if output is not None:
        _report_written(writer, output)
    _report_bad(writer, strict=strict)


def _writer(
    output: Path | None, classes: tuple[str, ...], *, all_classes: bool, top: int
) -> "AbstractContextManager[PredictionWriter]":
    """Open what writes the rows: into a file, or to standard output."""
    from peerdg.report.prediction_file import PredictionWriter, prediction_file

    if output is not None:
        return prediction_file(output, classes, all_classes=all_classes, top=top)
    return nullcontext(
        PredictionWriter(_standard_output(), classes, all_classes=all_classes, top=top)
    )


def _standard_output() -> TextIO:
    """Data as it is for a file or a program; for a person, with names made visible."""
    return cast(TextIO, VisibleRows(sys.stdout)) if sys.stdout.isatty() else sys.stdout


def _count(images: tuple[Path, ...]) -> int:
    """How many there are; names are read once for it, so that the time left can be shown."""
    if not images:
        raise DataError("No image was given.", hint="Name image files or a folder of them.")
    from peerdg.data.folder import image_files

    with warnings.catch_warnings():  # they come when the images are read
        warnings.simplefilter("ignore", PeerdgWarning)
        return _count_all(images, image_files)


def _count_all(images: tuple[Path, ...], image_files: Callable[[Path], list[Path]]) -> int:
    total = 0
    for path in images:
        if path.is_dir():
            found = sum(1 for _ in image_files(path))
            if not found:
                raise DataError(f"There are no images in {path}.")
            total += found
        elif path.is_file():
            total += 1
        else:
            raise DataError(f"There is no image {path}.", hint="Check the path.")
    return total


def _files(images: tuple[Path, ...]) -> Iterator[Path]:
    from peerdg.data.folder import image_files

    for path in images:
        if path.is_dir():
            yield from image_files(path)
        else:
            yield path


def _report_written(writer: "PredictionWriter", output: Path) -> None:
    """Say how many predictions are in the file."""
    noun = "image" if writer.bad == 1 else "images"
    bad = f", {writer.bad:,} {noun} could not be decoded" if writer.bad else ""
    message = f"{writer.rows - writer.bad:,} predictions in {output}{bad}"
    error_console.print(message, markup=False, soft_wrap=True)


def _report_bad(writer: "PredictionWriter", *, strict: bool) -> None:
    """Say what could not be decoded; an error if it was all, or if any is too much."""
    if not writer.bad:
        return
    lines = [f"{writer.bad:,} of {writer.rows:,} images cannot be used:"]
    lines += [f"  {path}: {reason}" for path, reason in writer.bad_examples]
    if writer.bad > len(writer.bad_examples):
        lines.append("  ...")
    if strict or writer.bad == writer.rows:
        raise DataError("\n".join(lines), hint="Repair or remove them.")
    error_console.print("\n".join(lines), markup=False, soft_wrap=True)
