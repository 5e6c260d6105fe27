"""Run long loops that report progress and can be stopped between items.

    for part in iterate(parts, "perturbing"):   # in a method, an average or an evaluation
        perturb(part)

    with interruptible(before_item):            # in the run that calls them
        method.end_epoch(epoch)

Outside of `interruptible`, `iterate` is a plain loop.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
BeforeItem = Callable[[str, float], None]
"""Called with the label of the outermost loop and its completed fraction."""

Loops = list[tuple[str, int, int]]  # (label, items done, items in total), outermost loop first
_work: ContextVar[tuple[BeforeItem, Loops] | None] = ContextVar("work", default=None)


def iterate(items: Collection[Item], label: str = "") -> Iterator[Item]:
    """Iterate over `items`. Report progress and let the run stop before each one.

    A stopped run resumes after the epoch's last step and repeats the whole loop, so the loop must
    not change the method before its last item is done. If loops are nested, the label of the
    outermost one is shown.
    """
    work = _work.get()
    if work is None:
        yield from items
        return
    before_item, loops = work
    depth = len(loops)
    try:
        for number, item in enumerate(items):
            loops[depth:] = [(label, number, len(items))]
            share, size = 0.0, 1.0
            for _, done, total in loops:
                size /= total
                share += size * done
            before_item(loops[0][0], share)
            yield item
    finally:
        del loops[depth:]


@contextmanager
def interruptible(before_item: BeforeItem) -> Iterator[None]:
    """Call `before_item` before each item of the loops in the block. It may raise to stop them."""
    token = _work.set((before_item, []))
    try:
        yield
    finally:
        _work.reset(token)
