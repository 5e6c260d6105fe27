"""Append-only files of JSON lines that survive being torn.

`metrics.jsonl` holds only what a repeated run would hold again, to the last bit; everything that
depends on the clock goes to `events.jsonl`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peerdg.files import open_for_append, open_regular, writing


class JsonLines:
    """One file, one JSON object per line, each line on disk before the next begins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        """Add one record."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=True) + "\n"
        with writing(self.path), open_for_append(self.path) as file:
            file.write(line.encode())

    def size(self) -> int:
        """Length in bytes."""
        return self.path.lstat().st_size if self.path.exists() else 0

    def sync(self) -> None:
        """Return once everything is safely on disk."""
        if self.path.exists():
            with writing(self.path), open_regular(self.path) as file:
                os.fsync(file.fileno())

    def cut(self, size: int | None = None) -> None:
        """Drop what follows `size` bytes, and in any case the first torn line and what follows."""
        if not self.path.exists():
            return
        with writing(self.path), open_for_append(self.path) as file:
            content = file.read()[:size]
            file.truncate(sum(len(line) + 1 for line, _ in _whole_lines(content)))

    def read(self) -> list[dict[str, Any]]:
        """All whole records up to the first torn or merged line."""
        if not self.path.exists():
            return []
        with open_regular(self.path) as file:
            return [record for _, record in _whole_lines(file.read())]


def _whole_lines(content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line before the first one that is torn, merged or not ours, and what it says."""
    for line in content.split(b"\n")[:-1]:
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError):
            return
        if not isinstance(record, dict):
            return
        yield line, record
