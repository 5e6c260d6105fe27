"""The rows of a bench: results from its run folders, or from the records of earlier benches.

Averages do not change a training. So the results of one average in a shared run, and of the
trained network, are bit for bit those of the run of that method alone.

Records have every evaluation of every row. With them a study continues where its run folders are
not, its page can be made again, and a user's own method is compared with rows that somebody else
has trained. A row is taken only if its options are those of the plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdg.benches.plan import Plan, PlannedMethod, PlannedRun, SharedRun
from peerdg.errors import ConfigError
from peerdg.files import sha256
from peerdg.methods.registry import model_options_of
from peerdg.models.names import is_weights_file
from peerdg.models.stored import read_description
from peerdg.options import difference
from peerdg.report.runs import RunResult, as_of, load_runs, read_run
from peerdg.run.config import DATA_PLACES, MAY_CHANGE
from peerdg.terminal import visible

if TYPE_CHECKING:
    from peerdg.benches.folder import BenchFolder

COMBINED = "combined"  # the name under which a combined model was evaluated
_WITHOUT_EFFECT = {*MAY_CHANGE, *DATA_PLACES, "keep_snapshots"}  # options that change no result


@dataclass(frozen=True)
class RecordedRows:
    """Results that need not be trained."""

    results: Mapping[tuple[str, int], RunResult] = field(default_factory=dict)  # by row and seed
    files: int = 0  # number of files they are from

    @classmethod
    def read(cls, files: Sequence[Path], plan: Plan, *, until: int | None = None) -> "RecordedRows":
        """Take from records what a plan asks for.

        A row counts only if it was evaluated after the epoch that is asked for. Rows of other
        names and seeds are ignored. One that was trained with other options is refused.
        """
        results: dict[tuple[str, int], RunResult] = {}
        for file in files:
            for run in load_runs(file):
                member = plan.members.get(run.row)
                if member is None or run.seed not in plan.seeds:
                    continue
                _refuse_other_options(run, member, f"The row '{run.row}' of {visible(str(file))}")
                epochs = member.config.train.epochs
                last = epochs if until is None else min(until, epochs)
                if run.status != "done" or all(r["epoch"] != last for r in run.evaluations):
                    continue
                if (run.row, run.seed) in results:
                    raise ConfigError(f"The row '{run.row}', seed {run.seed} is given twice.")
                results[run.row, run.seed] = run if until is None else as_of(run, until)
        return cls(results, len(files))

    def of(self, group: SharedRun, seed: int) -> dict[str, RunResult]:
        """Return the results of a group that there are, by method."""
        found = {m.method: self.results.get((m.method, seed)) for m in group.members}
        return {method: result for method, result in found.items() if result is not None}

    def has(self, group: SharedRun, seed: int) -> bool:
        """Whether the rows of all methods of a group are there, so that it needs no training."""
        return len(self.of(group, seed)) == len(group.members)


def _refuse_other_options(run: RunResult, member: PlannedMethod, what: str) -> None:
    """Refuse a recorded row that a run of this plan would not give, except for the last bits.

    Records have only the names of files, so their contents are compared by hash.
    """
    hint = "Give the options that it was trained with, or leave these records out."
    combined = 0 if member.combination is None else member.combination.members
    if len(run.combined_from) != combined:
        raise ConfigError(
            f"{what} was made of {len(run.combined_from) or 1} runs, not of {combined or 1}.",
            hint=hint,
        )
    expected = replace(member.config, seed=run.seed).tables()
    options: dict[str, Any] = dict(run.config)
    epochs = run.planned_epochs or options["train"]["epochs"]
    options["train"] = {**options["train"], "epochs": epochs}
    if not run.grows_with_pool:  # then it makes no difference
        options["train"]["epoch_of"] = expected["train"]["epoch_of"]
    if run.combined_from:
        options["recipe"] = expected.get("recipe")  # the combination's, which has been compared
    weights = Path(expected.get("weights", ""))
    if is_weights_file(str(weights)) and options.get("weights") == weights.name:
        if not weights.is_file() or run.weights_sha256 != sha256(weights):
            raise ConfigError(f"{what} began with other weights than those in {weights}.")
        options["weights"] = str(weights)
    own = options.get(options["method"], {})
    if any(own.get(name) is not None for name in model_options_of(options["method"])):
        raise ConfigError(
            f"{what} was given a network of another run, which its records do not have.", hint=hint
        )
    if changes := difference(options, expected, ignored=_WITHOUT_EFFECT):
        raise ConfigError(
            f"{what} was trained with other options:\n  " + "\n  ".join(changes), hint=hint
        )


def collect_rows(plan: Plan, bench: "BenchFolder") -> dict[str, list[RunResult]]:
    """Collect the complete runs and combinations of each method, in the order of the methods."""
    results: dict[str, list[RunResult]] = {method: [] for method in plan.methods}
    pairs = list(product(plan.seeds, plan.groups))
    trained = [bench.has_trained(group, seed) for seed, group in pairs]
    is_whole = bench.recorded.files == 1 and not any(trained)  # one earlier bench as it was
    for (seed, group), is_here in zip(pairs, trained, strict=True):
        if not is_here:
            rows = bench.recorded.of(group, seed)
        else:
            members = [read_run(bench.run_folder(run)) for run in group.runs(seed)]
            if group.combination is None:
                rows = views(group.runs(seed)[0], members[0])
            else:
                folder = bench.combined_folder(group, seed)
                rows = {group.name: _combined_view(group, seed, folder, members)}
            if bench.until is not None:
                rows = {method: as_of(row, bench.until) for method, row in rows.items()}
        for method, row in rows.items():
            is_taken = row.is_taken or not (is_here or is_whole)
            results[method].append(replace(row, row=method, is_taken=is_taken))
    return results


def views(run: PlannedRun, result: RunResult) -> dict[str, RunResult]:
    """Derive the result of each method that comes from `run`, by the method's name."""
    members = run.group.members
    if len(members) == 1:
        return {members[0].method: result}
    return {member.method: _view(member, run, result) for member in members}


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


def _combined_view(
    group: SharedRun, seed: int, folder: Path, members: Sequence[RunResult]
) -> RunResult:
    """Present a model made of several runs as a run that was evaluated once, at its end.

    Its time is that of all of them, with a shared pre-training counted once. Its memory is that of
    the largest.
    """
    config = replace(group.config, seed=seed, recipe=group.name)
    training = read_description(folder / "model.json")["training"]
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
