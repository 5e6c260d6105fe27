"""Write predictions as CSV, JSON or JSON lines, row by row.

Rows are written to `NAME.partial`, which is renamed after the last row. A file with the requested
name is therefore complete. After Ctrl-C or a full disk, the partial file has the rows so far.
"""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

from peerdg.data.read import shown_path
from peerdg.errors import ConfigError
from peerdg.evaluate.predictions import FilePrediction, most_probable
from peerdg.files import require_replaceable, writing

PARTIAL = ".partial"
TextFormat = Literal["csv", "json", "jsonl"]
_SUFFIXES: dict[str, TextFormat] = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_OTHER_FORMATS = (".tsv", ".xlsx", ".xls", ".ods", ".parquet", ".feather", ".xml", ".yaml", ".html")
_DIGITS = 6  # about the precision of a float32 softmax
_EXAMPLES = 5  # unreadable files to list
_ROWS_HELD = 256  # rows between flushes


class PredictionWriter:
    """Write a row per image to a text file that was opened with `newline=""`.

    A row has the `top` most probable classes and, with `all_classes`, all probabilities.
    """

    def __init__(
        self,
        file: TextIO,
        classes: Sequence[str],
        *,
        all_classes: bool = False,
        top: int = 1,
        format: TextFormat = "csv",
    ) -> None:
        self.file = file
        self.classes = classes
        self.all_classes = all_classes
        self.top = min(top, len(classes))
        self.format = format
        self.rows = self.bad = 0  # number of rows, and of rows with an error
        self.bad_examples: list[tuple[str, str]] = []  # path and reason
        if format == "csv":
            columns = ["path", "label", "probability"]
            columns += [f"{c}_{n}" for n in range(2, self.top + 1) for c in columns[1:3]]
            columns += [f"p({name})" for name in classes] if all_classes else []
            self.file.write(csv_line([*columns, "error"]))
        elif format == "json":
            self.file.write("[")

    def write(self, prediction: FilePrediction) -> None:
        """Append one row."""
        if self.format == "csv":
            text = self._csv(prediction)
        elif self.format == "jsonl":
            text = self._json(prediction) + "\n"
        else:
            text = (",\n" if self.rows else "\n") + self._json(prediction)
        self.file.write(text)
        self.rows += 1
        if prediction.error is not None:
            self.bad += 1
            if len(self.bad_examples) < _EXAMPLES:
                self.bad_examples.append((shown_path(prediction.path, None), prediction.error))
        if self.rows % _ROWS_HELD == 0:
            self.file.flush()

    def close(self) -> None:
        """Finish the output by closing a JSON list."""
        if self.format == "json":
            self.file.write("\n]\n")

    def _ranked(self, prediction: FilePrediction) -> list[tuple[str, float]]:
        """Return the most probable classes with probabilities. Empty after an error."""
        _, label, _, row, _ = prediction
        if label is None or row is None:
            return []
        order = most_probable(row, self.classes.index(label), self.top)
        return [(self.classes[index], round(float(row[index]), _DIGITS)) for index in order]

    def _csv(self, prediction: FilePrediction) -> str:
        path, _, _, row, error = prediction
        cells = [shown_path(path, None)]
        ranked = self._ranked(prediction)
        cells += [cell for name, value in ranked for cell in (name, f"{value:.{_DIGITS}f}")]
        cells += [""] * (2 * (self.top - len(ranked)))
        if self.all_classes:
            values = [] if row is None else row.tolist()
            cells += [f"{value:.{_DIGITS}f}" for value in values] or [""] * len(self.classes)
        return csv_line([*cells, error or ""])

    def _json(self, prediction: FilePrediction) -> str:
        path, label, probability, row, error = prediction
        record: dict[str, object] = {"path": shown_path(path, None), "label": label}
        record["probability"] = None if probability is None else round(probability, _DIGITS)
        if self.top > 1:
            ranked = self._ranked(prediction)
            record["top"] = [{"label": name, "probability": value} for name, value in ranked]
        if self.all_classes:
            values = [None] * len(self.classes) if row is None else row.tolist()
            rounded = [None if value is None else round(value, _DIGITS) for value in values]
            record["probabilities"] = dict(zip(self.classes, rounded, strict=True))
        return json.dumps({**record, "error": error}, ensure_ascii=False)


@contextmanager
def prediction_file(
    path: Path, classes: Sequence[str], *, all_classes: bool = False, top: int = 1
) -> Iterator[PredictionWriter]:
    """Open a writer. Its rows become the file `path` when the block ends without an error.

    The file suffix selects the format. See `PredictionWriter` for the arguments.
    """
    partial, format = partial_path(path), text_format(path)
    require_replaceable(path)
    require_replaceable(partial)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = PredictionWriter(
                file, classes, all_classes=all_classes, top=top, format=format
            )
            try:
                yield writer
            finally:
                writer.close()
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def text_format(path: Path) -> TextFormat:
    """Choose the format by file suffix. Reject suffixes of unsupported formats."""
    suffix = path.suffix.lower()
    if suffix in _OTHER_FORMATS:
        raise ConfigError(
            f"Predictions cannot be written as {suffix}.",
            hint="Use a name that ends in .csv, .json or .jsonl (JSON lines).",
        )
    return _SUFFIXES.get(suffix, "csv")


def partial_path(path: Path) -> Path:
    """Return the file that holds the rows of `path` until it is complete."""
    return path.with_name(path.name + PARTIAL)


def csv_line(cells: Sequence[str]) -> str:
    """Format one line of CSV."""
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().removesuffix("\r\n") + "\n"  # with "\r\n", csv quotes "\r" and "\n"
