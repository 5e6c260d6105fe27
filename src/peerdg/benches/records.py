"""Rows of earlier benches, taken from their records in place of training them again.

The records that a bench leaves have every evaluation of every row. So a study goes on
where its run folders are not, its page can be made again, and a method of one's own stands beside
rows that somebody else has trained. A row is taken only if its options are those of the plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from peerdg.benches.plan import Plan, PlannedMethod, PlannedRun, SharedRun
from peerdg.errors import ConfigError
from peerdg.files import sha256
from peerdg.methods.registry import model_options_of
from peerdg.models.names import is_weights_file
from peerdg.options import difference, dotted
from peerdg.report.runs import RunResult, as_of, is_evaluated, load_runs
from peerdg.run.config import DATA_PLACES, MAY_CHANGE, RunConfig
from peerdg.terminal import visible

_NO_MATTER = {*MAY_CHANGE, *DATA_PLACES, "keep_snapshots"}  # options that change no result


@dataclass(frozen=True)
class RecordedRows:
    """Results that need not be trained.

    Args:
        results: By the row's name and the seed.
        runs: Names of the planned runs whose rows are all among them.
        files: How many files they are from.
    """

    results: Mapping[tuple[str, int], RunResult] = field(default_factory=dict)
    runs: frozenset[str] = frozenset()
    files: int = 0

    @classmethod
    def read(cls, files: Sequence[Path], plan: Plan, *, until: int | None = None) -> "RecordedRows":
        """Take from records what a plan asks for.

        A shared run is trained unless the rows of all its methods are there. A row counts only if
        it was evaluated after the epoch that is asked for. Rows of other names and seeds are left
        alone.

        Args:
            files: Made by earlier benches.
            plan: Which rows are wanted.
            until: As of which epoch; default: the last.

        Raises:
            DataError: If a file does not hold records.
            ConfigError: If a row was trained with other options than the plan's, with the
                difference, or is in two files.
        """
        results: dict[tuple[str, int], RunResult] = {}
        for file in files:
            for run in load_runs(file):
                row, member = run.row, plan.members.get(run.row)
                if member is None or run.seed not in plan.seeds:
                    continue
                _refuse_other_training(run, member, f"The row '{row}' of {visible(str(file))}")
                if not _is_complete(run, member, until):
                    continue
                if (row, run.seed) in results:
                    raise ConfigError(f"The row '{row}' with seed {run.seed} is given twice.")
                results[row, run.seed] = run if until is None else as_of(run, until)
        recorded = cls(results)
        pairs = product(plan.groups, plan.seeds)
        covered = [(group, seed) for group, seed in pairs if recorded.has(group, seed)]
        names = (run.name for group, seed in covered for run in group.runs(seed))
        return replace(recorded, runs=frozenset(names), files=len(files))

    def has(self, group: SharedRun, seed: int) -> bool:
        """Whether the rows of all methods of a group are there."""
        return all((member.method, seed) in self.results for member in group.members)

    def covers(self, run: PlannedRun) -> bool:
        """Whether a run need not be trained."""
        return run.name in self.runs

    def of(self, group: SharedRun, seed: int) -> dict[str, RunResult]:
        """Return the results of a group that there are, by method."""
        known = (member for member in group.members if (member.method, seed) in self.results)
        return {member.method: self.results[member.method, seed] for member in known}

    @property
    def fingerprints(self) -> list[dict[str, str]]:
        """Fingerprints of the data that rows were trained on; several if data differ.

        An oracle's are left out, since it has learnt from targets, too.
        """
        found = [r.fingerprints for r in self.results.values() if not r.oracle]
        return [one for n, one in enumerate(found) if one and one not in found[:n]]


def _is_complete(run: RunResult, member: PlannedMethod, until: int | None) -> bool:
    """Whether a run is finished, or was evaluated after the epoch that is asked for."""
    epochs = member.config.train.epochs
    wanted = epochs if until is None else min(until, epochs)
    return run.status == "done" and is_evaluated(run.evaluations, wanted)


def _refuse_other_training(run: RunResult, member: PlannedMethod, what: str) -> None:
    """Refuse a row that a run of this plan would not give, but for the last bits."""
    combined = 0 if member.combination is None else member.combination.members
    if len(run.combined_from) != combined:
        raise ConfigError(
            f"{what} was made of {len(run.combined_from) or 1} runs, not of {combined or 1}.",
            hint="Give the method that it was trained with, or leave these records out.",
        )
    expected = replace(member.config, seed=run.seed).tables()
    defaults = dotted(_defaults(member.config))
    changes = [
        change
        for change in difference(_stored_options(run, expected, what), expected)
        if change.key not in _NO_MATTER
        # An option that is newer than the record had its default.
        and not (change.old is None and change.new == defaults.get(change.key))
    ]
    if changes:
        raise ConfigError(
            f"{what} was trained with other options:\n  " + "\n  ".join(map(str, changes)),
            hint="Give the options that it was trained with, or leave these records out.",
        )


def _defaults(config: RunConfig) -> dict[str, Any]:
    """Return the options of a run for which nobody, no preset either, has asked for anything."""
    return RunConfig(
        benchmark=config.benchmark,
        method=config.method,
        method_settings=type(config.method_settings)(),
        data=type(config.data)(),
    ).tables()


def _stored_options(run: RunResult, expected: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Complete the options of a record: whole length, paths of files, what old records imply.

    Records have only the names of files, so their contents are compared by hash.

    Raises:
        ConfigError: If a file is another one.
    """
    options = dict(run.config)
    epochs = run.planned_epochs or options["train"]["epochs"]
    options["train"] = {**options["train"], "epochs": epochs}
    if not run.grows_with_pool:  # then it makes no difference
        options["train"]["epoch_of"] = expected["train"]["epoch_of"]
    if run.combined_from:
        options["recipe"] = expected.get("recipe")  # the combination's, which has been compared
    weights = str(expected.get("weights", ""))
    if is_weights_file(weights) and options.get("weights") == Path(weights).name:
        if run.weights_sha256 != _hash_of_weights(weights, what):
            raise ConfigError(f"{what} began with other weights than those in {weights}.")
        options["weights"] = weights
    own = options.get(options["method"], {})
    if any(own.get(name) is not None for name in model_options_of(options["method"])):
        raise ConfigError(
            f"{what} was given a network of another run, which its records do not have.",
            hint="Leave these records out, and the row is trained anew.",
        )
    return options


def _hash_of_weights(weights: str, what: str) -> str:
    try:
        return sha256(Path(weights), follow_links=True)
    except OSError as error:
        raise ConfigError(
            f"{what} began with weights that cannot be compared with {weights}: {error.strerror}."
        ) from error
