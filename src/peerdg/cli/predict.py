"""`peerdg predict`: predict the classes of images."""

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

from cyclopts import Parameter, validators

from peerdg.cli.flags import Quiet, Whole
from peerdg.errors import DataError, Stopped
from peerdg.options import nearest_path
from peerdg.run.hardware import DEVICES
from peerdg.terminal import console, error_console, visible


def predict(
    run: Path,
    images: tuple[Path, ...],
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    all_classes: Annotated[bool, Parameter(name="--all")] = False,
    top: Annotated[Whole, Parameter(validator=validators.Number(gte=1))] = 1,
    strict: bool = False,
    quiet: Quiet = False,
    device: Annotated[str, Parameter(help=DEVICES)] = "auto",
) -> None:
    """Predict the class and probability of each image, as CSV, JSON or JSON lines.

    If an image cannot be decoded, the last column of its row gives the reason. The command ends
    with code 5 if none can be decoded. Rows are in FILE.partial until all are written.

    Example: `peerdg predict runs/first photos/ -o found.json --top 3`

    Args:
        run: Run folder or model folder.
        images: Image files, or folders of them.
        output: File to write, as a JSON list (.json), JSON lines (.jsonl) or CSV (other names).
            Default: CSV on standard output.
        all_classes: Write the probability of every class.
        top: Number of most probable classes to write, in columns label_2, probability_2, ...
        strict: End with code 5 if any image cannot be decoded. All rows are still written.
    """
    files = list(_files(images))
    total = len(files)
    from peerdg.model import load_model
    from peerdg.report.predictions import PredictionWriter, partial_path, prediction_file
    from peerdg.run.progress import ReadingBar

    model = load_model(run, device=device)
    columns: dict[str, Any] = {"classes": model.classes, "all_classes": all_classes, "top": top}
    opened: AbstractContextManager[PredictionWriter]
    if output is not None:
        opened = prediction_file(output, **columns)
    else:
        # Escape control characters on a terminal, but not for programs.
        rows = cast(TextIO, _TerminalRows()) if sys.stdout.isatty() else sys.stdout
        opened = nullcontext(PredictionWriter(rows, **columns))
    bar = ReadingBar(error_console)
    with opened as writer:
        try:
            for prediction in model.predict_files(files):
                writer.write(prediction)
                if not quiet:
                    bar(writer.rows, total, "predicting")
        except KeyboardInterrupt as stop:
            place = "" if output is None else f" The rows so far are in {partial_path(output)}."
            message = f"Stopped after {writer.rows:,} of {total:,} images.{place}"
            raise Stopped(message, signal_number=signal.SIGINT) from stop
        finally:
            bar.close()
    if output is not None:
        error_console.print(f"{writer.rows - writer.bad:,} predictions in {output}")
    if writer.bad:
        lines = [f"{writer.bad:,} of {writer.rows:,} images cannot be used:"]
        lines += [f"  {path}: {reason}" for path, reason in writer.bad_examples]
        lines += ["  ..."] if writer.bad > len(writer.bad_examples) else []
        if strict or writer.bad == writer.rows:
            raise DataError("\n".join(lines), hint="Repair or remove them.")
        error_console.print("\n".join(lines))


class _TerminalRows(io.TextIOBase):
    def write(self, row: str) -> int:
        console.print(visible(row.removesuffix("\n")))
        return len(row)


def _files(images: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the given files and all images in the given folders."""
    from peerdg.data.folder import image_files

    for path in images:
        if not path.is_dir() and not path.is_file():
            raise DataError(f"There is no image or folder {path}.", hint=nearest_path(path))
        inside = list(image_files(path)) if path.is_dir() else [path]
        if not inside:
            raise DataError(f"There are no images in {path}.")
        yield from inside
