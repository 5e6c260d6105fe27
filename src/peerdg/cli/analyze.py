"""`peerdg analyze`: measure properties of data sets and runs."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.progress import Progress

from peerdg.analyze.otdd import Settings, analyze_otdd, load_embedding
from peerdg.augment.randaugment import RandAugment
from peerdg.cli.data import Root, read_domains
from peerdg.cli.flags import whole_numbers
from peerdg.data.benchmarks import OWN_DATA, find_data
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError, PeerdgWarning
from peerdg.evaluate.statistics import import_extra
from peerdg.long_work import interruptible
from peerdg.terminal import console, error_console, is_live

Output = Annotated[Path, Parameter(name=("--output", "-o"), help="folder to write")]
Wholes = Annotated[tuple[int, ...], Parameter(converter=whole_numbers)]


def otdd_analyze(
    data: tuple[str, ...],
    /,
    *,
    root: Root = None,
    augment: Literal["torchvision", "sdg"] | None = None,
    num_ops: Wholes = (1, 2, 3, 4),
    magnitude: Wholes = tuple(range(3, 31, 3)),
    embedding: str | None = None,
    settings: Annotated[Settings | None, Parameter(name="*")] = None,
    output: Output = Path("analysis/otdd"),
) -> None:
    """Compute the optimal transport dataset distance between domains.

    A data set stands for its source and all targets. Prints ½ OTDD², and writes otdd.json,
    otdd.png and otdd.svg.

    Example: `peerdg analyze otdd photos/ sketches/`

    Args:
        data: Data sets, and folders or lists of labeled images.
        augment: Compare only the first domain: with the others, and with its own images after
            RandAugment with this set of operations.
        num_ops: Numbers of operations for --augment, e.g. 1,2,4.
        magnitude: Magnitudes for --augment, e.g. 10,20,30.
        embedding: Compare features of this run, model folder or backbone instead of pixels.
    """
    for package in ("ot", "matplotlib"):  # fail early if one is missing
        import_extra(package, "analyze")
    augmentations = []
    if augment is not None:
        grid = product(num_ops, magnitude)
        augmentations = [RandAugment(k, m, operations=augment) for k, m in grid]
    network = None if embedding is None else load_embedding(embedding)
    domains = _read(data, root)
    if len(domains) < 2 and augment is None:
        raise ConfigError(
            f"A distance needs two domains, but there is only '{domains[0].name}'.",
            hint="Name another folder or data set, or add --augment torchvision.",
        )
    with _progress("otdd"):
        analysis = analyze_otdd(domains, settings, embedding=network, augmentations=augmentations)
    for table in analysis.tables():
        console.print(table)
    analysis.save(output)
    console.print(f"Figure and values in {output}")


def _read(data: tuple[str, ...], root: Path | None) -> list[Domain]:
    """Read all domains of data sets, folders and lists. Repeated names get a prefix."""
    if root is not None and all(find_data(name)["benchmark"] == OWN_DATA for name in data):
        raise ConfigError("--root applies to data sets, not to folders or lists.")
    domains: dict[str, Domain] = {}
    for name in data:
        for domain in read_domains(name, root):
            free = f"{Path(name).name}-{domain.name}" if domain.name in domains else domain.name
            domains[free] = replace(domain, name=free)
            if domain.skipped:
                text = f"'{free}': {len(domain.skipped)} files cannot be decoded and are left out."
                warnings.warn(text, PeerdgWarning, stacklevel=2)
    return list(domains.values())


@contextmanager
def _progress(label: str) -> Iterator[None]:
    """Show a bar on a terminal for the loops in the block that use `long_work.iterate`."""
    with Progress(console=error_console, transient=True, disable=not is_live(error_console)) as bar:
        task = bar.add_task(label, total=1.0)
        with interruptible(lambda _, share: bar.update(task, completed=share)):
            yield
