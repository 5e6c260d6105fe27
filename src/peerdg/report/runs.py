"""Read run folders back: what was run, how it went."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from peerdg.crafted.families import DISJOINT
from peerdg.data import CRAFTED, VALIDATION, is_target
from peerdg.data.registry import OWN_DATA
from peerdg.errors import DamagedError, DataError, PeerdgError, PeerdgWarning
from peerdg.evaluate.fluctuation import (
    BURN_IN_PERIODS,
    RunFluctuation,
    accuracy_series,
    run_fluctuation,
)
from peerdg.files import read_text, replace_atomically, sha256
from peerdg.models.names import OWN, is_weights_file, may_have_batch_norm
from peerdg.schema import LARGEST, conform, read_stored, within
from peerdg.text import visible
from peerdg.train.records import check_event, check_metric
from peerdg.train.rundir import RunFolder, Status, read_run_config
from peerdg.train.settings import MAY_CHANGE
from peerdg.train.started import Inputs, read_inputs, read_started

# The network that is trained, and the one that is deployed; the same but for PEER.
TRAINED, DEPLOYED = ("proxy", "model"), ("task", "model")

# Options in which runs of one variant may differ: their seed, and what does not decide the result.
# Batch statistics have one only in some networks, see `RunResult.batch_statistics`.
WITHOUT_EFFECT = {*MAY_CHANGE, "seed", "keep_snapshots", "batch_statistics"}

# Inputs that are no options, as options in names of variants and lists of differences.
NETWORK, REVISION = "network", "operations revision"
UNKNOWN = "unknown"
_SHORT_HASH = 12  # characters of the hash of a file of weights


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run folder, read.

    Args:
        path: The folder.
        config: Its options, nested as in a config file.
        status: How far it is.
        records: What `metrics.jsonl` holds.
        events: What `events.jsonl` holds.
        profile: Seconds by stage, if they were measured.
        folder: The name of the folder or list, of a run on own images.
        fingerprints: The fingerprint of each part of the data, as far as it is known.
        inputs: What its manifest says about inputs that the options only name.
    """

    path: Path
    config: dict[str, Any]
    status: Status
    records: list[dict[str, Any]]
    events: list[dict[str, Any]]
    profile: dict[str, Any] | None = None
    folder: str | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)

    @property
    def data(self) -> str:
        """Name of the data set, or of the folder or list of a user's own images."""
        benchmark = str(self.config["benchmark"])
        return self.folder or benchmark if benchmark == OWN_DATA else benchmark

    @property
    def trained_on(self) -> str:
        """Fingerprint of the training images; empty if the records do not have it."""
        return self.fingerprints.get("train", "")

    @property
    def judged_on(self) -> dict[str, str]:
        """Fingerprints of the targets, or of the validation images where there are none."""
        names = [f"target:{target}" for target in self.targets] or [VALIDATION]
        return {name: self.fingerprints[name] for name in names if name in self.fingerprints}

    @property
    def method(self) -> str:
        """The method's name; PEER without its regulariser is called by the paper's name, P-ENS."""
        name: str = self.config["method"]
        without = name == "peer" and self.config["peer"].get("regulariser") == "none"
        return "p-ens" if without else name

    @property
    def seed(self) -> int:
        """The run's seed."""
        seed: int = self.config["seed"]
        return seed

    @property
    def variant(self) -> str:
        """All options but the seed that decide the result, as a comparable text."""
        return json.dumps(self.options, sort_keys=True, default=str)

    @property
    def options(self) -> dict[str, Any]:
        """All options but the seed that decide the result, and inputs that they only name.

        Sections are flat, {"peer.w": 2}.
        """
        options = flat({k: v for k, v in self.config.items() if k not in WITHOUT_EFFECT})
        if self.inputs.weights_sha256 is not None:
            name = Path(self.config["weights"]).name
            options["weights"] = f"{name}@{self.inputs.weights_sha256[:_SHORT_HASH]}"
        if self.config["backbone"] == OWN:
            options[NETWORK] = self.inputs.network or UNKNOWN
        options[REVISION] = self.inputs.augmentation or UNKNOWN
        options["batch_statistics"] = self.batch_statistics
        return options

    @property
    def has_statistics_rule(self) -> bool:
        """Whether all its networks were evaluated by one rule; runs of old versions were not."""
        recorded = any("batch_statistics" in record for record in self.evaluations)
        return recorded or "batch_statistics" in self.config

    @property
    def batch_statistics(self) -> str | None:
        """Where the statistics of batch normalisation came from; None without batch normalisation.

        Runs that are older than the rule were evaluated as training left them, but for PEER's task
        model with `bn = "recalibrate"`.
        """
        if self.has_statistics_rule:
            found = {
                str(r["batch_statistics"]) for r in self.evaluations if "batch_statistics" in r
            }
            return " and ".join(sorted(found)) or None
        if not may_have_batch_norm(self.config["backbone"]):
            return None
        mixed = self.config.get("peer", {}).get("bn") == "recalibrate"
        return "trained, task clean" if mixed else "trained"

    @property
    def seconds(self) -> float:
        """Time spent in training epochs."""
        return sum(float(e["seconds"]) for e in self.events if e.get("event") == "epoch")

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Evaluation records in order."""
        return [r for r in self.records if r["kind"] == "evaluation"]

    @property
    def targets(self) -> list[str]:
        """Target domains in the order they were evaluated."""
        return list(filter(is_target, dict.fromkeys(r["domain"] for r in self.evaluations)))

    @property
    def crafted(self) -> list[str]:
        """Crafted validation domains in the order they were evaluated."""
        domains = dict.fromkeys(r["domain"] for r in self.evaluations)
        return [domain for domain in domains if domain.startswith(CRAFTED)]

    @property
    def models(self) -> list[str]:
        """Observed models."""
        return list(dict.fromkeys(r["model"] for r in self.evaluations))

    @property
    def trained(self) -> str:
        """Name of the network that learns."""
        known = self.models or ["model"]
        return next((name for name in TRAINED if name in known), known[0])

    @property
    def deployed(self) -> str:
        """Name of the network that ships."""
        known = self.models or ["model"]
        return next((name for name in DEPLOYED if name in known), known[-1])

    @property
    def period(self) -> int:
        """Epochs between the evaluations that count for fluctuation.

        That is k, where there is one and an evaluation after every k-th epoch.
        """
        evaluated = int(self.config["evaluate_every"])
        return math.lcm(self.k or evaluated, evaluated)

    @property
    def k(self) -> int | None:
        """The period of the method in epochs; None if it has none."""
        k = self.config.get(self.config["method"], {}).get("k")
        return None if k is None else int(k)

    def final(self, model: str) -> dict[str, float]:
        """Last accuracy of `model` on each domain."""
        return {r["domain"]: r["accuracy"] for r in self.evaluations if r["model"] == model}

    def images(self, *domains: str) -> int | None:
        """Images of the smallest of these evaluated domains; None if the records do not say."""
        found = {r["domain"]: r.get("n") for r in self.evaluations if r["domain"] in domains}
        return min((n for n in found.values() if n is not None), default=None)

    def crafted_mean(self, model: str) -> float | None:
        """Mean of the last accuracies over the crafted families that have a vote, if any."""
        final = self.final(model)
        voting = [final[domain] for domain in self.voting if domain in final]
        return sum(voting) / len(voting) if voting else None

    @property
    def voting(self) -> list[str]:
        """Evaluated crafted domains of the families that RandAugment does not train on."""
        return [domain for domain in self.crafted if domain.removeprefix(CRAFTED) in DISJOINT]

    def score(self, model: str) -> float | None:
        """What a run is judged by: its target mean, or without targets its crafted mean."""
        return self.target_mean(model) if self.targets else self.crafted_mean(model)

    def target_mean(self, model: str) -> float:
        """Unweighted mean over the targets of the last accuracies."""
        final = self.final(model)
        return sum(final[t] for t in self.targets) / len(self.targets)

    def fluctuation(
        self, model: str, *, burn_in_periods: int = BURN_IN_PERIODS
    ) -> RunFluctuation | None:
        """Fluctuation of `model` over evaluations every k epochs; None if there are none."""
        series = accuracy_series(
            self.records,
            model=model,
            every=self.period,
            burn_in_periods=burn_in_periods,
        )
        return run_fluctuation(series)


def collect_runs(places: Iterable[Path]) -> list[RunResult]:
    """Every run among or below `places`: run folders, and files written by `save_runs`.

    A run folder that cannot be read is left out, with a warning.
    """
    runs, folders = [], {}
    for place in places:
        if place.is_file():
            runs += load_runs(place)
        else:
            folders.update({path.resolve(): path for path in find_runs(place)})
    for path in folders.values():
        try:
            runs.append(read_run(path))
        except PeerdgError as error:
            message = f"The run in {visible(str(path))} is left out: {error.message}"
            warnings.warn(message, PeerdgWarning, stacklevel=2)
    return runs


def find_runs(folder: Path) -> list[Path]:
    """Every run folder at or below `folder`, sorted by path."""
    return sorted(
        file.parent
        for file in folder.rglob("config.toml")
        if os.path.lexists(file.parent / "events.jsonl")
    )


def read_run(path: Path) -> RunResult:
    """Read one run folder.

    Raises:
        ConfigError: If it is none, or its config cannot be read.
        DamagedError: If a file of it is damaged, or its records are not those of its result.
    """
    run = RunFolder(path)
    config = read_run_config(path)
    _check_options(config, run.config_file)
    status = run.status()
    result = RunResult(
        path=path,
        config=config,
        status=status,
        records=_without_half_an_evaluation(run.metrics.read()),
        events=run.events.read(),
        profile=_read_profile(run.profile_file),
        folder=_folder_name(config),
        fingerprints=_read_fingerprints(run.manifest_file),
        inputs=read_inputs(run.manifest_file),
    )
    _require_equal_evaluations(result.records, run.metrics.path)
    if status == "done":
        done = read_stored(_Done, run.done_file)
        if done.accuracy != {model: result.final(model) for model in result.models}:
            raise DamagedError(
                f"{run.metrics.path} does not end with the results in {run.done_file}.",
                hint="Restore both from a backup.",
            )
    return result


@dataclass(frozen=True, kw_only=True)
class _Phase:
    epochs: int = within(at_least=0)
    batch_size: int = within(at_least=1, default=1)
    lr: float = within(at_least=0, default=0.0)
    optimizer: str = ""


@dataclass(frozen=True, kw_only=True)
class _Method:
    """What reports use of a method's section."""

    regulariser: str = ""
    k: int | None = within(at_least=1, default=None)
    w: float | None = within(default=None)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What reports use of a run's config; runs of other versions may have more."""

    method: str
    benchmark: str
    backbone: str
    budget: str
    train: _Phase
    pretrain: _Phase
    seed: int = within(at_least=0)
    evaluate_every: int = within(at_least=1)
    root: str | None = None
    weights: str = "none"


def _check_options(config: dict[str, Any], where: Path) -> None:
    method = conform(_Options, config, where).method
    if method == "peer" or method in config:
        conform(_Method, config.get(method), where)


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What is read back of `done.json`."""

    accuracy: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class _Spent:
    seconds: float = within(at_least=0)
    calls: int = within(at_least=0)


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """`profile.json`."""

    stages: dict[str, _Spent]
    seconds: float = within(at_least=0)


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """One run of `runs.json`."""

    name: str
    status: Literal["running", "done", "failed", "resumable"]
    config: dict[str, Any]
    records: list[dict[str, Any]]
    events: list[dict[str, Any]]
    profile: _Profile | None = None
    folder: str | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)


def _groups(records: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, Any], list[tuple[str, str]]]:
    """Model and domain of each evaluation record, by phase and epoch."""
    groups: dict[tuple[Any, Any], list[tuple[str, str]]] = {}
    for record in records:
        if record["kind"] == "evaluation":
            group = groups.setdefault((record["phase"], record["epoch"]), [])
            group.append((record["model"], record["domain"]))
    return groups


def _without_half_an_evaluation(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop an evaluation at the end that was not written whole; a resumed run does it again."""
    groups = list(_groups(records).items())
    if len(groups) < 2 or len(groups[-1][1]) >= len(groups[0][1]):
        return records
    last = ("evaluation", *groups[-1][0])
    return [r for r in records if (r["kind"], r["phase"], r["epoch"]) != last]


def _require_equal_evaluations(records: Sequence[Mapping[str, Any]], where: Path) -> None:
    """Refuse records in which an evaluation lacks a model or domain that another has."""
    groups = list(_groups(records).values())
    if any(sorted(group) != sorted(groups[0]) for group in groups) or any(
        len(set(group)) < len(group) for group in groups
    ):
        raise DamagedError(f"{visible(str(where))} is damaged: an evaluation is not complete.")
    for group in groups[:1]:
        models, domains = {m for m, _ in group}, {d for _, d in group}
        if len(group) != len(models) * len(domains):
            raise DamagedError(f"{visible(str(where))} is damaged: an evaluation is not complete.")


def _folder_name(config: Mapping[str, Any]) -> str | None:
    own = config.get("benchmark") == OWN_DATA and isinstance(config.get("root"), str)
    return Path(config["root"]).name or None if own else None


def _read_fingerprints(manifest: Path) -> dict[str, str]:
    """Of each part of the data; a damaged file is no reason to lose the rest."""
    try:
        started = read_started(manifest)
    except DamagedError:
        return {}
    return started.data if started else {}


def _read_profile(path: Path) -> dict[str, Any] | None:
    """Seconds by stage, if they were measured; a damaged file is no reason to lose the rest."""
    try:
        return asdict(read_stored(_Profile, path)) if path.exists() else None
    except DamagedError:
        return None


def save_runs(path: Path, runs: Sequence[RunResult]) -> None:
    """Keep the records of runs as one small file, without where they were run."""
    kept = [
        {
            "name": run.path.name,
            "status": run.status,
            "config": _without_places(run.config),
            "records": run.records,
            "events": [e for e in run.events if e.get("event") == "epoch"],
            "profile": run.profile,
            "folder": run.folder,
            "fingerprints": run.fingerprints,
            "inputs": asdict(_with_weights(run)),
        }
        for run in runs
    ]
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in kept)
    with replace_atomically(path) as temporary:
        temporary.write_text(f"[\n{lines}\n]\n", "utf-8")


def _with_weights(run: RunResult) -> Inputs:
    """The inputs of a run, with the hash of its file of weights.

    Only the file's name is kept, so what tells two files of one name apart must be kept beside it:
    for runs that did not record the hash that of the file as it is now, or of its path.
    """
    weights = run.config.get("weights", "none")
    known = run.inputs.weights_sha256 is not None or Path(weights).name == weights
    if known or not is_weights_file(weights):
        return run.inputs
    try:
        digest = sha256(Path(weights), follow_links=True)
    except OSError:
        digest = hashlib.sha256(weights.encode()).hexdigest()
    return replace(run.inputs, weights_sha256=digest)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"peer": {"w": 2}} -> {"peer.w": 2}."""
    options: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            options.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            options[key] = value
    return options


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in config.items() if k not in MAY_CHANGE}
    if kept.get("weights"):
        kept["weights"] = Path(kept["weights"]).name
    return kept


def load_runs(path: Path) -> list[RunResult]:
    """Runs kept by `save_runs`.

    Raises:
        DataError: If the file is not one of these.
    """
    try:
        values = json.loads(read_text(path, limit=LARGEST, follow_links=True))
        return [_loaded(run, path) for run in conform(list[_Saved], values, path)]
    except (OSError, ValueError, RecursionError, DamagedError) as error:
        reason = getattr(error, "message", error)
        raise DataError(f"{path} does not hold the records of runs: {reason}.") from error


def _loaded(saved: _Saved, path: Path) -> RunResult:
    _check_options(saved.config, path)
    for record in saved.records:
        check_metric(record)
    for event in saved.events:
        check_event(event)
    _require_equal_evaluations(saved.records, path)
    return RunResult(
        path=Path(saved.name),
        config=saved.config,
        status=saved.status,
        records=saved.records,
        events=saved.events,
        profile=None if saved.profile is None else asdict(saved.profile),
        folder=saved.folder,
        fingerprints=saved.fingerprints,
        inputs=saved.inputs,
    )
