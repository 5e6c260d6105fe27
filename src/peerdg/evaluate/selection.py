"""Select an epoch or setting by a rule, and compute its regret on the targets.

A rule scores each candidate by a mean accuracy and chooses the best. Its regret is the drop in mean
target accuracy compared with the oracle, which selects on the targets themselves and is therefore
not available in practice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED, VALIDATION, is_target
from peerdg.errors import ConfigError

Rule = Literal["last", "source-val", "crafted-val", "oracle"]

RULES: dict[Rule, str] = {
    "last": "the last epoch",
    "source-val": "accuracy on the source's validation images",
    "crafted-val": "mean accuracy on crafted validation images of families not used in training",
    "oracle": "mean target accuracy, NOT AVAILABLE IN PRACTICE, upper bound of all other rules",
}


@dataclass(frozen=True)
class Choice:
    """The epoch chosen by a rule in one run."""

    epoch: int
    score: float | None  # None for `last`
    target: float | None  # mean target accuracy in this epoch, None without targets
    regret: float | None = None  # the oracle's target accuracy minus `target`


@dataclass(frozen=True)
class Trajectory:
    """Accuracy of one model on each domain, after each evaluated epoch."""

    accuracy: Mapping[int, Mapping[str, float]]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], *, model: str) -> "Trajectory":
        """Build a trajectory from a run's evaluation records of `model`."""
        accuracy: dict[int, dict[str, float]] = {}
        for record in records:
            if record.get("kind") == "evaluation" and record["model"] == model:
                accuracy.setdefault(record["epoch"], {})[record["domain"]] = record["accuracy"]
        if not accuracy:
            raise ConfigError(f"The run has no evaluation of the model '{model}'.")
        return cls(accuracy)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d for values in self.accuracy.values() for d in values))

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(filter(is_target, self.domains))

    def scored_by(self, rule: Rule) -> tuple[str, ...]:
        """Return the evaluated domains whose mean accuracy is the rule's score."""
        wanted: Mapping[Rule, tuple[str, ...]] = {
            "last": (),
            "source-val": (VALIDATION,),
            "crafted-val": tuple(CRAFTED + family for family in DISJOINT),
            "oracle": self.targets,
        }
        return tuple(domain for domain in wanted[rule] if domain in self.domains)

    def candidates(self, domains: Iterable[str]) -> list[int]:
        """Return the epochs evaluated on `domains` and all targets. Epoch 0 is a last resort."""
        needed = {*domains, *self.targets}
        epochs = sorted(epoch for epoch, values in self.accuracy.items() if needed <= values.keys())
        return [epoch for epoch in epochs if epoch > 0] or epochs

    def mean(self, epoch: int, domains: Sequence[str]) -> float:
        """Average the accuracy over `domains` with equal weights."""
        return math.fsum(self.accuracy[epoch][d] for d in domains) / len(domains)


def select(records: Iterable[Mapping[str, Any]], *, model: str) -> dict[Rule, Choice]:
    """Apply each rule whose images were evaluated to the records of a run."""
    run = Trajectory.from_records(records, model=model)
    choices: dict[Rule, Choice] = {}
    for rule in RULES:
        domains = run.scored_by(rule)
        epochs = run.candidates(domains)
        if not epochs or (rule != "last" and not domains):
            continue
        epoch, score = epochs[-1], None
        if domains:
            scores = [run.mean(candidate, domains) for candidate in epochs]
            chosen = middle_of_best(scores)
            epoch, score = epochs[chosen], scores[chosen]
        target = run.mean(epoch, run.targets) if run.targets else None
        choices[rule] = Choice(epoch, score, target)
    best = choices["oracle"].target if "oracle" in choices else None
    for rule, choice in choices.items():
        if best is not None and choice.target is not None:
            choices[rule] = replace(choice, regret=best - choice.target)
    return choices


def best_so_far(records: Iterable[Mapping[str, Any]], rule: Rule, *, model: str) -> int:
    """Return the epoch to deploy according to the evaluations so far.

    A later epoch wins over an equally good earlier one, because scores can saturate early.
    """
    run = Trajectory.from_records(records, model=model)
    domains = run.scored_by(rule)
    return max(run.candidates(domains), key=lambda epoch: (run.mean(epoch, domains), epoch))


def middle_of_best(scores: Sequence[float]) -> int:
    """Return the index of the highest score, or the (lower) middle one of several equal ones."""
    best = max(scores)
    tied = [number for number, score in enumerate(scores) if score == best]
    return tied[(len(tied) - 1) // 2]
