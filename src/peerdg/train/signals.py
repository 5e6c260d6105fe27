"""Ctrl-C and SIGTERM finish the step, save, and leave; a second Ctrl-C leaves at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Set by a signal, read by the loop between two steps."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: do not wait for the save
        self.signal_number = number


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM while the block runs (in the main thread; elsewhere nothing)."""
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
