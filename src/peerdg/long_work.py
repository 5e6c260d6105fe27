"""Loops over long work, which show their progress and can be stopped between two items.

    for part in iterate(parts, "perturbing"):   # in a method, an average or an evaluation
        perturb(part)

    with interruptible(before_item):            # in the run that calls them
        method.end_epoch(epoch)

Outside of `interruptible`, `iterate` only iterates.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")
BeforeItem = Callable[[str, float], None]
"""Receives the label of the outermost loop and the share of it that is done."""


@dataclass(eq=False)
class _Loop:
    label: str
    total: int
    done: int = 0


@dataclass
class _Work:
    before_item: BeforeItem
    loops: list[_Loop] = field(default_factory=list)  # the outermost first

    @property
    def share(self) -> float:
        share, item = 0.0, 1.0
        for loop in self.loops:
            item /= loop.total
            share += item * loop.done
        return share


_current: ContextVar[_Work | None] = ContextVar("work", default=None)


def iterate(items: Collection[Item], label: str = "") -> Iterator[Item]:
    """Iterate over `items`. Before each, the run shows the progress and may stop.

    A run that stops here continues later from the epoch's last step and repeats all of the work.
    So the work must not change the method before the last item is done. Loops may be nested.

    Args:
        items: The parts of the work.
        label: What is being done, e.g. `"perturbing"`. The outermost label is shown.
    """
    work = _current.get()
    if work is None:
        yield from items
        return
    loop = _Loop(label, len(items))
    work.loops.append(loop)
    try:
        for item in items:
            work.before_item(work.loops[0].label, work.share)
            yield item
            loop.done += 1
    finally:
        if loop in work.loops:  # It is gone if an outer loop was left by an error before.
            del work.loops[work.loops.index(loop) :]


@contextmanager
def interruptible(before_item: BeforeItem) -> Iterator[None]:
    """Call `before_item` before each item of the loops inside the block. It may raise to stop."""
    token = _current.set(_Work(before_item))
    try:
        yield
    finally:
        _current.reset(token)
