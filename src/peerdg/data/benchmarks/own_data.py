"""Domains given from Python: they exist only in the process that made them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peerdg.data.check import DomainReport
from peerdg.data.domain import Splits
from peerdg.errors import ConfigError


def load(settings: Any, *, root: Path | None, targets: Sequence[str] | None = None) -> Splits:
    """Refuse: only `peerdg.fit(Splits(...))` has them."""
    raise ConfigError(
        "This run was trained on domains given from Python.",
        hint="Go on with it from Python: peerdg.fit(splits, out=..., existing='resume').",
    )


def verify(root: Path | None) -> list[DomainReport]:
    """Nothing on disk, nothing to report."""
    return []
