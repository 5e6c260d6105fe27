"""The result of each method: out of a run that several methods share, or of runs it combines.

Averages only watch a training. So the records of one average in a shared run, and of the trained
network, are bit for bit those of the run of that method alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from peerdg.benches.plan import PlannedMethod, PlannedRun, SharedRun
from peerdg.errors import ConfigError
from peerdg.models.stored import read_description
from peerdg.report.runs import RunResult

COMBINED = "combined"  # the name under which the model was evaluated


def views(run: PlannedRun, result: RunResult) -> dict[str, RunResult]:
    """Derive the result of each method that comes from `run`, by the method's name."""
    if not run.group.is_shared:
        return {run.group.members[0].method: result}
    return {member.method: _view(member, run, result) for member in run.group.members}


def _view(member: PlannedMethod, run: PlannedRun, result: RunResult) -> RunResult:
    others = {*run.config.average.kind, *run.config.average.also} - {*member.averages}
    deployed = result.deployed
    if deployed in run.config.average.kind:
        # The first average that watched. A method with its own network to deploy keeps that.
        deployed = next(iter(member.config.average.kind), result.trained)
    # A window of the snapshots is observed under its own name in a shared run.
    names = {member.average: "snapshots"} if member.is_window else {}
    return replace(
        result,
        path=result.path.with_name(f"{member.method}-{result.seed}"),
        config=replace(member.config, seed=result.seed).tables(),
        evaluations=[
            {**record, "model": names.get(record["model"], record["model"])}
            for record in result.evaluations
            if record["model"] not in others
        ],
        epochs=[
            {names.get(key, key): value for key, value in epoch.items() if key not in others}
            for epoch in result.epochs
        ],
        deployed=deployed,
        shared_with=tuple(m.method for m in run.group.members if m is not member),
    )


def combined_view(
    group: SharedRun, seed: int, folder: Path, members: Sequence[RunResult]
) -> RunResult:
    """Present a model made of several runs as a run that was evaluated once, at its end.

    Its time is that of all of them, with a shared pre-training counted once. Its memory is that of
    the largest.

    Args:
        group: The combination.
        seed: Seed of the combination.
        folder: Model folder.
        members: Runs that the model was made of.

    Raises:
        ConfigError: If the model was not evaluated, because the data is not there.
        DamagedError: If its description is damaged.
    """
    config = replace(group.config, seed=seed, recipe=group.name)
    training = read_description(folder / "model.json")["training"]
    if not training.get("accuracy"):
        raise ConfigError(
            f"{folder} was not evaluated, because its data was not there.",
            hint="Remove it, and give the same command again.",
        )
    shares_start = group.combination is not None and group.combination.shares_start
    return replace(
        members[0],
        path=folder,
        config=config.tables(),
        status="done",
        evaluations=[
            {"kind": "evaluation", "epoch": config.train.epochs, "model": COMBINED,
             "domain": domain, **result}
            for domain, result in training["accuracy"].items()
        ],
        epochs=[
            {**epoch, "member": member.path.name}
            for member in members
            for epoch in member.epochs
            if member is members[0] or not shares_start or epoch["phase"] != "pretrain"
        ],
        trained=COMBINED,
        deployed=COMBINED,
        batch_statistics=training.get("batch_statistics"),
        peak_memory=max((m.peak_memory for m in members if m.peak_memory), default=None),
        software=tuple(dict.fromkeys(name for m in members for name in m.software)),
        combined_from=tuple(member.path.name for member in members),
    )  # fmt: skip
