"""The run of each method, out of a run that several methods share.

What a shared run observed of one average, and of its own network, is bit for bit what the run of
that method alone would have: averages only watch. So its view has the options, the records and the
deployed network of that run, and every table and figure takes it for one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from peerdg.grid.plan import Member, PlannedRun
from peerdg.report.result import RunResult


def views(run: PlannedRun, result: RunResult) -> dict[str, RunResult]:
    """The run of each method that comes from `run`, by the method's name."""
    if not run.group.is_shared:
        return {run.group.members[0].method: result}
    return {member.method: _view(member, run, result) for member in run.group.members}


def _view(member: Member, run: PlannedRun, result: RunResult) -> RunResult:
    others = {name for other in run.group.members for name in other.watched} - {*member.watched}
    deployed = result.deployed
    if deployed in run.config.average.kind:
        # The first average that watched; a method with a network of its own to deploy has that.
        deployed = member.average or result.trained
    return replace(
        result,
        path=result.path.with_name(f"{member.method}-{result.seed}"),
        config=replace(member.config, seed=result.seed).tables(),
        records=[_without(record, others) for record in _kept(result.records, others)],
        inputs=replace(result.inputs, deployed=deployed),
        shared_with=tuple(m.method for m in run.group.members if m is not member),
    )


def _kept(records: Iterable[Mapping[str, Any]], others: set[str]) -> Iterable[Mapping[str, Any]]:
    """All records but evaluations of other methods' averages."""
    return (r for r in records if not (r["kind"] == "evaluation" and r["model"] in others))


def _without(record: Mapping[str, Any], others: set[str]) -> dict[str, Any]:
    """A record without what other averages had to say at the end of an epoch."""
    return {key: value for key, value in record.items() if key not in others}
