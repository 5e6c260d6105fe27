"""What a benchmark is: a published protocol with its domains, classes and origin. Free of torch."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdg.config import did_you_mean
from peerdg.errors import ConfigError

if TYPE_CHECKING:
    from peerdg.data.check import DomainReport
    from peerdg.data.domain import Splits

_Channels = tuple[float, float, float]


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
        module: Module with `load(settings, root=, targets=)` and `verify(root)`.
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
        """The domain that `name` stands for, whatever its case and separators; None if none."""
        for domain in self.domains:
            if fold(name) in map(fold, (domain, *self.aliases.get(domain, ()))):
                return domain
        return None

    def load(
        self, settings: Any, *, root: Path | None, targets: Sequence[str] | None = None
    ) -> "Splits":
        """Train, validation and target domains; `targets=None` takes every one that is present."""
        source = getattr(settings, "source", self.source)
        others = [domain for domain in self.domains if domain != source]
        chosen = None if targets is None else [self._target(name, others) for name in targets]
        load: Callable[..., Splits] = importlib.import_module(self.module).load
        return load(settings, root=root, targets=chosen)

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
        """Mean and scale that the model applies to values 0..1, as the settings ask for."""
        if getattr(settings, "values", "unit") == "centred":
            return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
        return self.mean, self.std

    def verify(self, root: Path | None) -> "list[DomainReport]":
        """What is found of each domain under `root`, and what is missing."""
        verify: Callable[..., list[DomainReport]] = importlib.import_module(self.module).verify
        return verify(root)


def fold(name: str) -> str:
    """A name without case and separators, as people and archives spell it differently."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
