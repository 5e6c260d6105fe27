"""Runs that a signal stops at a certain step."""

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from peerdg.errors import Stopped
from peerdg.train import loop


@contextmanager
def stopped_at(count: int) -> Iterator[None]:
    """Let a signal arrive during training step number `count`, and expect that it stops the run."""
    number, step = itertools.count(1), loop.train_step

    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(number) == count:
            signal.raise_signal(signal.SIGTERM)
        return step(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped) as stopped:
        patch.setattr(loop, "train_step", counted)
        yield
    assert stopped.value.exit_code == 143
