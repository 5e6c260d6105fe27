"""`peerdg evaluate`: how good a trained model is on other images."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from peerdg.cli.flags import which_data
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, OwnDataSettings
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.errors import ConfigError
from peerdg.options import merge
from peerdg.run.hardware import DEVICES
from peerdg.terminal import console, error_console

if TYPE_CHECKING:
    from peerdg.data.domain import Domain
    from peerdg.data.read import Progress
    from peerdg.evaluate.detail import DomainReport
    from peerdg.model import Model

_DATA = "folders or lists of labelled images, or a data set by name; default: the run's own data"


def evaluate(
    run: Path,
    data: Annotated[tuple[str, ...], Parameter(help=_DATA)] = (),
    /,
    *,
    root: Annotated[str | None, Parameter(help="folder with a named data set's files")] = None,
    target: Annotated[
        tuple[str, ...] | None,
        Parameter(
            help="target domain of a named data set; repeat it for several", negative_iterable=()
        ),
    ] = None,
    json_file: Annotated[Path | None, Parameter(name="--json")] = None,
    report: Path | None = None,
    worst: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 12,
    layout: Literal["auto", "classes", "domains"] = "auto",
    skip_bad_images: Annotated[bool, Parameter(negative=())] = False,
    class_map: Annotated[tuple[str, ...], Parameter(name="--map", negative_iterable=())] = (),
    device: Annotated[str, Parameter(help=DEVICES)] = "auto",
) -> None:
    """Accuracy, by class too, confusion matrix, calibration error and worst mistakes.

    Classes are matched by name. A folder may lack classes of the model; one that the model does
    not know ends the command with code 5, unless --map says which class it is.

    Args:
        run: Run folder or model folder.
        json_file: Write everything into this JSON file, too.
        report: Write a page with a confusion matrix and the worst mistakes into this folder.
        worst: How many of the most confident mistakes to show.
        layout: What the first level of a folder is, where looking does not tell.
        skip_bad_images: Leave out images that cannot be decoded, and count them.
        class_map: Class that the images call otherwise, e.g. Dog=dog; repeat it for several.
    """
    _refuse_unused(data, root, target)
    from peerdg.model import load_model
    from peerdg.run.progress import ReadingBar

    if report is not None:
        from peerdg.report.figures import pyplot

        pyplot()  # what is not installed is missed before the work, not after it
    model = load_model(run, device=device)
    settings = OwnDataSettings(
        size=model.stored_size,
        layout=layout,
        skip_bad_images=skip_bad_images,
        class_map=class_map or None,
    )
    bar = ReadingBar(error_console)
    with contextlib.closing(bar):
        domains = _read_domains(model, run, data, root, target, settings, bar)
    details = [model.evaluate_in_detail(domain, worst=worst) for domain in domains.values()]
    _print(details)
    _write(model, details, domains, parse_class_map(class_map), json_file, report)


def _refuse_unused(data: tuple[str, ...], root: str | None, target: tuple[str, ...] | None) -> None:
    """Refuse --root and --target where they have no meaning.

    Raises:
        ConfigError: For a folder or list, or a data set that needs no files.
    """
    if (root or target) and any(map(_is_own, data)):
        raise ConfigError(
            "--root and --target belong to a data set by name, not to a folder or list.",
            hint="Give the folders of all targets one after the other.",
        )
    for name in data:
        BENCHMARKS[which_data(name)["benchmark"]].refuse_unused_root(root)


def _is_own(name: str) -> bool:
    """Whether it is a folder or list, and not a data set by name."""
    return bool(which_data(name)["benchmark"] == OWN_DATA)


def _read_domains(
    model: "Model",
    run: Path,
    data: tuple[str, ...],
    root: str | None,
    target: tuple[str, ...] | None,
    settings: OwnDataSettings,
    progress: "Progress",
) -> "dict[str, Domain]":
    """Read everything to evaluate on: data sets by name, or the run's own, then folders and lists.

    Raises:
        ConfigError: If the class map names a class that neither the data nor the model has.
    """
    class_map = settings.class_map or ()
    own = [name for name in data if _is_own(name)]
    domains, known = _named_domains(model, run, data, root, target, class_map, progress)
    if known and not own:
        check_class_map(parse_class_map(class_map), theirs=known, ours=model.classes)
    domains.update(_own_domains(model, own, domains, settings, known, progress))
    return {name: replace(domain, name=name) for name, domain in domains.items()}


def _named_domains(
    model: "Model",
    run: Path,
    data: tuple[str, ...],
    root: str | None,
    target: tuple[str, ...] | None,
    class_map: tuple[str, ...],
    progress: "Progress",
) -> "tuple[dict[str, Domain], set[str]]":
    """Every domain of the data sets that are named, or of the run's own.

    Returns:
        The domains with labels in the model's class order, and the names that data sets which are
        known by name have for their classes.
    """
    from peerdg.run.config import resolve, without_method
    from peerdg.run.folder import read_run_config
    from peerdg.run.prepare import load_splits, natural_domains

    chosen: list[Mapping[str, Any]] = [which_data(name) for name in data]
    if not data:
        if not (run / "config.toml").is_file():
            raise ConfigError(
                f"{run} is a model folder.", hint="Name the images to evaluate it on."
            )
        chosen = [resolve(without_method(read_run_config(run))).tables()]
    given: dict[str, Any] = {"root": root, "targets": list(target) if target else None}
    given = {key: value for key, value in given.items() if value is not None}
    found: dict[str, Domain] = {}
    known: set[str] = set()
    for started in chosen:
        is_own = started["benchmark"] == OWN_DATA
        if data and is_own:
            continue
        own = {OWN_DATA: {"class_map": list(class_map)}} if is_own and class_map else {}
        splits = load_splits(resolve(started, merge(given, own)), progress=progress)
        for name, domain in natural_domains(splits).items():
            renamed = {} if is_own else parse_class_map(class_map)  # own images: when read
            known.update(() if is_own else domain.classes)
            free = f"{started['benchmark']}-{name}" if name in found else name
            found[free] = domain.with_classes(model.classes, renamed)
    return found, known


def _own_domains(
    model: "Model",
    paths: list[str],
    taken: "Mapping[str, Domain]",
    settings: OwnDataSettings,
    known: set[str],
    progress: "Progress",
) -> "dict[str, Domain]":
    """The user's folders and lists, decoded to the size of the model's training images."""
    from peerdg.data.own_data import read_targets

    if not paths:
        return {}
    found = read_targets(
        paths, classes=model.classes, settings=settings, also_known=known, progress=progress
    )
    return {f"own-{name}" if name in taken else name: domain for name, domain in found.items()}


def _print(details: "list[DomainReport]") -> None:
    """Each domain in detail, then all of them in short, which is what a person looks for first."""
    from peerdg.report import evaluation
    from peerdg.terminal import visible

    for detail in details:
        console.print(visible(detail.domain), style="bold", markup=False)
        for text in evaluation.remarks(detail):
            console.print(visible(text), markup=False, soft_wrap=True)
        tables = [evaluation.class_table(detail), evaluation.confusion_table(detail)]
        if detail.worst:
            tables.append(evaluation.mistakes_table(detail))
        for table in tables:
            if table is not None:
                console.print(table, "")
    console.print(evaluation.summary_table(details))


def _write(
    model: "Model",
    details: "list[DomainReport]",
    domains: "Mapping[str, Domain]",
    class_map: Mapping[str, str],
    json_file: Path | None,
    report: Path | None,
) -> None:
    from peerdg.evaluate.detail import BINS
    from peerdg.files import write_json
    from peerdg.report.evaluation import write_evaluation
    from peerdg.version import __version__

    if json_file is not None:
        stored = ("backbone", "classes", "image_size", "stored_size", "weights_sha256")
        about = {key: model.description[key] for key in stored}
        results = [detail.to_dict() for detail in details]
        record: dict[str, Any] = {"model": about, "calibration_bins": BINS, "domains": results}
        if class_map:
            record["class_map"] = dict(class_map)
        write_json(json_file, {**record, "peerdg": __version__})
    if report is not None:
        backbone = model.description["backbone"]
        title = f"{backbone}, {len(model.classes)} classes, on {len(details)} domains"
        page = write_evaluation(details, domains, report, title=title)
        console.print(f"Report in {page}", markup=False, soft_wrap=True)
