"""Collect the rows of a bench from its run folders, or from the records of earlier benches.

Averages do not affect training. The results of each average in a shared run, and of its trained
network, are therefore bitwise identical to a separate run of that method.

Records contain every evaluation of every row. They make it possible to continue a study without its
run folders, to rewrite its report, and to compare a method with rows that others have trained. A
row is reused only if its options match the plan.
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
from peerdg.report.runs import RECORDS, RunResult, as_of, load_runs, read_run
from peerdg.run.config import DATA_PLACES, MAY_CHANGE
from peerdg.terminal import visible

if TYPE_CHECKING:
    from peerdg.benches.folder import BenchFolder

COMBINED = "combined"  # name of a combined model in evaluations
_WITHOUT_EFFECT = {
    *MAY_CHANGE,
    *DATA_PLACES,
    "keep_snapshots",
    "select",
}  # options without effect on results


@dataclass(frozen=True)
class RecordedRows:
    """Results from the records of earlier benches."""

    results: Mapping[tuple[str, int], RunResult] = field(default_factory=dict)  # by row and seed
    # The folder of each record of a row and seed, and the names of the rows that share its run.
    benches: Mapping[tuple[str, int], list[tuple[Path, set[str]]]] = field(default_factory=dict)
    files: int = 0  # number of record files

    @classmethod
    def read(
        cls,
        files: Sequence[Path],
        plan: Plan,
        *,
        until: int | None = None,
        by_options: bool = False,
    ) -> "RecordedRows":
        """Read the rows of a plan from records.

        A row must have been evaluated after epoch `until`, or the last one. Rows with other names
        or seeds are ignored. A row that was trained with different options is an error. With
        `by_options`, a row is instead found by its options, whatever its name.
        """
        results: dict[tuple[str, int], RunResult] = {}
        benches: dict[tuple[str, int], list[tuple[Path, set[str]]]] = {}
        for file in files:
            if not (file if file.is_file() else file / RECORDS).is_file():
                hint = "Name the folder of `peerdg bench --out`."
                raise ConfigError(f"{visible(str(file))} has no {RECORDS}.", hint=hint)
            for run in load_runs(file):
                if run.seed not in plan.seeds:
                    continue
                if by_options:
                    alike = (m for m in plan.members.values() if _has_options(run, m))
                    member = next(alike, None)
                else:
                    member = plan.members.get(run.row)
                if member is None:
                    continue
                if not by_options:
                    what = f"The row '{run.row}' of {visible(str(file))}"
                    _refuse_other_options(run, member, what)
                epochs, key = member.config.train.epochs, (member.method, run.seed)
                last = epochs if until is None else min(until, epochs)
                if run.status != "done" or all(r["epoch"] != last for r in run.evaluations):
                    continue
                found = run if until is None else as_of(run, until)
                # A bench that continues another one has its rows, too.
                if key in results and results[key].evaluations != found.evaluations:
                    raise ConfigError(
                        f"The row '{run.row}', seed {run.seed} is given twice, with other results.",
                        hint="Leave out one of these records.",
                    )
                results.setdefault(key, found)
                place = file.parent if file.is_file() else file
                benches.setdefault(key, []).append((place, {run.row, *run.shared_with}))
        return cls(results, benches, len(files))

    def of(self, group: SharedRun, seed: int) -> dict[str, RunResult]:
        """Return the recorded results of a group, by method."""
        results = {m.method: self.results.get((m.method, seed)) for m in group.members}
        return {method: result for method, result in results.items() if result is not None}

    def has(self, group: SharedRun, seed: int) -> bool:
        """Whether all methods of a group are recorded, so that it needs no training."""
        return len(self.of(group, seed)) == len(group.members)

    def run_folder(self, row: str, seed: int) -> Path | None:
        """Return the folder of the run that trained a row, if it is next to the records."""
        end = f"-{seed}"
        for bench, rows in self.benches[row, seed]:
            for folder in (bench / "runs").glob(f"*{end}"):
                if {*folder.name.removesuffix(end).split("+")} == rows:
                    return folder
        return None


def _has_options(run: RunResult, member: PlannedMethod) -> bool:
    """Return whether a recorded row was trained with the options of a planned one."""
    unnamed = replace(run, config={**run.config, "recipe": member.config.recipe})
    try:
        _refuse_other_options(unnamed, member, run.row)
    except ConfigError:
        return False
    return True


def _refuse_other_options(run: RunResult, member: PlannedMethod, what: str) -> None:
    """Refuse a recorded row whose options differ from the plan.

    Records only contain file names, so files are compared by hash.
    """
    hint = "Give the options that it was trained with, or leave out these records."
    combined = 0 if member.combination is None else member.combination.members
    if len(run.combined_from) != combined:
        raise ConfigError(
            f"{what} was made from {len(run.combined_from) or 1} runs, not from {combined or 1}.",
            hint=hint,
        )
    expected = replace(member.config, seed=run.seed).tables()
    options: dict[str, Any] = dict(run.config)
    epochs = run.planned_epochs or options["train"]["epochs"]
    options["train"] = {**options["train"], "epochs": epochs}
    if not run.grows_with_pool:  # `epoch_of` has no effect without a growing pool
        options["train"]["epoch_of"] = expected["train"]["epoch_of"]
    if run.combined_from:
        options["recipe"] = expected.get("recipe")  # name of the combination, compared above
    weights = Path(expected.get("weights", ""))
    if is_weights_file(str(weights)) and options.get("weights") == weights.name:
        if not weights.is_file() or run.weights_sha256 != sha256(weights):
            raise ConfigError(f"{what} was not started from the weights in {weights}.")
        options["weights"] = str(weights)
    own = options.get(options["method"], {})
    if any(own.get(name) is not None for name in model_options_of(options["method"])):
        raise ConfigError(
            f"{what} used a network from another run, which is not in the records.", hint=hint
        )
    if changes := difference(options, expected, ignored=_WITHOUT_EFFECT):
        raise ConfigError(
            f"{what} was trained with different options:\n  " + "\n  ".join(changes), hint=hint
        )


def collect_rows(plan: Plan, bench: "BenchFolder") -> dict[str, list[RunResult]]:
    """Collect the complete runs and combinations of each method, in the order of the plan."""
    results: dict[str, list[RunResult]] = {method: [] for method in plan.methods}
    pairs = list(product(plan.seeds, plan.groups))
    trained = [bench.has_trained(group, seed) for seed, group in pairs]
    is_whole = bench.recorded.files == 1 and not any(trained)  # all rows are from one bench
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
    """Derive the result of each method that shares `run`, by method name."""
    members = run.group.members
    if len(members) == 1:
        return {members[0].method: result}
    return {member.method: _view(member, run, result) for member in members}


def _view(member: PlannedMethod, run: PlannedRun, result: RunResult) -> RunResult:
    others = {*run.config.average.kind, *run.config.average.also} - {*member.averages}
    deployed = result.deployed
    if deployed in run.config.average.kind:
        # The shared run deploys its first average. A method's own deployed network is kept.
        deployed = next(iter(member.config.average.kind), result.trained)
    # A window of snapshots has its own name in a shared run.
    names = {member.average: "snapshots"} if member.is_window else {}
    return replace(
        result,
        path=result.path.with_name(f"{member.method}-{result.seed}"),
        stored=result.path if (member.average or deployed) == result.deployed else None,
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
    """Present a combined model as a run that was evaluated once, at its end.

    Its time is the sum over its runs, counting shared pre-training once. Its memory is the maximum
    over its runs.
    """
    config = replace(group.config, seed=seed, recipe=group.name)
    training = read_description(folder / "model.json")["training"]
    shares_start = group.combination is not None and group.combination.shares_start
    return replace(
        members[0],
        path=folder,
        stored=folder,
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
