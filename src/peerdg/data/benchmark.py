"""A benchmark: a published protocol, and what is found of its files. Free of torch and numpy."""

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from peerdg.config import did_you_mean
from peerdg.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from peerdg.data.splits import Splits

_Channels = tuple[float, float, float]
DomainStatus = Literal["found", "missing", "damaged", "unexpected", "refused"]


@dataclass(frozen=True, kw_only=True)
class DomainReport:
    """One part of a benchmark as it is on disk.

    Args:
        domain: The domain's name.
        split: Which part of it, e.g. `"test"`.
        status: `"found"`; `"missing"`; `"damaged"` (it cannot be decoded); `"unexpected"` (it can,
            but has another number of images than published); `"refused"` (only a file of a kind
            that is never opened).
        optional: Whether only a switch other than the default needs it.
        count: Images found; None if nothing could be decoded.
        expected: Images in the published set.
        checksum: Start of the SHA-256 of the decoded images and labels.
        problems: What is wrong, one sentence each.
        obtain: Where the files can be had, and where to put them.
        licence: Licence of the data.
    """

    domain: str
    split: str
    status: DomainStatus
    expected: int
    obtain: str
    licence: str
    optional: bool = False
    count: int | None = None
    checksum: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A published protocol: its domains, classes, image size and where the files come from.

    Args:
        name: Its name on the command line and in records.
        title: One line for `peerdg data list`.
        source: The paper's source domain.
        targets: The paper's target domains, in the order of its tables.
        classes: Class names in label order.
        image_size: Side of the square images.
        mean: Per-channel mean that the model subtracts, on the scale 0..1.
        std: Per-channel scale that the model divides by.
        settings: The dataclass of its protocol switches.
        module: Module with `load(settings, root=, targets=)`, `verify(root)` and, for published
            files, `require_source(settings, root)`.
        needs_root: Whether the user must say where the files are.
        licence: Licence of the data, in a few words.
        obtain: Where each domain's files can be had.
        listed: Whether users can choose it by name.
        aliases: Other names of domains, beside different case and separators.
        any_target: Whether targets are the user's own folders and lists.
    """

    name: str
    title: str
    source: str
    targets: tuple[str, ...]
    classes: tuple[str, ...]
    image_size: int
    mean: _Channels
    std: _Channels
    settings: type[Any]
    module: str
    needs_root: bool
    licence: str
    obtain: str
    listed: bool = True
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    any_target: bool = False

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains, the paper's source first."""
        return (self.source, *self.targets)

    def find_domain(self, name: str) -> str | None:
        """Find the domain that `name` stands for, whatever case and separators; None if none."""
        for domain in self.domains:
            if fold(name) in map(fold, (domain, *self.aliases.get(domain, ()))):
                return domain
        return None

    def load(
        self, settings: Any, *, root: Path | None, targets: Sequence[str] | None = None
    ) -> "Splits":
        """Load train, validation and target domains; `targets=None` takes all that are there."""
        source = getattr(settings, "source", self.source)
        others = [domain for domain in self.domains if domain != source]
        chosen = None if targets is None else [self._target(name, others) for name in targets]
        load: Callable[..., Splits] = importlib.import_module(self.module).load
        return load(settings, root=root, targets=chosen)

    def require_source(self, settings: Any, root: Path | None) -> None:
        """Check that the files of the source are under `root`, without reading them.

        Raises:
            DataError: If they are not.
        """
        check = getattr(importlib.import_module(self.module), "require_source", None)
        if check is not None:  # sets that are made from packages or read any folder have none
            check(settings, root)

    def _target(self, name: str, others: Sequence[str]) -> str:
        if self.any_target:
            return name
        found = self.find_domain(name)
        if found is None or found not in others:
            raise ConfigError(
                f"{self.name} has no target domain '{name}'"
                + (" beside its source." if found else "."),
                hint=did_you_mean(name, others),
            )
        return found

    def refuse_unused_root(self, root: Path | str | None) -> None:
        """Refuse a folder for a set that reads none: the user expects it to be read.

        Raises:
            ConfigError: If the set is embedded and a folder is given.
        """
        if root is not None and self.listed and not self.needs_root:
            raise ConfigError(
                f"{self.name} is made from installed packages and reads no folder, but --root is "
                f"{root}.",
                hint="Leave out --root, or name the data set that is in this folder.",
            )

    def normalisation(self, settings: Any) -> tuple[_Channels, _Channels]:
        """Choose mean and scale that the model applies to values 0..1, by the settings."""
        if getattr(settings, "values", "unit") == "centred":
            return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
        return self.mean, self.std

    def verify(self, root: Path | None) -> list[DomainReport]:
        """Report what is found of each domain under `root`, and what is missing."""
        verify: Callable[..., list[DomainReport]] = importlib.import_module(self.module).verify
        return verify(root)


def fold(name: str) -> str:
    """Strip case and separators, which people and archives spell differently."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def inspect(
    read: "Callable[[], tuple[NDArray[np.uint8], NDArray[np.int64]]]",
    *,
    expected: int,
    **about: Any,
) -> DomainReport:
    """Decode one part and compare its size with the published one; damage becomes a problem.

    Args:
        read: Gives the decoded images and labels, or raises `DataError`.
        expected: Images in the published set.
        about: The remaining fields of the report.
    """
    try:
        images, labels = read()
    except DataError as error:
        return DomainReport(status="damaged", expected=expected, problems=(error.message,), **about)
    same = len(images) == expected
    problems = () if same else (f"{len(images):,} images where {expected:,} are published.",)
    return DomainReport(
        status="found" if same else "unexpected",
        count=len(images),
        expected=expected,
        checksum=_checksum(images, labels),
        problems=problems,
        **about,
    )


def _checksum(images: "NDArray[np.uint8]", labels: "NDArray[np.int64]") -> str:
    digest = hashlib.sha256(repr(images.shape).encode())
    digest.update(labels.reshape(-1).data)
    digest.update(images.reshape(-1).data)
    return digest.hexdigest()[:16]
