"""`peerdg analyze`: compare data sets, networks and snapshots."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import chain, count, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter, validators

from peerdg import __version__
from peerdg.cli import data as data_commands
from peerdg.cli.flags import whole_numbers
from peerdg.data.benchmarks import OWN_DATA, find_data
from peerdg.errors import ConfigError, PeerdgWarning
from peerdg.run.hardware import DEVICES
from peerdg.terminal import Table, console, error_console

if TYPE_CHECKING:
    from peerdg.analyze.cka import CKA
    from peerdg.analyze.networks import AnalyzedRun
    from peerdg.data.domain import Domain
    from peerdg.models.classifier import Classifier

_OUTPUT = "folder for figures and JSON; default: analysis/ in the first run"
Output = Annotated[Path | None, Parameter(name=("--output", "-o"), help=_OUTPUT)]
Root = Annotated[str | None, Parameter(help="folder with the data, if it was moved")]
Device = Annotated[str, Parameter(help=DEVICES)]
Wholes = Annotated[tuple[int, ...], Parameter(converter=whole_numbers)]
Item = TypeVar("Item")
AtLeast4 = Parameter(validator=validators.Number(gte=4))


def otdd_analyze(
    data: tuple[str, ...],
    /,
    *,
    root: data_commands.Root = None,
    augment: Literal["torchvision", "sdg"] | None = None,
    num_ops: Wholes = (1, 2, 3, 4),
    magnitude: Wholes = tuple(range(3, 31, 3)),
    embedding: str | None = None,
    samples: int = 1000,
    repeats: int = 3,
    seed: int = 0,
    size: int | None = None,
    lambda_y: float = 1.0,
    reg: float = 0.0,
    output: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("analysis"),
) -> None:
    """Compute the optimal transport dataset distance (OTDD) between domains.

    A data set stands for its source and all targets. The command prints ½ OTDD² and writes
    otdd.json, otdd.png and otdd.svg.

    Example: `peerdg analyze otdd photos/ sketches/`

    Args:
        data: Data sets, and folders or lists of labeled images.
        augment: Compare only the first domain: with the others, and with its own images after
            RandAugment with this set of operations.
        num_ops: Numbers of operations for --augment, e.g. 1,2,4.
        magnitude: Magnitudes for --augment, e.g. 10,20,30.
        embedding: Compare features of this run, model folder or backbone instead of pixels.
        samples: Images per domain, in proportion to its classes.
        repeats: Random samples, for mean and standard deviation.
        seed: Seed of the samples.
        size: Side of the images in pixels. Default: 32, or the network's.
        lambda_y: Weight of the distance between classes.
        reg: Entropic regularization in units of the cost. 0 is exact transport.
        output: Folder for figure and JSON.
    """
    from peerdg.analyze.otdd import Settings, analyze_otdd, load_embedding
    from peerdg.augment.randaugment import RandAugment
    from peerdg.evaluate.statistics import import_extra
    from peerdg.long_work import interruptible
    from peerdg.run.progress import ReadingBar

    for package in ("ot", "matplotlib"):  # fail early if one is missing
        import_extra(package, "analyze")
    settings = Settings(
        samples=samples, repeats=repeats, seed=seed, size=size, lambda_y=lambda_y, reg=reg
    )
    grid = product(num_ops, magnitude) if augment else ()
    augmentations = [RandAugment(k, m, operations=augment or "sdg") for k, m in grid]
    network = None if embedding is None else load_embedding(embedding)
    domains = _read(data, root)
    if len(domains) < 2 and augment is None:
        raise ConfigError(
            f"A distance needs two domains, but there is only '{domains[0].name}'.",
            hint="Name another folder or data set, or add --augment torchvision.",
        )
    with contextlib.closing(ReadingBar(error_console)) as bar:
        with interruptible(lambda label, share: bar(int(100 * share), 100, label)):
            analysis = analyze_otdd(
                domains, settings, embedding=network, augmentations=augmentations
            )
    for table in analysis.tables():
        console.print(table)
    analysis.save(output)
    console.print(f"Figure in {output / 'otdd.png'} and .svg, numbers in {output / 'otdd.json'}")


def _read(data: tuple[str, ...], root: Path | None) -> "list[Domain]":
    """Read all domains of data sets, folders and lists. Repeated names are changed."""
    if root is not None and all(find_data(name)["benchmark"] == OWN_DATA for name in data):
        raise ConfigError("--root applies to data sets, not to folders or lists.")
    domains: dict[str, Domain] = {}
    for name in data:
        for domain in data_commands.read_domains(name, root):
            longer = f"{Path(name).name}-{domain.name}"
            names = chain((domain.name, longer), (f"{longer}-{number}" for number in count(2)))
            free = next(each for each in names if each not in domains)
            domains[free] = replace(domain, name=free)
            if domain.skipped:
                first, rest = domain.skipped[0].path, len(domain.skipped) - 1
                more = f" and {rest} more" if rest else ""
                text = f"'{free}': {first}{more} cannot be decoded. Left out."
                used = {domain.classes[label] for label in domain.labels.unique()}
                if gone := [name for name in domain.classes if name not in used]:
                    text += f" No image is left of: {', '.join(gone)}."
                warnings.warn(text, PeerdgWarning, stacklevel=2)
    return list(domains.values())


def cka_analyze(
    networks: tuple[str, ...],
    /,
    *,
    other: Annotated[str, Parameter(name="--with")] = "init",
    epochs: Wholes = (),
    full: bool = False,
    max_images: Annotated[int, AtLeast4] = 2000,
    output: Output = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Compare the features of networks, layer by layer, on clean source images.

    Centered kernel alignment (CKA) is 1 for equal features and near 0 for unrelated ones. RUN
    stands for four of its snapshots, and RUN@30 for the one after 30 epochs. RUN@init is the start
    of the main phase, RUN@last the trained network, and RUN@task the deployed model.

    Example: `peerdg analyze cka runs/peer runs/randaugment --with init`

    Args:
        networks: Runs with --keep-snapshots, or single networks RUN@WHICH.
        other: Network to compare with: init, last, task or an epoch of the same run, or RUN@WHICH.
        epochs: Snapshots of each RUN, e.g. --epochs 30,60,90,120.
        full: Use the biased estimate on all images at once, instead of the unbiased one in batches
            of 256. It needs more memory.
        max_images: Maximum number of images.
    """
    from peerdg.analyze.cka import cka, draw_cka
    from peerdg.analyze.networks import split_name

    options: dict[str, Any] = {"batch_size": None, "unbiased": False} if full else {}
    names = [split_name(name) for name in networks]
    with _opened(root, device) as (run_of, network_of):
        _require_size([run_of(run) for run, _ in names])
        compared = [
            (run, one, network_of(one, run), network_of(other, run))
            for run, which in names
            for one in ([which] if which else map(str, epochs or run_of(run).spread(4)))
        ]
        images = run_of(names[0][0]).source_images(max_images)
        rows: dict[str, dict[str, CKA]] = {}
        for run, one, a, b in compared:
            result = rows.setdefault(run, {})[one] = cka(a, b, images, **options)
    flat = [(run, one, result) for run, results in rows.items() for one, result in results.items()]
    for layers in dict.fromkeys(result.layers for *_, result in flat):
        lines = [
            [f"{run}@{one}", *(f"{value:.3f}" for value in result.diagonal.values())]
            for run, one, result in flat
            if result.layers == layers
        ]
        console.print(Table([f"CKA with {other}", *layers], lines))
    estimate = "biased, full batch" if full else "unbiased"
    about = f"CKA with {other} (columns), {estimate}, {result.images:,} clean source images"
    path = _figure(output, names[0][0], "cka")
    draw_cka(_short(rows), path, about=about)
    results = [
        {
            "a": f"{run}@{one}",
            "layers": result.layers,
            "diagonal": result.diagonal,
            "matrix": result.matrix.tolist(),
        }
        for run, one, result in flat
    ]
    options = {"with": other, "estimate": estimate, "images": result.images}
    _write(path, {**options, "results": results})


def connectivity_analyze(
    runs: tuple[str, ...],
    /,
    *,
    between: str = "init,last",
    points: int | None = None,
    max_images: Annotated[int | None, AtLeast4] = None,
    output: Output = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Evaluate the networks on a straight line between two snapshots, on source and targets.

    The command prints the gain in accuracy at the middle, and the barrier of error and loss: the
    largest value minus the mean of the two ends, or minus the line between them. Batch statistics
    are recomputed on clean source images at every point. More than two networks are compared in
    pairs.

    Example: `peerdg analyze connectivity runs/peer runs/randaugment --between init,last`

    Args:
        runs: Runs with --keep-snapshots.
        between: Networks: init, last, task, epochs, or RUN@WHICH. "all" takes six snapshots.
        points: Odd number of networks on each line. Default: 21, or 5 for more than two networks.
        max_images: Maximum number of images of each domain. Default: all.
    """
    from peerdg.analyze.connectivity import draw_pairs, draw_paths, pairwise

    found = {}
    with _opened(root, device) as (run_of, network_of):
        ends = dict.fromkeys(runs, between.split(","))
        if between == "all":
            ends = {run: ["init", *map(str, run_of(run).spread(5))] for run in runs}
        networks = {r: {name: network_of(name, r) for name in names} for r, names in ends.items()}
        for name, some in networks.items():
            run = run_of(name)
            found[name] = pairwise(
                some,
                run.domains(max_images),
                points=points or (21 if len(some) == 2 else 5),
                size=run.size,
                clean=run.clean,
            )
    flat = [(run, *pair, path) for run, pairs in found.items() for pair, path in pairs.items()]
    lines = [
        [f"{run}: {a}, {b}: {domain}", *(f"{value:.2f}" for value in path.summary(domain).values())]
        for run, a, b, path in flat
        for domain in path.accuracy
    ]
    measures = [name.replace("_", " ") for name in flat[0][-1].target_mean]
    console.print(Table(["path and domain", *measures], lines))
    console.print("Gain and error barriers are in points of accuracy.")
    file = _figure(output, runs[0], "connectivity")
    draw = draw_paths if all(len(pairs) == 1 for pairs in found.values()) else draw_pairs
    draw(_short(found), file)
    results = [
        {"run": run, "a": a, "b": b, **asdict(path)}
        | {"summary": {domain: path.summary(domain) for domain in path.accuracy}}
        for run, a, b, path in flat
    ]
    _write(file, {"max_images": max_images, "results": results})


def drift_analyze(
    run: str,
    /,
    *,
    epochs: Wholes = (),
    max_images: Annotated[int, AtLeast4] = 1000,
    output: Output = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Measure how far the trained network moves from the start of its main phase.

    The command reports the distance of each layer's weights, CKA of its features, distances and
    cosines between snapshots, the share of predictions that change, and the accuracy lost on
    earlier augmentations.

    Example: `peerdg analyze drift runs/peer`

    Args:
        run: Run with --keep-snapshots.
        epochs: Snapshots to use, e.g. --epochs 30,60,90. Default: up to twelve.
        max_images: Maximum number of images of each domain.
    """
    from peerdg.analyze.drift import draw_drift, drift

    with _opened(root, device) as (run_of, _):
        result = drift(run_of(run), epochs=epochs, max_images=max_images)
    columns = {"distance": result.geometry.distance[0][1:]}
    columns |= {f"churn {name}": values for name, values in result.churn.items()}
    if result.forgetting is not None:
        columns["forgetting"] = result.forgetting
    lines = [
        [f"{epoch}", f"{distance:.3g}", *(f"{value:.1f}" for value in values)]
        for epoch, distance, *values in zip(result.epochs[1:], *columns.values(), strict=True)
    ]
    console.print(Table(["epoch", *columns], lines))
    console.print("Distance is relative to the weights. Churn and forgetting are in percent.")
    path = _figure(output, run, "drift")
    draw_drift(result, path, title=f"Drift of {Path(run).name}")
    _write(path, asdict(result))


@contextlib.contextmanager
def _opened(
    root: str | None, device: str
) -> "Iterator[tuple[Callable[[str], AnalyzedRun], Callable[[str, str], Classifier]]]":
    """Yield a function that opens runs and one that finds networks. Show progress inside."""
    from peerdg.analyze.networks import AnalyzedRun, split_name
    from peerdg.long_work import interruptible
    from peerdg.report.figures import pyplot
    from peerdg.run.progress import ReadingBar

    pyplot()  # fail early if matplotlib is missing
    with contextlib.closing(ReadingBar(error_console)) as bar:
        run_of = cache(partial(AnalyzedRun, root=root, device=device, progress=bar))

        def network_of(name: str, run: str) -> "Classifier":
            """Return the network RUN@WHICH, or WHICH of the given run."""
            place, which = split_name(name)
            if which is not None:
                _require_size([run_of(run), run_of(place)])
            return run_of(run).network(name) if which is None else run_of(place).network(which)

        with interruptible(lambda label, share: bar(int(100 * share), 100, label)):
            yield run_of, network_of


def _require_size(runs: "Sequence[AnalyzedRun]") -> None:
    """Raise unless the networks of all runs have images of the same size."""
    if len(sizes := {run.size for run in runs}) > 1:
        pixels = ", ".join(map(str, sorted(sizes)))
        raise ConfigError(
            f"The networks have different image sizes: {pixels} pixels.",
            hint="Compare runs with the same --transform.size.",
        )


def _figure(output: Path | None, run: str, name: str) -> Path:
    return (output or Path(run) / "analysis") / f"{name}.png"


def _short(runs: Mapping[str, Item]) -> Mapping[str, Item]:
    """Name runs by the last part of their paths, if these names differ."""
    named = {Path(run).resolve().name: each for run, each in runs.items()}
    return named if len(named) == len(runs) else runs


def _write(path: Path, record: dict[str, Any]) -> None:
    from peerdg.files import write_json

    write_json(path.with_suffix(".json"), {**record, "peerdg": __version__})
    console.print(f"Figure in {path} and .svg, numbers in {path.with_suffix('.json')}")
