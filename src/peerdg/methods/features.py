"""Features of all clean images, computed once while the network that gives them stays the same."""

from collections.abc import Callable

import torch
from torch import Tensor

from peerdg.methods.clean import CleanImages


class FeatureTable:
    """Features by row of the training set."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._features: Tensor | None = None  # (images, dim)

    def lookup(self, rows: Tensor | None) -> Tensor | None:
        """The features at `rows`; None if they are not known."""
        return None if self._features is None or rows is None else self._features[rows]

    def refresh(
        self, version: int, clean: CleanImages, features: Callable[[Tensor], Tensor]
    ) -> None:
        """Compute all features, unless those of this version of the network are known.

        Args:
            version: Changes whenever the network does.
            clean: All clean images.
            features: The network's features of some images.
        """
        if self._version == version:
            return
        rows, parts = zip(
            *((rows, features(images)) for rows, images in clean.chunks()), strict=True
        )
        found = torch.cat(parts)
        by_row = torch.empty_like(found)  # in the order of the rows, not of the chunks
        by_row[torch.cat(rows)] = found
        self._version, self._features = version, by_row

    def forget(self) -> None:
        """Know nothing, as at the start."""
        self._version, self._features = None, None
