"""On Ctrl-C or SIGTERM, finish the step, save and stop. A second Ctrl-C stops at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from peerdg.errors import Stopped


class StopRequest:
    """A request to stop, set by a signal."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def check(self) -> None:
        """Raise `Stopped` if a stop was requested, in any process of the run."""
        from peerdg.distributed import highest  # imported here, so that commands start fast

        if number := highest(self.signal_number or 0):
            raise Stopped(signal_number=number)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self and number == signal.SIGINT:
            raise KeyboardInterrupt  # A second Ctrl-C does not wait for the checkpoint.
        self.signal_number = number


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside the block. Do nothing outside the main thread."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {n: signal.signal(n, request._receive) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
