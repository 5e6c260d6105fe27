"""Features of all clean images, computed once while the network that gives them stays the same."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from peerdg.methods.clean import CleanImages


class FeatureTable:
    """Features by row of the training set.

    They are computed at the first `lookup`, since batches need not know their rows; from then on
    as soon as they are due.

    Attributes:
        is_used: Whether rows were looked up, or are going to be.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._version: int | None = None
        self._features: Tensor | None = None  # (images, dim)
        self._due: Callable[[], None] | None = None

    def lookup(self, rows: Tensor | None) -> Tensor | None:
        """The features at `rows`; None if these are not known, or no table is kept."""
        if rows is None:
            return None
        self.is_used = True
        if self._due is not None:
            self._due()
        return None if self._features is None else self._features[rows]

    def refresh(
        self, version: int, clean: CleanImages, features: Callable[[Tensor], Tensor]
    ) -> None:
        """Let all features be those of this version of the network.

        Args:
            version: Changes whenever the network does.
            clean: All clean images.
            features: The network's features of some images.
        """
        if self._version == version:
            return
        self.forget()
        self._due = partial(self._compute, version, clean, features)
        if self.is_used:
            self._due()

    def _compute(
        self, version: int, clean: CleanImages, features: Callable[[Tensor], Tensor]
    ) -> None:
        rows, parts = zip(
            *((rows, features(images)) for rows, images in clean.chunks()), strict=True
        )
        found = torch.cat(parts)
        by_row = torch.empty_like(found)  # in the order of the rows, not of the chunks
        by_row[torch.cat(rows)] = found
        self._version, self._features, self._due = version, by_row, None

    def forget(self) -> None:
        """Know nothing, as at the start."""
        self._version, self._features, self._due = None, None, None
