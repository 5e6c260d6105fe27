"""Read runs back: from their folders, or from the records that a report keeps of them."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from peerdg.data.benchmarks import OWN_DATA
from peerdg.errors import DamagedError, DataError, PeerdgError, PeerdgWarning
from peerdg.files import read_text, replace_atomically, sha256
from peerdg.methods.registry import method_names, model_options_of, settings_of
from peerdg.models.names import is_weights_file
from peerdg.report.result import RunResult
from peerdg.run.config import DATA_PLACES, MAY_CHANGE
from peerdg.run.folder import RunFolder, read_run_config
from peerdg.run.manifest import Inputs, read_inputs, read_manifest
from peerdg.run.records import NOTHING_LEARNT
from peerdg.schema import LARGEST, conform, read_stored, within
from peerdg.terminal import visible


def collect_runs(places: Iterable[Path]) -> list[RunResult]:
    """Read every run among or below `places`: run folders, and files written by `save_runs`.

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
    """Find every run folder at or below `folder`, sorted by path."""
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
        records=read_records(run, is_done=status == "done"),
        events=run.events.read(),
        profile=_read_profile(run.profile_file),
        folder=_folder_name(config),
        fingerprints=_read_fingerprints(run.manifest_file),
        inputs=read_inputs(run.manifest_file),
    )
    _require_equal_evaluations(result.records, run.metrics.path)
    if status == "done":
        done = read_stored(_Done, run.done_file)
        if done.deployed is not None:
            result = replace(result, inputs=replace(result.inputs, deployed=done.deployed))
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
    kind = settings_of(method) if method in method_names() else None
    if kind is None:  # of a run made with another version or a plugin
        conform(dict[str, Any], config.get(method, {}), where)
    elif fields(kind):
        conform(_announced_options(kind), config.get(method), where)


def _announced_options(kind: type[Any]) -> type[Any]:
    """Select what reports use of a method's section: the options that results depend on."""
    hints = get_type_hints(kind)
    return make_dataclass(
        "AnnouncedOptions",
        [
            (f.name, hints[f.name] | None, within(**f.metadata["limits"], default=None))
            for f in fields(kind)
            if f.metadata["announced"]
        ],
        kw_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What is read back of `done.json`."""

    accuracy: dict[str, dict[str, float]]
    deployed: str | None = None


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
    shared_with: tuple[str, ...] = ()
    combined_from: tuple[str, ...] = ()
    row: str = ""
    is_taken: bool = False
    planned_epochs: int | None = within(at_least=1, default=None)


def _groups(records: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, Any], list[tuple[str, str]]]:
    """Group model and domain of each evaluation record by phase and epoch."""
    groups: dict[tuple[Any, Any], list[tuple[str, str]]] = {}
    for record in records:
        if record["kind"] == "evaluation":
            group = groups.setdefault((record["phase"], record["epoch"]), [])
            group.append((record["model"], record["domain"]))
    return groups


def read_records(run: RunFolder, *, is_done: bool) -> list[dict[str, Any]]:
    """Read the records of a run; one that is not done may have been killed while it wrote them."""
    records = run.metrics.read()
    return records if is_done else _without_half_an_evaluation(records)


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
    """Read the fingerprint of each part of the data; a damaged file does not lose the rest."""
    try:
        return read_manifest(manifest).data
    except DamagedError:
        return {}


def _read_profile(path: Path) -> dict[str, Any] | None:
    """Read seconds by stage, if they were measured; a damaged file does not lose the rest."""
    try:
        return asdict(read_stored(_Profile, path)) if path.exists() else None
    except DamagedError:
        return None


def _is_kept(event: Mapping[str, Any]) -> bool:
    """Whether an event belongs into records: times, memory, and that nothing was learnt."""
    return event.get("event") in ("epoch", NOTHING_LEARNT) or "peak_memory" in event


def save_runs(path: Path, runs: Sequence[RunResult]) -> None:
    """Save the records of runs as one small file, without where they were run."""
    kept = [
        {
            "name": run.path.name,
            "status": run.status,
            "config": _without_places(run.config),
            "records": run.records,
            "events": [e for e in run.events if _is_kept(e)],
            "profile": run.profile,
            "folder": run.folder,
            "fingerprints": run.fingerprints,
            "inputs": asdict(_with_weights(run)),
            **({"shared_with": run.shared_with} if run.shared_with else {}),
            **({"combined_from": run.combined_from} if run.combined_from else {}),
            **({"row": run.row} if run.row else {}),
            **({"is_taken": True} if run.is_taken else {}),
            **({"planned_epochs": run.planned_epochs} if run.planned_epochs else {}),
        }
        for run in runs
    ]
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in kept)
    with replace_atomically(path) as temporary:
        temporary.write_text(f"[\n{lines}\n]\n", "utf-8")


def _with_weights(run: RunResult) -> Inputs:
    """Add the hash of the file of weights to the inputs of a run.

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


def _without_places(config: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in config.items() if k not in MAY_CHANGE}
    for section, _, key in (name.partition(".") for name in DATA_PLACES):
        if section in kept:
            kept[section] = {k: v for k, v in kept[section].items() if k != key}
    if kept.get("weights"):
        kept["weights"] = Path(kept["weights"]).name
    own = dict(kept.get(kept["method"], {}))
    for name in model_options_of(kept["method"]):
        if isinstance(own.get(name), str):
            own[name] = Path(own[name]).name
            kept[kept["method"]] = own
    return kept


def load_runs(path: Path) -> list[RunResult]:
    """Load runs saved by `save_runs`.

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
        shared_with=saved.shared_with,
        combined_from=saved.combined_from,
        row=saved.row,
        is_taken=saved.is_taken,
        planned_epochs=saved.planned_epochs,
    )
