"""Long work between epochs, done part by part."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Part = TypeVar("Part")
Show = Callable[[str, float], None]
Chunks = Callable[[Collection[Any], str], Iterator[Any]]
"""Divides long work into parts: `Work.chunks`, or that of a run."""


@dataclass(eq=False)
class _Loop:
    what: str
    total: int
    done: int = 0


class Work:
    """Divides long work into parts, before each of which it may be given up.

    Loops may be nested: `share` then counts the parts of all of them.
    """

    def __init__(self) -> None:
        self._loops: list[_Loop] = []
        self._before_part: Callable[[], None] = lambda: None
        self._show: Show = lambda what, share: None

    def chunks(self, parts: Collection[Part], what: str = "") -> Iterator[Part]:
        """Iterate over `parts`; show progress and look at the stop request before each.

        Args:
            parts: What to do one after the other.
            what: What is being done, e.g. `"perturbing"`; the outermost loop's is shown.
        """
        loop = _Loop(what, len(parts))
        self._loops.append(loop)
        try:
            for part in parts:
                self._before_part()
                self._show(self._loops[0].what, self.share)
                yield part
                loop.done += 1
        finally:
            # Not the last one, if a loop inside was left by an error and is not collected yet.
            if loop in self._loops:
                del self._loops[self._loops.index(loop) :]

    @property
    def share(self) -> float:
        """The part of the outermost loop that is done, from 0 to 1."""
        share, whole = 0.0, 1.0
        for loop in self._loops:
            share += whole * loop.done / loop.total
            whole /= loop.total
        return share

    @contextmanager
    def interruptible(
        self, before_part: Callable[[], None], show: Show = lambda what, share: None
    ) -> Iterator[None]:
        """Inside the block, call `before_part` before each part; it may raise to stop there.

        Args:
            before_part: Raises to give the work up.
            show: Receives what is being done and which share of it is.
        """
        before = self._before_part, self._show
        self._before_part, self._show = before_part, show
        try:
            yield
        finally:
            self._before_part, self._show = before
            self._loops.clear()
