"""Predictions as CSV or JSON lines, written while they come.

Until the last row is there, the rows stand in `NAME.partial`; then the file gets its name. So a
file with the name that was asked for is complete, and after Ctrl-C or a full disk the whole rows
written so far are in the partial one.
"""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from peerdg.data.images import shown_path
from peerdg.evaluate.predictions import FilePrediction
from peerdg.files import writing

PARTIAL = ".partial"
JSON_LINES = (".jsonl", ".ndjson")
_DIGITS = 6  # more than a float32 softmax can promise
_EXAMPLES = 5  # of files that cannot be used
_ROWS_HELD = 256  # between two flushes


class PredictionWriter:
    """Writes one row per file to an open text file.

    Args:
        file: Where to; opened with `newline=""`.
        classes: The model's class names.
        all_classes: Whether to write the probability of every class.
        json_lines: One JSON object per line in place of CSV.

    Attributes:
        rows: How many were written.
        bad: How many of them say that the image cannot be used.
        bad_examples: The first of these, with the reason.
    """

    def __init__(
        self,
        file: TextIO,
        classes: Sequence[str],
        *,
        all_classes: bool,
        json_lines: bool = False,
    ) -> None:
        self.file = file
        self.classes = classes
        self.all_classes = all_classes
        self.json_lines = json_lines
        self.rows = self.bad = 0
        self.bad_examples: list[tuple[str, str]] = []
        if not json_lines:
            extra = [f"p({name})" for name in classes] if all_classes else []
            self.file.write(csv_line(["path", "label", "probability", *extra, "error"]))

    def write(self, prediction: FilePrediction) -> None:
        """Append one row."""
        text = self._json(prediction) if self.json_lines else self._csv(prediction)
        self.file.write(text)
        self.rows += 1
        if prediction.error is not None:
            self.bad += 1
            if len(self.bad_examples) < _EXAMPLES:
                self.bad_examples.append((shown_path(prediction.path, None), prediction.error))
        if self.rows % _ROWS_HELD == 0:
            self.file.flush()

    def _csv(self, prediction: FilePrediction) -> str:
        path, label, probability, row, error = prediction
        cells = [shown_path(path, None), label or "", _number(probability)]
        if self.all_classes:
            cells += [""] * len(self.classes) if row is None else map(_number, row.tolist())
        return csv_line([*cells, error or ""])

    def _json(self, prediction: FilePrediction) -> str:
        path, label, probability, row, error = prediction
        record: dict[str, object] = {"path": shown_path(path, None), "label": label}
        record["probability"] = None if probability is None else round(probability, _DIGITS)
        if self.all_classes:
            values = [None] * len(self.classes) if row is None else row.tolist()
            rounded = [None if value is None else round(value, _DIGITS) for value in values]
            record["probabilities"] = dict(zip(self.classes, rounded, strict=True))
        return json.dumps({**record, "error": error}, ensure_ascii=False) + "\n"


@contextmanager
def prediction_file(
    path: Path, classes: Sequence[str], *, all_classes: bool
) -> Iterator[PredictionWriter]:
    """A writer whose rows become the file `path` when the block ends well.

    Raises:
        OutputError: If it cannot be written.
    """
    partial = partial_path(path)
    json_lines = path.suffix.lower() in JSON_LINES
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", newline="", encoding="utf-8") as file:
            yield PredictionWriter(file, classes, all_classes=all_classes, json_lines=json_lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def partial_path(path: Path) -> Path:
    """Where the rows of `path` stand until all are there."""
    return path.with_name(path.name + PARTIAL)


def csv_line(cells: Sequence[str]) -> str:
    """One line of CSV that no spreadsheet takes for a formula."""
    line = io.StringIO()
    csv.writer(line).writerow([_harmless(cell) for cell in cells])
    return line.getvalue().removesuffix("\r\n") + "\n"  # ended so, it quotes both characters


def _harmless(cell: str) -> str:
    """With an apostrophe in front of what a spreadsheet would calculate."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else cell


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.{_DIGITS}f}"
