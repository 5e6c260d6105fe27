"""How long a bench takes: by the runs that are finished, else by trying out a few steps.

A run that takes its pre-training from another one is that much shorter.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peerdg.benches.folder import BenchFolder
from peerdg.benches.plan import Plan, PlannedRun
from peerdg.errors import PeerdgError
from peerdg.report.result import RunResult, is_evaluated
from peerdg.report.runs import read_run
from peerdg.run.config import RunConfig
from peerdg.run.forecast import Costs, PhaseCosts, RunPlan


@dataclass(frozen=True)
class RunTime:
    """Seconds of one run.

    Args:
        pretraining: Of the first phase.
        rest: Of everything else.
        measured: Whether that is what finished runs took; otherwise a few steps were tried.
    """

    pretraining: float
    rest: float
    measured: bool

    @classmethod
    def of_costs(cls, plan: RunPlan, costs: Costs) -> "RunTime":
        """Estimate the time of a run from the costs of its parts."""
        phases = {phase.name: costs.of_phase(phase) for phase in plan.phases}
        pretraining = phases.pop("pretrain", 0.0)
        return cls(pretraining, sum(phases.values()) + costs.finish, measured=False)

    @classmethod
    def of_runs(cls, runs: Sequence[RunResult]) -> "RunTime | None":
        """Take the mean over finished, uninterrupted runs; None if there are none."""
        found = [times for run in runs if (times := _times(run)) is not None]
        if not found:
            return None
        pretraining, rest = (sum(part) / len(found) for part in zip(*found, strict=True))
        return cls(pretraining, rest, measured=True)


def _times(run: RunResult) -> tuple[float, float] | None:
    """Read the seconds of pre-training and of the rest; None unless one process did it all."""
    kinds = [event["event"] for event in run.events]
    if run.status != "done" or "resume" in kinds or "done" not in kinds:
        return None
    whole = float(next(e for e in run.events if e["event"] == "done").get("seconds", 0.0))
    epochs = [e for e in run.events if e["event"] == "epoch" and e.get("phase") == "pretrain"]
    pretraining = sum(float(e["seconds"]) for e in epochs)
    trained_here = "shared_pretraining" not in kinds
    return pretraining, max(0.0, whole - (pretraining if trained_here else 0.0))


@dataclass(frozen=True)
class Progress:
    """How far each run of a bench is.

    Args:
        results: The runs that were begun.
        until: The epoch after which a run counts as complete; default: its last.
        recorded: Names of runs that need no training, since their rows are in records.
    """

    results: Mapping[str, RunResult]
    until: int | None = None
    recorded: frozenset[str] = frozenset()

    @classmethod
    def read(cls, bench: BenchFolder, plan: Plan, before: "Progress | None" = None) -> "Progress":
        """Read the run folders; a run that cannot be read counts as not begun.

        Args:
            bench: Where they are.
            plan: Which they are.
            before: An earlier reading, so that runs that were complete then are not read again.
        """
        results = {}
        for run in plan.runs:
            if before is not None and before.is_trained(run):
                results[run.name] = before.results[run.name]
                continue
            try:
                results[run.name] = read_run(bench.run_folder(run))
            except PeerdgError:
                continue
        recorded = frozenset() if bench.recorded is None else bench.recorded.runs
        return cls(results, bench.until, recorded)

    def is_done(self, run: PlannedRun) -> bool:
        """Whether a run is complete, here or in records."""
        return run.name in self.recorded or self.is_trained(run)

    def is_trained(self, run: PlannedRun) -> bool:
        """Whether a run was completed here."""
        found = self.results.get(run.name)
        if found is None:
            return False
        if self.until is None or self.until >= run.config.train.epochs:
            return found.status == "done"
        return is_evaluated(found.records, self.until)

    def epochs(self, config: RunConfig) -> int:
        """Count the epochs of the main phase that a run is to be trained for."""
        epochs = config.train.epochs
        return epochs if self.until is None else min(self.until, epochs)

    def share(self, run: PlannedRun) -> float:
        """Return the share of the main phase's epochs that is done."""
        found = self.results.get(run.name)
        if found is None:
            return 0.0
        epochs = [r["epoch"] for r in found.records if r.get("phase") == "train"]
        return min(1.0, max(epochs, default=0) / max(1, self.epochs(run.config)))

    def of(self, runs: Iterable[PlannedRun]) -> list[RunResult]:
        """Select the runs that were begun."""
        return [self.results[run.name] for run in runs if run.name in self.results]


def time_left(
    plan: Plan,
    progress: Progress,
    times: Mapping[str, RunTime],
    *,
    jobs: int,
    without: Container[str] = (),
) -> float | None:
    """Estimate the seconds until all runs are complete; None if one of them is unknown.

    Runs at once share the cores, so this is a bound rather than a promise: it is what is left of
    all runs, divided by their number at once.

    Args:
        plan: All runs.
        progress: How far they are.
        times: Of a run, by the name of its group.
        jobs: Runs at once.
        without: Names of runs that are given up.
    """
    to_do = [r for r in plan.runs if not progress.is_done(r) and r.name not in without]
    if any(run.group.name not in times for run in to_do):
        return None
    pretrained = {_pretraining_of(run.config) for run in plan.runs if progress.is_trained(run)}
    seconds = []
    for run in to_do:
        time, share, key = times[run.group.name], progress.share(run), _pretraining_of(run.config)
        first = key not in pretrained and not share
        pretrained.add(key)
        seconds.append((time.pretraining if first else 0.0) + (1 - share) * time.rest)
    return max(sum(seconds) / jobs, max(seconds, default=0.0))


def count_pretrainings(runs: Iterable[PlannedRun]) -> int:
    """Count the different pre-trainings that runs begin with."""
    return len({_pretraining_of(run.config) for run in runs if run.config.pretrain.epochs})


def _pretraining_of(config: RunConfig) -> str:
    """Name what decides a pre-training, for runs on the same data; unique if it is not shared."""
    tables = config.tables()
    names = ("pretrain", "transform", "backbone", "weights", "seed", "precision", "compile")
    parts: list[Any] = [tables.get(name) for name in names]
    if config.method_settings.adapts_before == "pretrain" or not config.share_pretraining:
        parts.append(tables)
    return json.dumps(parts, sort_keys=True, default=str)


def costs_from_json(value: Mapping[str, Any]) -> Costs:
    """Rebuild costs from what `dataclasses.asdict` made of them."""
    phases = {name: PhaseCosts(**costs) for name, costs in value["phases"].items()}
    return Costs(phases, evaluation=value["evaluation"], finish=value["finish"])
