"""Write `metrics.jsonl` and `events.jsonl`: append-only JSON lines that survive a kill.

`metrics.jsonl` is bitwise reproducible. Everything that depends on the clock is in `events.jsonl`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peerdg.errors import DamagedError
from peerdg.files import reading, writing
from peerdg.terminal import visible

NOTHING_LEARNED = "nothing_learnt"  # event: the network predicts the same for every image


class JsonLines:
    """A file with one JSON object per line. Each object must have the given `keys`."""

    def __init__(self, path: Path, *keys: str) -> None:
        self.path, self.keys = path, frozenset(keys)

    def append(self, *records: dict[str, Any]) -> None:
        """Append records in one write, so that a kill can only tear the last line."""
        lines = [json.dumps(r, ensure_ascii=False, allow_nan=True) + "\n" for r in records]
        with writing(self.path), self.path.open("ab") as file:
            file.write("".join(lines).encode())

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def size_before(self, other: dict[str, Any], *keys: str) -> int:
        """Return the number of bytes before the first record that matches `other` in `keys`."""
        size = 0
        for line, record in self._whole_lines(self._content()):
            if all(record[key] == other[key] for key in keys):
                break
            size += len(line) + 1
        return size

    def sync(self) -> None:
        """Wait until all records are on disk."""
        if self.path.exists():
            with writing(self.path), self.path.open("rb") as file:
                os.fsync(file.fileno())

    def cut(self, size: int | None = None) -> None:
        """Truncate to `size` bytes, or at the first damaged line if that comes earlier."""
        if not self.path.exists():
            return
        content = self._content()[:size]
        with writing(self.path):
            os.truncate(self.path, sum(len(line) + 1 for line, _ in self._whole_lines(content)))

    def read(self) -> list[dict[str, Any]]:
        """Return all records except a torn last line."""
        content = self._content()
        records = [record for _, record in self._whole_lines(content)]
        if len(records) < content.count(b"\n"):
            raise DamagedError(
                f"{visible(str(self.path))} is damaged: line {len(records) + 1} is invalid.",
                hint="Restore it from a backup. `peerdg resume` drops this and later records.",
            )
        return records

    def _content(self) -> bytes:
        with reading(self.path):
            return self.path.read_bytes() if self.path.exists() else b""

    def _whole_lines(self, content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Yield each line and its record, up to the first damaged line."""
        for line in content.split(b"\n")[:-1]:
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not isinstance(record, dict) or not self.keys <= record.keys():
                return
            yield line, record
