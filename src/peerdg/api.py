"""Train from Python: `fit` one method, `bench` several, or `combine` runs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from peerdg.benches.bench import run_bench
from peerdg.benches.plan import make_plan
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA, OwnDataSettings, find_data
from peerdg.data.classes import class_map_entries
from peerdg.data.objects import as_domain
from peerdg.data.splits import Splits, hold_out
from peerdg.errors import ConfigError
from peerdg.methods.registry import method_names
from peerdg.model import Model, load_model, make_model
from peerdg.models.names import Outputs, Rule
from peerdg.models.stored import OWN, load_stored
from peerdg.options import build
from peerdg.run.combine import combine as combine_runs
from peerdg.run.config import RunConfig, plugin_method, resolve_given
from peerdg.run.folder import Existing, RunFolder
from peerdg.run.progress import ProgressDisplay, choose_progress
from peerdg.run.run import start_run
from peerdg.terminal import Terminal


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its options and the deployed model."""

    path: Path
    config: RunConfig
    model: Model

    @property
    def records(self) -> list[dict[str, Any]]:
        """Records of all epochs and evaluations, in order."""
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
    """Train on one domain and evaluate on the others.

    Args:
        data: Benchmark name, folder or list of your own images, `Splits`, or anything that
            `as_domain` accepts, such as `(images, labels)` or a Hugging Face dataset. In-memory
            data other than `Splits` is split into training and validation images.
        out: Run folder to create.
        existing: Behavior if `out` already contains a run: `"refuse"`, `"resume"`, `"renew"`
            (resume, or start over if the data has changed) or `"overwrite"`.
        progress: Progress display. By default, progress is shown in a terminal or notebook. True
            always shows it on standard error, False never does.
        model: Your own network to train instead of a named backbone. A `Classifier` is trained in
            place, and its classes are matched to the classes of the data by name. Any other module
            is copied first (see `Classifier.from_module`).
        class_map: Mapping from target class names to source class names: `{"Dog": "dog"}`.
        profile: Whether to time each stage and write the result to `profile.json`.
        minutes: Approximate duration of a new run. It determines the number of epochs and k.
        plugin: Python file that defines a method. It is executed, and its method is trained unless
            `method` names another one.
        options: Options of `RunConfig`: `method="peer"`, `budget="quick"`, `seed=1`,
            `targets="sketch"`, and sections as dictionaries: `train={"epochs": 5}`,
            `peer={"k": 1}`, `m_ada={...}` for `m-ada`. With in-memory data, `targets` maps
            domain names to data of the same kind.

    Example:
        >>> run = peerdg.fit("digits-mini", out="runs/first", budget="quick")
        >>> run.model.predict("digit.png")
    """
    with ExitStack() as stack:
        if plugin is not None:
            options = {"method": stack.enter_context(plugin_method(Path(plugin))).name, **options}
        given = _nested(data, options, class_map)
        splits = None
        if model is not None:
            given["backbone"] = OWN
        if not isinstance(data, str | Path):
            splits = _in_memory(data, given)
            given.pop("targets", None)
        config, _ = resolve_given(given, splits=splits)
        config, network = start_run(
            config,
            Path(out),
            existing=existing,
            progress=choose_progress(progress),
            splits=splits,
            model=model,
            profile=profile,
            minutes=minutes,
            options=given,
        )
        description = load_stored(Path(out) / "model", network)[1]
        return Run(Path(out), config, make_model(network, description, Path(out)))


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

    Each run is a separate process. Call `bench` again to resume unfinished runs.

    Args:
        data: Benchmark name, or a folder or list of your own images.
        methods: Names of methods and recipes, as listed by `peerdg methods`.
        out: Folder for runs and results.
        seeds: Number of seeds, counted from 0, or a list of seeds.
        reference: Method to compare the others with. Default: plain training, or the first method.
        jobs: Number of parallel runs. They share the cores.
        until: Epoch at which to stop and compare all runs. A later call continues them.
        records: Folders of earlier benches. Rows found there are not trained again.
        overwrite: Whether to replace an existing bench in `out`.
        progress: Whether to show progress on standard error. Default: in a terminal or notebook.
        class_map: Mapping from target class names to source class names.
        plugin: Python file that defines a method. It is executed.
        options: Options for all runs, same as for `fit`, except method, seed and average.

    Returns:
        The table as plain data: `rows` has one dictionary per method, `failures` the reason for
        each failed run, and `page` the path of the report. See docs/bench.md.
    """
    given = _nested(data, options, class_map)
    with nullcontext() if plugin is None else plugin_method(Path(plugin)):
        plan = make_plan(
            given,
            methods=methods.split(",") if isinstance(methods, str) else methods,
            seeds=range(seeds) if isinstance(seeds, int) else seeds,
        )
        console = Terminal(stderr=True, highlight=False)
        is_shown = console.is_terminal or console.is_jupyter if progress is None else progress
        files = [records] if isinstance(records, str | Path) else records
        result = run_bench(
            plan,
            Path(out),
            jobs=jobs,
            until=until,
            records=[Path(file) for file in files],
            reference=reference,
            overwrite=overwrite,
            console=console if is_shown else None,
        )
    return {**asdict(result.table), "failures": dict(result.failures), "page": str(result.page)}


def combine(
    runs: Iterable[str | Path],
    *,
    out: str | Path,
    rule: Rule = "uniform",
    outputs: Outputs | None = None,
    root: str | Path | None = None,
    data: Splits | None = None,
    network: nn.Module | None = None,
) -> Model:
    """Combine several runs into one model with its own folder.

    Average weights only if the runs start from the same weights, that is, if they have the same
    seed and different values of `train_seed`. Outputs can always be averaged.

    Args:
        runs: Run folders or model folders, at least two.
        out: Model folder to create.
        rule: `"uniform"` averages the weights of all runs. `"greedy"` skips runs that lower the
            accuracy on the source's validation images. `"ensemble"` averages the outputs.
        outputs: Outputs that an ensemble averages: `"probabilities"` (default) or `"logits"`.
        root: Data folder, if it has moved.
        data: Training data, if the runs were trained on in-memory data.
        network: Network to load the weights into, if you trained your own.

    Example:
        >>> model = peerdg.combine(["runs/a", "runs/b"], out="combined")
        >>> model.predict("image.png")
    """
    combine_runs(
        [Path(run) for run in runs],
        Path(out),
        rule=rule,
        outputs=outputs,
        root=None if root is None else str(root),
        splits=data,
        network=network,
    )
    return load_model(out, network=network)


def _nested(
    data: Any, options: Mapping[str, Any], class_map: Mapping[str, str] | None
) -> dict[str, Any]:
    """Arrange options as in a config file. The keyword `m_ada` becomes the section `m-ada`."""
    sections = {name.replace("-", "_"): name for name in (*method_names(), *BENCHMARKS)}
    nested = {sections.get(key, key): value for key, value in options.items()}
    if class_map is not None:
        own_data = nested.get(OWN_DATA, {})
        nested[OWN_DATA] = {**own_data, "class_map": class_map_entries(class_map)}
    if not isinstance(data, str | Path):
        return {"benchmark": OWN_DATA, **nested}
    targets = nested.get("targets")
    if isinstance(targets, Mapping):
        hint = "Pass target names or folders (targets=['sketches']), or all data in memory."
        raise ConfigError("In-memory targets require in-memory training data.", hint=hint)
    if isinstance(targets, Path | list | tuple):
        several = [targets] if isinstance(targets, Path) else targets
        nested["targets"] = [str(each) if isinstance(each, Path) else each for each in several]
    return {**nested, **find_data(data)}


def _in_memory(data: Any, options: Mapping[str, Any]) -> Splits:
    """Convert in-memory data to splits, and hold out validation images if there are none."""
    targets = options.get("targets")
    if isinstance(data, Splits):
        if targets is not None:
            raise ConfigError("Targets are given twice: in the `Splits` and as `targets`.")
        return data
    settings = build(OwnDataSettings, options.get(OWN_DATA, {}), where=OWN_DATA)
    source = as_domain(data, size=settings.size)
    train, validation = hold_out(source, settings.validation_fraction, settings.split_seed)
    return Splits(train, validation, targets)
