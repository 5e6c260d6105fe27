"""`peerdg evaluate`: how good a trained model is on other images."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from peerdg import __version__
from peerdg.cli.flags import which_data
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, OwnDataSettings
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.errors import ConfigError
from peerdg.options import merge
from peerdg.run.hardware import DEVICES
from peerdg.terminal import console, error_console, visible

if TYPE_CHECKING:
    from peerdg.data.domain import Domain
    from peerdg.data.read import Progress
    from peerdg.evaluate.accuracy import DomainReport
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

    Classes are matched by name. A folder may lack classes of the model. A class that the model does
    not know ends the command with code 5, unless --map says which class it is.

    Args:
        run: Run folder or model folder.
        json_file: Write all results into this JSON file.
        report: Write a page with confusion matrices and the worst mistakes into this folder.
        worst: Number of the most confident mistakes to show.
        layout: Meaning of the first level of a folder, where it is ambiguous.
        skip_bad_images: Leave out images that cannot be decoded, and count them.
        class_map: Another name of a class in the images, e.g. Dog=dog. Repeat it for several.
    """
    own = [name for name in data if which_data(name)["benchmark"] == OWN_DATA]
    if own and (root or target):
        raise ConfigError(
            "--root and --target belong to a data set by name, not to a folder or list.",
            hint="Give the folders of all targets one after the other.",
        )
    for name in data:
        BENCHMARKS[which_data(name)["benchmark"]].refuse_unused_root(root)
    from peerdg.data.own_data import read_targets
    from peerdg.evaluate.accuracy import BINS
    from peerdg.files import write_json
    from peerdg.model import load_model
    from peerdg.report.evaluation import write_evaluation
    from peerdg.report.figures import pyplot
    from peerdg.run.progress import ReadingBar

    if report is not None:
        pyplot()  # refuse a missing library before the work, not after it
    model = load_model(run, device=device)
    with contextlib.closing(ReadingBar(error_console)) as bar:
        domains, known = _named_domains(model, run, data, root, target, class_map, bar)
        if own:
            settings = OwnDataSettings(
                size=model.stored_size,
                layout=layout,
                skip_bad_images=skip_bad_images,
                class_map=class_map or None,
            )
            read = read_targets(
                own, classes=model.classes, settings=settings, also_known=known, progress=bar
            )
            domains |= {f"own-{n}" if n in domains else n: domain for n, domain in read.items()}
        elif known:
            check_class_map(parse_class_map(class_map), theirs=known, ours=model.classes)
    domains = {name: replace(domain, name=name) for name, domain in domains.items()}
    details = [model.evaluate_in_detail(domain, worst=worst) for domain in domains.values()]
    _print(details)
    if json_file is not None:
        stored = ("backbone", "classes", "image_size", "stored_size", "weights_sha256")
        record: dict[str, Any] = {
            "model": {key: model.description[key] for key in stored},
            "calibration_bins": BINS,
            "domains": [detail.to_dict() for detail in details],
            **({"class_map": parse_class_map(class_map)} if class_map else {}),
            "peerdg": __version__,
        }
        write_json(json_file, record)
    if report is not None:
        backbone = model.description["backbone"]
        title = f"{backbone}, {len(model.classes)} classes, on {len(details)} domains"
        page = write_evaluation(details, domains, report, title=title)
        console.print(f"Report in {page}")


def _named_domains(
    model: "Model",
    run: Path,
    data: tuple[str, ...],
    root: str | None,
    target: tuple[str, ...] | None,
    class_map: tuple[str, ...],
    progress: "Progress",
) -> "tuple[dict[str, Domain], set[str]]":
    """Read the domains of the data sets that are named, or of the run's own data.

    Returns:
        The domains with labels in the model's class order, and the class names of the data sets
        that are named.
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
    domains: dict[str, Domain] = {}
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
            free = f"{started['benchmark']}-{name}" if name in domains else name
            domains[free] = domain.with_classes(model.classes, renamed)
    return domains, known


def _print(details: "list[DomainReport]") -> None:
    """Print each domain in detail, then the summary, where a person looks first."""
    from peerdg.report import evaluation

    for detail in details:
        console.print(visible(detail.domain), style="bold")
        for text in evaluation.remarks(detail):
            console.print(visible(text))
        tables = [evaluation.class_table(detail), evaluation.confusion_table(detail)]
        if detail.worst:
            tables.append(evaluation.mistakes_table(detail))
        for table in tables:
            if table is not None:
                console.print(table, "")
    console.print(evaluation.summary_table(details))
