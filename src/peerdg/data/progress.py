"""Progress reporting for long reads: a bar in the command line, nothing in scripts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Receives what is being done, how many files are done, and how many there are.
ReadProgress = Callable[[str, int, int], None]

_listener: ContextVar[ReadProgress | None] = ContextVar("progress", default=None)


@contextmanager
def showing(progress: ReadProgress) -> Iterator[None]:
    """Report everything that is read inside the block to `progress`."""
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def listener(given: ReadProgress | None = None) -> ReadProgress:
    """Return `given`, else the one of the surrounding `showing`, else one that does nothing."""
    return given or _listener.get() or _ignore


def _ignore(stage: str, done: int, total: int) -> None:
    pass
