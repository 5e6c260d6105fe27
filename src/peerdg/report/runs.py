"""Read runs for reports: from their folders, or from the records of a report.

Records are three files for any number of runs. `runs.json` has the options, versions and
fingerprints of each run, `evaluations.csv` the number of correct predictions of each model after
each epoch, and `epochs.csv` the losses, policies and seconds of each epoch. Rows that several runs
share are stored once.
"""

import csv
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from peerdg.averages.average_options import KINDS
from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED, is_target
from peerdg.data.benchmarks import OWN_DATA
from peerdg.errors import ConfigError, DamagedError, PeerdgError, PeerdgWarning
from peerdg.evaluate.fluctuation import (
    BURN_IN_PERIODS,
    RunFluctuation,
    accuracy_series,
    late_mean,
    run_fluctuation,
)
from peerdg.evaluate.selection import best_so_far
from peerdg.files import read_json, reading, replace_atomically
from peerdg.methods.base import MethodSettings
from peerdg.methods.registry import (
    METHODS,
    is_reconstruction,
    model_options_of,
    own_augment_of,
    settings_of,
    stored_settings,
)
from peerdg.models.names import OWN
from peerdg.options import dotted, merge, nested, to_dict
from peerdg.run.config import DATA_PLACES, MAY_CHANGE
from peerdg.run.folder import RunFolder, Status, read_run_config
from peerdg.run.records import NOTHING_LEARNED
from peerdg.terminal import visible

FORMAT = 1
RECORDS, EVALUATIONS, EPOCHS = "runs.json", "evaluations.csv", "epochs.csv"
MARK = "†"
DEPENDS_ON_LENGTH = {"swa", "sma", "swad"}  # averages that depend on the length of the run
UNKNOWN = "unknown"

# Options that may differ within a variant. Batch statistics are compared separately, because not
# every network has them.
_WITHOUT_EFFECT = {*MAY_CHANGE, "seed", "recipe", "keep_snapshots", "select", "batch_statistics"}
_FROM_MANIFEST = ("images", "weights_sha256", "models", "network", "network_weights", "software",
                  "oracle")  # fmt: skip
_SHORT_HASH = 12  # characters
_DIGITS = 5  # significant digits of a stored loss


@dataclass(frozen=True, eq=False, kw_only=True)
class RunResult:
    """Options and results of one run, or of one method of a shared run."""

    path: Path  # run folder, or its name if the run was read from records
    stored: Path | None = None  # run folder of the deployed model, None if it is not at hand
    config: dict[str, Any]  # options, nested as in a config file
    status: Status = "done"
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # per epoch, model and domain
    epochs: list[dict[str, Any]] = field(default_factory=list)  # losses, policy, steps and seconds
    trained: str = "model"  # name of the trained network among the evaluated ones
    deployed: str = "model"
    batch_statistics: str | None = None  # source of evaluation statistics, None without batch norm
    peak_memory: int | None = None  # peak memory of the process in bytes
    collapsed: tuple[str, ...] = ()  # phases after which all images get the same class
    fingerprints: dict[str, str] = field(default_factory=dict)  # by part of the data
    images: dict[str, int] = field(default_factory=dict)  # number of images per part of the data
    weights_sha256: str | None = None  # hash of the initial weights file
    models: dict[str, str] = field(default_factory=dict)  # hashes of input models, by option
    network: str | None = None  # architecture fingerprint of the user's own network
    network_weights: str | None = None  # fingerprint of its initial weights
    software: tuple[str, ...] = ()  # versions used for training
    oracle: bool = False  # whether the run, or one of its input models, was trained on targets
    folder: str | None = None  # name of the folder or list of the user's own images
    profile: dict[str, Any] | None = None  # seconds by stage, if measured
    row: str = ""  # name of its row in a bench
    shared_with: tuple[str, ...] = ()  # other methods that share the run
    combined_from: tuple[str, ...] = ()  # names of the runs that were combined
    is_taken: bool = False  # whether its bench reused it from another bench's records
    planned_epochs: int | None = None  # full length of a run that `as_of` cut off

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def data(self) -> str:
        """Name of the data set, or of the folder or list of the user's own images."""
        benchmark = str(self.config["benchmark"])
        return self.folder or benchmark if benchmark == OWN_DATA else benchmark

    @property
    def method(self) -> str:
        """Name of the recipe, or of the method with its average and augmentation.

        The deployed average and the augmentation are only included if they are not the method's
        usual ones.
        """
        method = str(self.config["method"])
        own = None if self.settings is None else self.settings.own_average
        kind = next(iter(self.config.get("average", {}).get("kind", ())), own)
        name = str(self.config.get("recipe") or (method if kind == own else f"{method}+{kind}"))
        usual = own_augment_of(str(self.config.get("recipe") or method))
        augment = str(self.config.get("augment", {}).get("kind"))
        if self.augments and usual not in (None, augment):
            name = f"{name}+{augment}"
        return f"{name} (oracle)" if self.oracle and "oracle" not in name else name

    @property
    def is_reconstruction(self) -> bool:
        """Whether neither code nor values were published for the method on this data."""
        names = (str(self.config.get("recipe") or ""), str(self.config["method"]))
        return any(is_reconstruction(name, str(self.config["benchmark"])) for name in names)

    @cached_property
    def settings(self) -> MethodSettings | None:
        """Settings of the method. None if the method's plugin is not loaded."""
        return stored_settings(self.config["method"], self.config.get(self.config["method"], {}))

    @property
    def augments(self) -> bool:
        """Whether the run was trained on augmented images. True if the method is unknown."""
        return self.settings is None or self.settings.augments

    @property
    def inert(self) -> str | None:
        """Why the method had no effect, judging by the records (see `MethodSettings.inert`)."""
        epochs = [epoch for epoch in self.epochs if epoch["phase"] == "train"]
        return None if self.settings is None else self.settings.inert(epochs)

    @property
    def is_plain(self) -> bool:
        """Whether the run is plain cross-entropy training on clean source images."""
        averages = self.deployed != self.trained or self.combined_from
        known = self.settings is not None and self.settings.is_baseline
        return known and not (self.augments or averages or self.oracle)

    @property
    def options(self) -> dict[str, Any]:
        """Flat options and inputs that affect the result, e.g. `{"train.lr": 0.1}`."""
        decisive = {k: v for k, v in self.config.items() if k not in _WITHOUT_EFFECT}
        options = {k: v for k, v in dotted(decisive).items() if k not in DATA_PLACES}
        if not self.augments:
            options = {k: v for k, v in options.items() if not k.startswith("augment.")}
        if self.weights_sha256 is not None:
            name = Path(self.config["weights"]).name
            options["weights"] = f"{name}@{self.weights_sha256[:_SHORT_HASH]}"
        for option, digest in self.models.items():
            name = Path(str(options.get(option))).name
            options[option] = f"{name}@{digest[:_SHORT_HASH]}"
        if self.config["backbone"] == OWN:
            options["network"] = self.network or UNKNOWN
        options["batch_statistics"] = self.batch_statistics
        if not self.grows_with_pool:  # `epoch_of` has no effect without a growing pool
            options.pop("train.epoch_of", None)
        options.pop("pretrain.epoch_of", None)
        if self.combined_from:
            options["combination"] = self.config.get("recipe")
        return options

    @property
    def variant(self) -> str:
        """Key shared by all runs that differ only in their seed."""
        kinds = {*self.config.get("average", {}).get("kind", ())}
        depends = kinds & DEPENDS_ON_LENGTH or "lr_step" in self.config["train"]
        length = {"planned epochs": self.planned_epochs} if depends and self.planned_epochs else {}
        return json.dumps({**self.options, **length}, sort_keys=True, default=str)

    @property
    def grows_with_pool(self) -> bool:
        """Whether epochs become longer as the method generates images."""
        fixed = self.config["train"].get("steps_per_epoch") is not None
        return not fixed and self.settings is not None and self.settings.trains_on_pool

    @property
    def k(self) -> int | None:
        """Period of the method in epochs. None if the method has none."""
        return self.settings.period if self.settings and self.settings.period_option else None

    @property
    def period(self) -> int:
        """Epochs between the evaluations used for fluctuation: k, or a multiple of it."""
        evaluated = int(self.config["evaluate_every"])
        return math.lcm(self.k or evaluated, evaluated)

    @cached_property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(r["domain"] for r in self.evaluations))

    @property
    def targets(self) -> list[str]:
        return list(filter(is_target, self.domains))

    @property
    def voting(self) -> list[str]:
        """Evaluated crafted domains from families that do not overlap with RandAugment."""
        families = {CRAFTED + family for family in DISJOINT}
        return [domain for domain in self.domains if domain in families]

    @property
    def networks(self) -> list[str]:
        """Names of the evaluated networks."""
        return list(dict.fromkeys(r["model"] for r in self.evaluations))

    @property
    def deployed_epoch(self) -> int:
        """Epoch of the deployed model, which `--select` chooses."""
        rule = self.config.get("select", "last")
        if rule == "last":
            return int(self.evaluations[-1]["epoch"])
        return best_so_far(self.evaluations, rule, model=self.deployed)

    def final(self, model: str) -> dict[str, float]:
        """Return the last accuracy of `model` on each domain."""
        return {r["domain"]: r["accuracy"] for r in self.evaluations if r["model"] == model}

    def size(self, *domains: str) -> int | None:
        """Return the image count of the smallest domain, or None if none was evaluated."""
        sizes = (r["n"] for r in self.evaluations if r["domain"] in domains)
        return min(sizes, default=None)

    def mean(self, model: str, domains: Sequence[str]) -> float | None:
        """Return the unweighted mean of the last accuracies, or None if there are no domains."""
        final = self.final(model)
        return sum(final[domain] for domain in domains) / len(domains) if domains else None

    def score(self, model: str) -> float | None:
        """Return the target mean, or the crafted mean if there are no targets."""
        return self.mean(model, self.targets or self.voting)

    def fluctuation(
        self, model: str, *, every: int | None = None, burn_in_periods: int = BURN_IN_PERIODS
    ) -> RunFluctuation | None:
        """Return the fluctuation of `model` over evaluations every k epochs, or None if too few."""
        period = {"every": every or self.period, "burn_in_periods": burn_in_periods}
        return run_fluctuation(accuracy_series(self.evaluations, model=model, **period))

    def steadiness(self, model: str, *, every: int) -> float | None:
        """Compute the standard deviation of target accuracy around its trend, in points."""
        fluctuation = self.fluctuation(model, every=every)
        return None if fluctuation is None else math.sqrt(fluctuation.mean.detrended_var)

    def late_mean(self, model: str, *, every: int) -> float | None:
        """Average the target mean over the last evaluations. Return None if there are too few."""
        series = accuracy_series(self.evaluations, model=model, every=every, burn_in_periods=0)
        return late_mean(series)

    def _phase(self, phase: str) -> list[dict[str, Any]]:
        return [epoch for epoch in self.epochs if epoch["phase"] == phase and "seconds" in epoch]

    @property
    def seconds(self) -> float:
        """Time of all training epochs, excluding interruptions."""
        return sum(map(self.phase_seconds, ("pretrain", "train")))

    def phase_seconds(self, phase: str) -> float:
        """Time of a phase. Steps that were not timed after a stop count as average steps."""
        epochs = self._phase(phase)
        untimed = sum(epoch["steps"] - _timed_steps(epoch) for epoch in epochs)
        per_step = _seconds_per_step(epochs) or 0.0
        return float(sum(epoch["seconds"] for epoch in epochs) + untimed * per_step)

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step of the main phase. None if not recorded."""
        return _seconds_per_step(self._phase("train"))

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the main phase. None if not recorded."""
        # Keyed by epoch, so that the equally long runs of a combination count once.
        steps = {epoch["epoch"]: epoch["steps"] for epoch in self._phase("train")}
        return sum(steps.values()) if steps else None


def _timed_steps(epoch: Mapping[str, Any]) -> int:
    return min(int(epoch.get("timed_steps", epoch["steps"])), int(epoch["steps"]))


def _seconds_per_step(epochs: Sequence[Mapping[str, Any]]) -> float | None:
    steps = sum(map(_timed_steps, epochs))
    return sum(float(epoch["seconds"]) for epoch in epochs) / steps if steps else None


def as_of(run: RunResult, epoch: int) -> RunResult:
    """Cut off a run's results after this epoch of its main phase. Peak memory is unchanged."""
    epochs = run.config["train"]["epochs"]
    train = {**run.config["train"], "epochs": min(epoch, epochs)}
    return replace(
        run,
        status="done",
        planned_epochs=run.planned_epochs or (epochs if epoch < epochs else None),
        config={**run.config, "train": train},
        evaluations=[record for record in run.evaluations if record["epoch"] <= epoch],
        epochs=[e for e in run.epochs if e["phase"] != "train" or e["epoch"] <= epoch],
    )


# Run folders.


def collect_runs(places: Iterable[Path]) -> list[RunResult]:
    """Read all runs in or below `places`, folders or records. Warn about unreadable ones."""
    runs, folders = [], {}
    for place in places:
        if not place.exists():
            raise ConfigError(f"There is no {place}.", hint="`peerdg runs` lists all runs.")
        if place.is_file() or (place / RECORDS).is_file():
            runs += load_runs(place)
        else:
            configs = sorted(place.rglob("config.toml"))
            paths = [file.parent for file in configs if (file.parent / "events.jsonl").exists()]
            folders.update({path.resolve(): path for path in paths})
    for path in folders.values():
        try:
            with reading(path):
                runs.append(read_run(path))
        except PeerdgError as error:
            message = f"The run in {visible(str(path))} is skipped: {error.message}"
            warnings.warn(message, PeerdgWarning, stacklevel=2)
    return runs


def read_run(path: Path) -> RunResult:
    """Read one run folder."""
    run = RunFolder(path)
    config = _with_new_options(read_run_config(path))
    manifest = run.manifest
    evaluations = read_evaluations(run)
    events = run.events.read()
    done = read_json(run.done_file) if run.done else {}
    names = list(dict.fromkeys(r["model"] for r in evaluations)) or ["model"]
    trained = [manifest.trained if manifest else None, names[0]]
    deployed = [done.get("deployed"), manifest.deployed if manifest else None, names[-1]]
    statistics = {r["batch_statistics"] for r in evaluations if "batch_statistics" in r}
    is_own = config["benchmark"] == OWN_DATA and isinstance(config.get("root"), str)
    result = RunResult(
        path=path,
        stored=path,
        config=config,
        status=run.status(),
        evaluations=evaluations,
        epochs=_merge_epochs(run.metrics.read(), events),
        trained=next(name for name in trained if name in names),
        deployed=next(name for name in deployed if name in names),
        batch_statistics=" and ".join(sorted(statistics)) or None,
        peak_memory=max((e["peak_memory"] for e in events if e.get("peak_memory")), default=None),
        collapsed=tuple(dict.fromkeys(e["phase"] for e in events if e["event"] == NOTHING_LEARNED)),
        folder=Path(config["root"]).name or None if is_own else None,
        profile=read_json(run.profile_file) if run.profile_file.exists() else None,
    )
    if manifest is not None:
        inputs = {name: getattr(manifest, name) for name in _FROM_MANIFEST}
        result = replace(result, fingerprints=manifest.data, **inputs)
    if done and done.get("accuracy") != {name: result.final(name) for name in result.networks}:
        raise DamagedError(
            f"{visible(str(run.metrics.path))} does not match the results in {run.done_file}.",
            hint="Restore both from a backup.",
        )
    return result


def read_evaluations(run: RunFolder) -> list[dict[str, Any]]:
    """Read the evaluations of a run, except an incomplete last one."""
    records = [r for r in run.metrics.read() if r["kind"] == "evaluation"]
    by_epoch: dict[int, list[tuple[str, str]]] = {}
    for record in records:
        by_epoch.setdefault(record["epoch"], []).append((record["model"], record["domain"]))
    groups = [sorted(group) for group in by_epoch.values()]
    if not run.done_file.exists() and len(groups) > 1 and len(groups[-1]) < len(groups[0]):
        *_, torn = by_epoch  # the process was killed; a resumed run repeats the evaluation
        records = [record for record in records if record["epoch"] != torn]
        groups.pop()
    if any(group != groups[0] for group in groups):
        raise DamagedError(
            f"{visible(str(run.metrics.path))} is damaged: an evaluation is incomplete."
        )
    return records


def _merge_epochs(
    records: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Join losses and times by phase and epoch. The last record of a repeated epoch wins."""
    epochs: dict[tuple[str, int], dict[str, Any]] = {}
    lines = [r for r in records if r["kind"] == "epoch"]
    lines += [event for event in events if event["event"] == "epoch"]
    for line in lines:
        values = {k: v for k, v in line.items() if k not in ("kind", "event", "time")}
        epochs.setdefault((line["phase"], line["epoch"]), {}).update(values)
    return list(epochs.values())


# Records.

_ELSEWHERE = ("path", "stored", "evaluations", "epochs", "profile")
_STORED = [f for f in fields(RunResult) if f.name not in _ELSEWHERE]


def save_runs(folder: Path, runs: Sequence[RunResult]) -> None:
    """Save the records of runs, without local paths."""
    entries: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    epochs: list[dict[str, Any]] = []
    stored: dict[str, str] = {}  # maps rows to the run that stores them
    names = numbered([run.path.name or run.path.resolve().name for run in runs])
    for name, run in zip(names, runs, strict=True):
        entry = {
            "name": name,
            **{f.name: v for f in _STORED if (v := getattr(run, f.name)) and v != f.default},
            "config": dict(sorted(dotted(_without_places(run.config)).items())),
            "sizes": {record["domain"]: record["n"] for record in run.evaluations},
            "evaluations": {},
        }
        for model in run.networks:
            rows = _evaluation_rows(run, model)
            entry["evaluations"][model] = owner = stored.setdefault(json.dumps([model, rows]), name)
            if owner == name:
                evaluations += [{"run": name, "model": model, **row} for row in rows]
        rows = [_epoch_row(epoch) for epoch in run.epochs]
        entry["epochs"] = stored.setdefault(json.dumps(rows), name)
        if entry["epochs"] == name:
            epochs += [{"run": name, **row} for row in rows]
        entries.append(entry)
    _write_csv(folder / EVALUATIONS, evaluations)
    _write_csv(folder / EPOCHS, epochs)
    common = _take_common(entries)
    entries = [{key: value for key, value in entry.items() if value} for entry in entries]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    shared = json.dumps(common, indent=1, ensure_ascii=False)
    with replace_atomically(folder / RECORDS) as temporary:
        text = f'{{"format": {FORMAT},\n"common": {shared},\n"runs": [\n{lines}\n]}}\n'
        temporary.write_text(text, "utf-8")


def numbered(names: Sequence[str]) -> list[str]:
    """Number repeated names: `a (1)`, `b`, `a (2)`."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def _take_common(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Remove the values that all entries share, and return them."""
    common: dict[str, Any] = {}
    for key, first in list(entries[0].items()):
        values = [entry.get(key) for entry in entries]
        tables = [value for value in values if isinstance(value, dict)]
        if isinstance(first, dict) and len(tables) == len(values):
            equal = {k: v for k, v in first.items() if all(o.get(k, o) == v for o in tables)}
            common[key] = equal
            for entry in entries:
                entry[key] = {k: v for k, v in entry[key].items() if k not in equal}
        elif all(value == first for value in values):
            common[key] = first
            for entry in entries:
                del entry[key]
    return common


def _evaluation_rows(run: RunResult, model: str) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for record in (r for r in run.evaluations if r["model"] == model):
        row = rows.setdefault(record["epoch"], {"epoch": record["epoch"]})
        row[f"correct {record['domain']}"] = round(record["accuracy"] * record["n"] / 100)
        if record.get("loss") is not None:
            row[f"loss {record['domain']}"] = _rounded(record["loss"])
    return list(rows.values())


def _epoch_row(epoch: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten an epoch. Drop values of averages, which depend on the methods that share a run."""
    values = dotted({key: value for key, value in epoch.items() if key not in KINDS})
    return {key: v if key == "seconds" else _rounded(v) for key, v in values.items()}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = dict.fromkeys(column for row in rows for column in row)
    with replace_atomically(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()})


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drop local paths, because records are meant to be shared."""
    shared = {k: v for k, v in config.items() if k not in MAY_CHANGE}
    for section, _, key in (name.partition(".") for name in DATA_PLACES):
        if section in shared:
            shared[section] = {k: v for k, v in shared[section].items() if k != key}
    if shared.get("weights"):
        shared["weights"] = Path(shared["weights"]).name
    method = shared["method"]
    models = {name: shared.get(method, {}).get(name) for name in model_options_of(method)}
    names = {name: Path(path).name for name, path in models.items() if isinstance(path, str)}
    return {**shared, method: {**shared[method], **names}} if names else shared


def load_runs(path: Path) -> list[RunResult]:
    """Load runs saved by `save_runs`, from the folder or its `runs.json`."""
    folder = path.parent if path.is_file() else path
    runs = []
    with reading(folder / RECORDS):
        content = read_json(folder / RECORDS, format=FORMAT)
        evaluations = _read_csv(folder / EVALUATIONS, "run", "model")
        epochs = _read_csv(folder / EPOCHS, "run")
        for entry in content["runs"]:
            values = merge(content["common"], entry)
            records = [
                {"kind": "evaluation", "epoch": row["epoch"], "model": model, "domain": domain,
                 "n": n, "accuracy": 100 * row[f"correct {domain}"] / n,
                 "loss": row.get(f"loss {domain}")}
                for model, owner in values["evaluations"].items()
                for row in evaluations[owner, model]
                for domain, n in values["sizes"].items()
                if f"correct {domain}" in row
            ]  # fmt: skip
            if any(not 0 <= record["accuracy"] <= 100 for record in records):
                raise ValueError("it has more correct predictions than images")
            stored = {f.name: values[f.name] for f in _STORED if f.name in values}
            stored |= {k: tuple(v) for k, v in stored.items() if isinstance(v, list)}
            stored["config"] = _with_new_options(nested(values["config"]))
            stored["evaluations"] = sorted(records, key=lambda record: record["epoch"])
            stored["epochs"] = [nested(row) for row in epochs.get((values["epochs"],), ())]
            runs.append(RunResult(path=Path(values["name"]), **stored))
    return runs


def _with_new_options(config: dict[str, Any]) -> dict[str, Any]:
    """Add the defaults of options that the method did not have when it was trained."""
    method = str(config["method"])
    if method not in METHODS:  # a plugin that is not loaded
        return config
    return {**config, method: {**to_dict(settings_of(method)()), **config.get(method, {})}}


def _read_csv(path: Path, *key: str) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Read the rows by the columns in `key`, without empty cells."""
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            place = tuple(line.pop(name) for name in key)
            rows.setdefault(place, []).append({k: _value(v) for k, v in line.items() if v})
    return rows


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell
