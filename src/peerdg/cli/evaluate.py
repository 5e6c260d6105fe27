"""`peerdg evaluate`: evaluate a trained model on other images."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from peerdg import __version__
from peerdg.data.benchmarks import OWN_DATA, OwnDataSettings, find_data
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.errors import ConfigError
from peerdg.run.hardware import DEVICES
from peerdg.terminal import console, error_console, visible

if TYPE_CHECKING:
    from peerdg.data.domain import Domain
    from peerdg.data.read import Progress
    from peerdg.evaluate.accuracy import DomainReport

_DATA = "folders or lists of labeled images, or a data set; default: the run's data"


def evaluate(
    run: Path,
    data: Annotated[tuple[str, ...], Parameter(help=_DATA)] = (),
    /,
    *,
    root: Annotated[str | None, Parameter(help="folder with the data set's files")] = None,
    target: tuple[str, ...] = (),
    json_file: Annotated[Path | None, Parameter(name="--json")] = None,
    report: Path | None = None,
    worst: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 12,
    layout: Literal["auto", "classes", "domains"] = "auto",
    skip_bad_images: bool = False,
    class_map: Annotated[tuple[str, ...], Parameter(name="--map")] = (),
    device: Annotated[str, Parameter(help=DEVICES)] = "auto",
) -> None:
    """Print accuracy by class, confusion matrix, calibration error and worst mistakes.

    Classes are matched by name. A folder may lack some of the model's classes. A class that the
    model does not know is an error (code 5). Rename it with --map.

    Example: `peerdg evaluate runs/first sketches/ --map Dog=dog --report sketches.html`

    Args:
        run: Run folder or model folder.
        target: Target domain of a data set. Repeat it for several.
        json_file: JSON file to write all results to.
        report: HTML file to write a page to, with confusion matrices and the worst mistakes.
        worst: Number of most confident mistakes to show.
        layout: Whether top-level folders are classes or domains, if ambiguous.
        skip_bad_images: Skip images that cannot be decoded, and count them.
        class_map: Rename a class of the images, e.g. Dog=dog. Repeat it for several.
    """
    sources = [find_data(name) for name in data]
    own = [each.get("root", OWN_DATA) for each in sources if each["benchmark"] == OWN_DATA]
    if own and (root or target):
        raise ConfigError(
            "--root and --target apply to data sets, not to folders or lists.",
            hint="List all target folders one after another.",
        )
    from peerdg.data.own_data import read_targets
    from peerdg.evaluate.accuracy import BINS
    from peerdg.files import write_json
    from peerdg.model import load_model
    from peerdg.report.html import page_file, uplot
    from peerdg.report.pages import write_evaluation_page
    from peerdg.run.progress import ReadingBar

    if report is not None:
        report = page_file(report)
        uplot()  # fail early if it is not installed
    model = load_model(run, device=device)
    given: dict[str, Any] = {"root": root} if root else {}
    given |= {"targets": list(target)} if target else {}
    named = [each for each in sources if each["benchmark"] != OWN_DATA]
    with contextlib.closing(ReadingBar(error_console)) as bar:
        sets = named if data else [_run_data(run)]
        domains, known = _read_sets(sets, given, class_map, model.classes, bar)
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
        title = f"{run} ({backbone}) on {', '.join(detail.domain for detail in details)}"
        page = write_evaluation_page(details, domains, report, title=title)
        console.print(f"Page: {page}")


def _run_data(run: Path) -> dict[str, Any]:
    from peerdg.run.config import resolve, without_method
    from peerdg.run.folder import read_run_config

    if not (run / "config.toml").is_file():
        raise ConfigError(f"{run} is only a model folder.", hint="Name the images to evaluate.")
    return resolve(without_method(read_run_config(run))).tables()


def _read_sets(
    sets: Sequence[Mapping[str, Any]],
    given: Mapping[str, Any],
    class_map: tuple[str, ...],
    classes: tuple[str, ...],
    progress: "Progress",
) -> "tuple[dict[str, Domain], set[str]]":
    """Read data sets with labels that index `classes`, and return their original class names."""
    from peerdg.run.config import resolve_given
    from peerdg.run.prepare import load_splits, natural_domains

    domains: dict[str, Domain] = {}
    known: set[str] = set()
    for tables in sets:
        is_own = tables["benchmark"] == OWN_DATA  # reading own data already renames classes
        own = {OWN_DATA: {"class_map": list(class_map)}} if is_own and class_map else {}
        config, _ = resolve_given({**given, **own}, file=tables)
        for name, domain in natural_domains(load_splits(config, progress=progress)).items():
            known.update(() if is_own else domain.classes)
            free = f"{config.benchmark}-{name}" if name in domains else name
            renamed = {} if is_own else parse_class_map(class_map)
            domains[free] = domain.with_classes(classes, renamed)
    return domains, known


def _print(details: "list[DomainReport]") -> None:
    """Print each domain in detail, then the summary."""
    from peerdg.report import evaluation

    for detail in details:
        console.print(visible(detail.domain), style="bold")
        for text in evaluation.remarks(detail):
            console.print(visible(text))
        mistakes = evaluation.mistakes_table(detail) if detail.worst else None
        for table in (evaluation.class_table(detail), evaluation.confusion_table(detail), mistakes):
            if table is not None:
                console.print(table, "")
    console.print(evaluation.summary_table(details))
