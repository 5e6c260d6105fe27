"""Who is told how far reading has come: the command line shows it, a script hears nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Is told what is being done, how many files are done, and how many there are.
Progress = Callable[[str, int, int], None]

_listener: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Tell `progress` of everything that is read inside the block, whoever reads it."""
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def listener(given: Progress | None = None) -> Progress:
    """`given`, else the one of the surrounding `showing`, else one that does nothing."""
    return given or _listener.get() or _ignore


def _ignore(stage: str, done: int, total: int) -> None:
    pass
