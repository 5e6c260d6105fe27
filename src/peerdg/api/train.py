"""Train from Python: `fit` one method, or `bench` several."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from peerdg.api.model import Model, make_model
from peerdg.benches.bench import run_bench
from peerdg.benches.plan import make_plan
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, OwnDataSettings
from peerdg.data.classes import class_map_entries
from peerdg.data.objects import as_domain
from peerdg.data.splits import Splits, hold_out
from peerdg.errors import ConfigError
from peerdg.methods.registry import method_names
from peerdg.models.stored import OWN, load_stored
from peerdg.options import build
from peerdg.run.config import RunConfig, resolve_given
from peerdg.run.folder import Existing, RunFolder
from peerdg.run.plugin import plugin_method
from peerdg.run.progress import ProgressDisplay, choose_progress
from peerdg.run.start import start_run
from peerdg.terminal import Terminal


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        path: Its folder.
        config: Its options.
        model: The deployed model.
    """

    path: Path
    config: RunConfig
    model: Model

    @property
    def records(self) -> list[dict[str, Any]]:
        """Everything measured, in order: epochs and evaluations."""
        return RunFolder(self.path).metrics.read()

    @property
    def accuracy(self) -> dict[str, dict[str, float]]:
        """Final accuracy in percent, by model and domain."""
        result: dict[str, dict[str, float]] = {}
        for record in self.records:
            if record["kind"] == "evaluation":
                result.setdefault(record["model"], {})[record["domain"]] = record["accuracy"]
        return result


def fit(
    data: Any = "digits-mini",
    *,
    out: str | Path,
    existing: Existing = "refuse",
    progress: ProgressDisplay | bool | None = None,
    model: nn.Module | None = None,
    class_map: Mapping[str, str] | None = None,
    profile: bool = False,
    minutes: float | None = None,
    plugin: str | Path | None = None,
    **options: Any,
) -> Run:
    """Train on one domain and watch the others.

    Args:
        data: Name of a benchmark; a folder or list of your own images; domains in memory as
            `Splits`; or anything that `as_domain` takes, such as `(images, labels)` or a Hugging
            Face dataset, of which a part is held out for validation as of a folder.
        out: The run folder to make.
        existing: What to do if `out` holds a run: `"refuse"`, `"resume"`, `"renew"`
            (resume, or replace if the data has changed) or `"overwrite"`.
        progress: Receives what happens; default: shown in a terminal or notebook. False switches
            it off, True shows it anywhere, on standard error.
        model: Your own network to train, in place of a named backbone. A `Classifier` is trained
            itself; its classes are matched with those of the data by name. Of any other module a
            copy is trained, as a `Classifier` with the classes of the data in their order;
            `Classifier.from_module` does that with a normalisation of your choice.
        class_map: For classes that targets call by other names, the names of the source:
            `{"Dog": "dog"}`.
        profile: Measure where the time goes, and leave it in `profile.json`.
        minutes: Choose the number of epochs (and k) so that a new run takes about this long.
        plugin: Python file with a method of your own, which is executed; its method is trained
            unless `method` names another.
        options: The options of `RunConfig`: `method="peer"`, `budget="quick"`, `seed=1`,
            `targets="sketch"`, and sections as dictionaries: `train={"epochs": 5}`,
            `peer={"k": 1}`, `m_ada={...}` for `m-ada`. With data in memory, `targets` is a
            dictionary of such data.

    Returns:
        The finished run, with its model and its records.

    Example:
        >>> run = peerdg.fit("digits-mini", out="runs/first", budget="quick")
        >>> run.model.predict("digit.png")
    """
    with _with_plugin(plugin, options) as options:
        given = _given(data, options, class_map, own_network=model is not None)
        config, classifier = start_run(
            given.config,
            Path(out),
            existing=existing,
            progress=choose_progress(progress),
            splits=given.splits,
            model=model,
            profile=profile,
            minutes=minutes,
            options=given.options,
        )
        description = load_stored(Path(out) / "model", classifier)[1]
        return Run(Path(out), config, make_model(classifier, description, Path(out)))


@contextmanager
def _with_plugin(plugin: str | Path | None, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Inside the block, a plugin's method can be trained; options name it unless they have one."""
    if plugin is None:
        yield options
        return
    with plugin_method(Path(plugin)) as loaded:
        yield {"method": loaded.name, **options}


class _Given(NamedTuple):
    """What a user asked for, resolved."""

    config: RunConfig
    splits: Splits | None  # data in memory
    options: dict[str, Any]  # as given, nested as in a config file


def _given(
    data: Any,
    options: Mapping[str, Any],
    class_map: Mapping[str, str] | None,
    *,
    own_network: bool,
) -> _Given:
    """Resolve data and options to a config.

    Raises:
        ConfigError: If an option is unknown, or does not go together with others.
    """
    splits = None
    options = _by_section(options)
    if not isinstance(data, str | Path):
        splits = _in_memory(data, options)
        options.pop("targets", None)
    elif "targets" in options:
        options["targets"] = _named_targets(options["targets"])
    options |= _class_map_section(options, class_map)
    if own_network:
        options["backbone"] = OWN
    given = {"benchmark": data} if _is_benchmark(data) else {"benchmark": OWN_DATA}
    if splits is None and not _is_benchmark(data):
        given["root"] = str(data)
    config, _ = resolve_given({**given, **options}, splits=splits)
    return _Given(config, splits, options)


def _is_benchmark(data: Any) -> bool:
    """Whether it is the name of a benchmark, and no folder."""
    return isinstance(data, str) and data in BENCHMARKS and data != OWN_DATA


def bench(
    data: str | Path = "digits-mini",
    *,
    methods: Sequence[str] | str,
    out: str | Path,
    seeds: int | Sequence[int] = 5,
    reference: str | None = None,
    jobs: int = 1,
    until: int | None = None,
    records: Sequence[str | Path] | str | Path = (),
    overwrite: bool = False,
    progress: bool | None = None,
    class_map: Mapping[str, str] | None = None,
    plugin: str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train several methods with several seeds on the same data, and compare them.

    Each run is a process of its own. Called again, it goes on with what is not finished.

    Args:
        data: Name of a benchmark, or a folder or list of your own images.
        methods: Objectives and recipes, as `peerdg methods` lists them.
        out: The folder for runs and results.
        seeds: How many, from 0 on, or which.
        reference: The method that differences are to; default: plain training, or the first.
        jobs: Runs at once; they share the cores.
        until: Train each run to this epoch, and compare them there; a later call goes on.
        records: `runs.json` of one or several earlier benches, whose rows are not trained again.
        overwrite: Start anew if there is a bench in `out`.
        progress: Show progress on standard error; default: in a terminal or notebook.
        class_map: For classes that targets call by other names, the names of the source.
        plugin: Python file with a method of your own, which is executed; `methods` names it.
        options: The options of all runs, as for `fit`, but for method, seed and average.

    Returns:
        The table as plain data: `rows` has a dictionary for each method, `failures` says why runs
        failed, `page` is the path of the report. docs/bench.md explains the numbers.

    Raises:
        ConfigError: For an unknown method or option, or if `out` was made with other options.
    """
    given = _by_section(options)
    if "targets" in given:
        given["targets"] = _named_targets(given["targets"])
    given |= _class_map_section(given, class_map)
    own_data = {"benchmark": OWN_DATA, "root": str(data)}
    given |= {"benchmark": data} if _is_benchmark(data) else own_data
    with nullcontext() if plugin is None else plugin_method(Path(plugin)):
        plan = make_plan(
            given,
            methods=methods.split(",") if isinstance(methods, str) else methods,
            seeds=range(seeds) if isinstance(seeds, int) else seeds,
        )
        console = Terminal(stderr=True, highlight=False)
        is_shown = console.is_terminal or console.is_jupyter if progress is None else progress
        files = [records] if isinstance(records, str | Path) else records
        made = run_bench(
            plan,
            Path(out),
            jobs=jobs,
            until=until,
            records=[Path(file) for file in files],
            reference=reference,
            overwrite=overwrite,
            console=console if is_shown else None,
        )
    return {**made.table.plain_data(), "failures": dict(made.failures), "page": str(made.page)}


def _in_memory(data: Any, options: Mapping[str, Any]) -> Splits:
    """Split data from Python, with its targets; what comes without validation images gives some."""
    targets = options.get("targets")
    if isinstance(data, Splits):
        if targets is not None:
            raise ConfigError(
                "Targets are given twice: in the splits, and as an option.",
                hint="Leave targets= out; Splits(targets={...}) has them.",
            )
        return data
    settings = build(OwnDataSettings, options.get(OWN_DATA, {}), where=OWN_DATA)
    source = as_domain(data, size=settings.size)
    train, validation = hold_out(source, settings.validation_fraction, settings.split_seed)
    return Splits(train, validation, targets)


def _named_targets(targets: Any) -> list[str] | None:
    """List the targets of a benchmark or folder: one or several names, folders or lists."""
    if targets is None:
        return None
    several = [targets] if isinstance(targets, str | Path) else targets
    if isinstance(several, list | tuple) and all(isinstance(t, str | Path) for t in several):
        return [str(target) for target in several]
    raise ConfigError(
        f"Targets of a data set by name or a folder were given as a {type(targets).__name__}.",
        hint="Give names or folders, targets=['sketches'], or all data in memory.",
    )


def _class_map_section(
    options: Mapping[str, Any], class_map: Mapping[str, str] | None
) -> dict[str, Any]:
    """Put the class map into the section of own data; nothing without one."""
    if class_map is None:
        return {}
    return {OWN_DATA: {**options.get(OWN_DATA, {}), "class_map": class_map_entries(class_map)}}


def _by_section(options: Mapping[str, Any]) -> dict[str, Any]:
    """Name options by their sections: `m-ada` for `m_ada`."""
    return {_section_name(key): value for key, value in options.items()}


def _section_name(key: str) -> str:
    """Return the section that a Python keyword stands for: `m-ada` for `m_ada`."""
    name = key.replace("_", "-")
    return name if name in method_names() or name in BENCHMARKS else key
