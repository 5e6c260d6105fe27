"""The run of each method: out of one that several methods share, or of several that it combines.

What a shared run observed of one average, and of its own network, is bit for bit what the run of
that method alone would have: averages only watch. So its view has the options, the records and the
deployed network of that run, and every table and figure takes it for one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peerdg.benches.plan import PlannedMethod, PlannedRun, SharedRun
from peerdg.errors import ConfigError
from peerdg.models.stored import read_description
from peerdg.report.result import RunResult

COMBINED = "combined"  # the name under which the model was evaluated


def views(run: PlannedRun, result: RunResult) -> dict[str, RunResult]:
    """Derive the run of each method that comes from `run`, by the method's name."""
    if not run.group.is_shared:
        return {run.group.members[0].method: result}
    return {member.method: _view(member, run, result) for member in run.group.members}


def combined_view(
    group: SharedRun, seed: int, folder: Path, members: Sequence[RunResult]
) -> RunResult:
    """Present a model made of several runs as a run that was evaluated once, at its end.

    Its time is that of all of them, a pre-training that they share counted once; its memory that of
    the one which needed most.

    Args:
        group: The combination.
        seed: Of the whole.
        folder: The model folder.
        members: The runs it was made of.

    Raises:
        ConfigError: If the model was not evaluated, because the data is not there.
        DamagedError: If its description is damaged.
    """
    config = replace(group.config, seed=seed, recipe=group.name)
    training = read_description(folder / "model.json")["training"]
    if not training.get("accuracy"):
        raise ConfigError(
            f"{folder} was not evaluated, since its data was not there.",
            hint="Remove it, and give the same command again.",
        )
    rule = {key: training[key] for key in ("batch_statistics",) if key in training}
    records = [
        {"kind": "evaluation", "phase": "train", "epoch": config.train.epochs, "model": COMBINED,
         "domain": domain, **found, **rule}
        for domain, found in training["accuracy"].items()
    ]  # fmt: skip
    return RunResult(
        path=folder,
        config=config.tables(),
        status="done",
        records=records,
        events=[event for m in members for event in _costs(m, m is members[0], group)],
        folder=members[0].folder,
        fingerprints=members[0].fingerprints,
        inputs=replace(
            members[0].inputs,
            trained=COMBINED,
            deployed=COMBINED,
            software=tuple(dict.fromkeys(name for m in members for name in m.inputs.software)),
        ),
        combined_from=tuple(member.path.name for member in members),
    )


def _costs(run: RunResult, is_first: bool, group: SharedRun) -> Iterator[dict[str, Any]]:
    """Select the events with time and memory of one of several runs, with its name."""
    shares_start = group.combination is not None and group.combination.shares_start
    for event in run.events:
        again = shares_start and not is_first and event.get("phase") == "pretrain"
        if (event["event"] == "epoch" and not again) or "peak_memory" in event:
            yield {**event, "run": run.path.name}


def _view(member: PlannedMethod, run: PlannedRun, result: RunResult) -> RunResult:
    observed = {*run.config.average.kind, *run.config.average.also}
    others = observed - {*member.averages}
    deployed = result.deployed
    if deployed in run.config.average.kind:
        # The first average that watched; a method with a network of its own to deploy has that.
        deployed = next(iter(member.config.average.kind), result.trained)
    # A window of the snapshots is observed under its own name beside others.
    names = {member.average: "snapshots"} if member.is_window else {}
    return replace(
        result,
        path=result.path.with_name(f"{member.method}-{result.seed}"),
        config=replace(member.config, seed=result.seed).tables(),
        records=[_renamed(record, others, names) for record in _kept(result.records, others)],
        inputs=replace(result.inputs, deployed=deployed),
        shared_with=tuple(m.method for m in run.group.members if m is not member),
    )


def _kept(records: Iterable[Mapping[str, Any]], others: set[str]) -> Iterable[Mapping[str, Any]]:
    """Drop evaluations of other methods' averages."""
    return (r for r in records if not (r["kind"] == "evaluation" and r["model"] in others))


def _renamed(
    record: Mapping[str, Any], others: set[str], names: Mapping[str | None, str]
) -> dict[str, Any]:
    """Drop the values of other methods' averages from a record, and rename its own."""
    found = {names.get(key, key): value for key, value in record.items() if key not in others}
    return (
        {**found, "model": names.get(found["model"], found["model"])} if "model" in found else found
    )
