"""Work that goes on beside training, one piece at a time, whose failure is not lost."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Background:
    """One thread for writing: disks and checksums do not need the interpreter."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Begin `work` once the previous piece is done; raises what that one raised."""
        self.wait()
        self._running = self._executor.submit(work, *arguments)

    def wait(self) -> None:
        """Wait for the piece that runs, if any; raises what it raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the end; raises what the last piece raised."""
        try:
            self.wait()
        finally:
            self._executor.shutdown()
