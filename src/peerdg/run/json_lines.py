"""`metrics.jsonl` and `events.jsonl`: append-only files of JSON lines that survive being torn.

`metrics.jsonl` holds only what a repeated run would hold again, to the last bit; everything that
depends on the clock goes to `events.jsonl`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from peerdg.errors import DamagedError
from peerdg.files import open_for_append, open_regular, writing
from peerdg.schema import conform, within
from peerdg.terminal import visible

NOTHING_LEARNT = "nothing_learnt"  # event of a phase whose network answers every image alike


@dataclass(frozen=True, kw_only=True)
class _Metric:
    """Any line of `metrics.jsonl`."""

    kind: str
    phase: Literal["pretrain", "train"]
    epoch: int = within(at_least=0)


@dataclass(frozen=True, kw_only=True)
class _Epoch(_Metric):
    """What an epoch of training left; `gradients`: norms at the encoder, by term of the loss."""

    gradients: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class _Evaluation(_Metric):
    """How one model did on one domain. The loss of a model that diverged may be infinite."""

    model: str
    domain: str
    loss: float | None = None
    n: int | None = within(at_least=1, default=None)
    accuracy: float = within(at_least=0, at_most=100)


@dataclass(frozen=True, kw_only=True)
class _Event:
    """Any line of `events.jsonl`."""

    event: str
    peak_memory: int | None = within(at_least=0, default=None)


@dataclass(frozen=True, kw_only=True)
class _EpochEvent(_Event):
    """The time of an epoch; of fewer than its `steps` if a process began it that ended before."""

    seconds: float = within(at_least=0)
    phase: str | None = None
    epoch: int | None = within(at_least=0, default=None)
    steps: int | None = within(at_least=0, default=None)
    timed_steps: int | None = within(at_least=0, default=None)


def check_metric(record: dict[str, Any]) -> None:
    """Check a line of `metrics.jsonl`.

    Raises:
        DamagedError: If it is none.
    """
    kinds: dict[Any, type[_Metric]] = {"evaluation": _Evaluation, "epoch": _Epoch}
    kind = record.get("kind")
    conform(kinds.get(kind, _Metric) if isinstance(kind, str) else _Metric, record, "A record")


def check_event(record: dict[str, Any]) -> None:
    """Check a line of `events.jsonl`.

    Raises:
        DamagedError: If it is none.
    """
    conform(_EpochEvent if record.get("event") == "epoch" else _Event, record, "An event")


class JsonLines:
    """One file, one JSON object per line, each line on disk before the next begins.

    Args:
        path: The file.
        check: Raises `DamagedError` for a record that does not belong there.
    """

    def __init__(
        self, path: Path, check: Callable[[dict[str, Any]], None] = lambda record: None
    ) -> None:
        self.path = path
        self.check = check

    def append(self, *records: dict[str, Any]) -> None:
        """Add records, all in one write: what belongs together is there or is not."""
        lines = [json.dumps(r, ensure_ascii=False, allow_nan=True) + "\n" for r in records]
        with writing(self.path), open_for_append(self.path) as file:
            file.write("".join(lines).encode())

    def size(self) -> int:
        """Length in bytes."""
        return self.path.lstat().st_size if self.path.exists() else 0

    def size_before(self, stop: Callable[[dict[str, Any]], bool]) -> int:
        """Length in bytes of the records before the first for which `stop` is true."""
        size = 0
        for line, record in self._whole_lines(self._content()):
            if stop(record):
                break
            size += len(line) + 1
        return size

    def sync(self) -> None:
        """Return once everything is safely on disk."""
        if self.path.exists():
            with writing(self.path), open_regular(self.path) as file:
                os.fsync(file.fileno())

    def cut(self, size: int | None = None) -> None:
        """Drop what follows `size` bytes, and in any case the first bad line and what follows."""
        if not self.path.exists():
            return
        with writing(self.path), open_for_append(self.path) as file:
            content = file.read()[:size]
            file.truncate(sum(len(line) + 1 for line, _ in self._whole_lines(content)))

    def read(self) -> list[dict[str, Any]]:
        """All records; a last line that was not written to its end is left out.

        Raises:
            DamagedError: If a line is not a record: those after it may be missing or wrong.
        """
        content = self._content()
        records = [record for _, record in self._whole_lines(content)]
        if len(records) < content.count(b"\n"):
            raise DamagedError(
                f"{visible(str(self.path))} is damaged: line {len(records) + 1} is not a record.",
                hint="Restore it from a backup; `peerdg resume` goes on without the records from "
                "there on.",
            )
        return records

    def _content(self) -> bytes:
        if not self.path.exists():
            return b""
        try:
            with open_regular(self.path) as file:
                return file.read()
        except OSError as error:
            raise DamagedError(f"{visible(str(self.path))} cannot be read: {error}.") from error

    def _whole_lines(self, content: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Each line and its parsed record, up to the first invalid line."""
        for line in content.split(b"\n")[:-1]:
            try:
                record = json.loads(line.decode())
                if not isinstance(record, dict):
                    return
                self.check(record)
            except (ValueError, RecursionError, DamagedError):
                return
            yield line, record
