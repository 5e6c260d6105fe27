"""Model selection: which epoch or setting a rule chooses, and the cost on the targets.

A rule scores each candidate by a mean of accuracies and takes the best. Its regret is how far the
mean target accuracy of its choice is below that of the oracle, which selects by the targets
themselves and is therefore not available in practice.
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
    "crafted-val": "mean accuracy on crafted validation images of families not trained on",
    "oracle": "mean target accuracy, NOT AVAILABLE IN PRACTICE, the bound of all other rules",
}

_EQUAL = 1e-9  # percent: means of the same accuracies may differ in the last bit


@dataclass(frozen=True)
class Choice:
    """The epoch that a rule chooses in one run."""

    epoch: int
    score: float | None  # None for `last`
    target: float | None  # mean target accuracy of the epoch, None without targets
    regret: float | None = None  # the oracle's target accuracy minus this one's


@dataclass(frozen=True)
class Trajectory:
    """Accuracy of one model after each evaluated epoch, on each domain."""

    accuracy: Mapping[int, Mapping[str, float]]

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], *, model: str) -> "Trajectory":
        """Build from the evaluations of `model` among the records of a run."""
        accuracy: dict[int, dict[str, float]] = {}
        for record in records:
            if record.get("kind") == "evaluation" and record["model"] == model:
                accuracy.setdefault(record["epoch"], {})[record["domain"]] = record["accuracy"]
        if not accuracy:
            raise ConfigError(f"The run has no evaluation of its model '{model}'.")
        return cls(accuracy)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d for values in self.accuracy.values() for d in values))

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(filter(is_target, self.domains))

    def scored_by(self, rule: Rule) -> tuple[str, ...]:
        """List the evaluated domains whose mean accuracy is the rule's score."""
        wanted: Mapping[Rule, tuple[str, ...]] = {
            "last": (),
            "source-val": (VALIDATION,),
            "crafted-val": tuple(CRAFTED + family for family in DISJOINT),
            "oracle": self.targets,
        }
        return tuple(domain for domain in wanted[rule] if domain in self.domains)

    def candidates(self, domains: Iterable[str]) -> list[int]:
        """List epochs evaluated on these domains and all targets, the start only if it is all."""
        needed = {*domains, *self.targets}
        epochs = sorted(epoch for epoch, values in self.accuracy.items() if needed <= values.keys())
        return [epoch for epoch in epochs if epoch > 0] or epochs

    def mean(self, epoch: int, domains: Sequence[str]) -> float:
        """Average the accuracy over `domains`, unweighted."""
        return math.fsum(self.accuracy[epoch][d] for d in domains) / len(domains)


def select(records: Iterable[Mapping[str, Any]], *, model: str) -> dict[Rule, Choice]:
    """Apply each rule whose images were evaluated to the records of a run, with its regret."""
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


@dataclass(frozen=True)
class VariantChoice:
    """The setting that a rule chooses, e.g. a value of w or k. Numbers are means over seeds."""

    variant: str
    scores: dict[str, float]  # of each setting
    regret: float | None = None  # the best setting's target accuracy minus the chosen one's


def select_variant(
    variants: Mapping[str, Sequence[Trajectory]], *, rule: Rule = "crafted-val"
) -> VariantChoice:
    """Choose the setting with the best score at the last epoch, mean over its seeds.

    Settings are in their natural order, with a run for each seed.
    """
    runs = [run for group in variants.values() for run in group]
    evaluated = {(run.scored_by(rule), run.targets) for run in runs}
    domains, targets = next(iter(evaluated), ((), ()))
    is_complete = all(variants.values()) and all(run.candidates(domains) for run in runs)
    if len(evaluated) != 1 or not domains or not is_complete:
        raise ConfigError(
            f"The rule '{rule}' needs a run of each setting, all with the evaluations it scores.",
            hint="Train all of them with the same validation images, families and targets.",
        )

    def over_seeds(group: Sequence[Trajectory], measured: Sequence[str]) -> float:
        means = [run.mean(run.candidates(domains)[-1], measured) for run in group]
        return math.fsum(means) / len(means)

    scores = {name: over_seeds(group, domains) for name, group in variants.items()}
    chosen = list(variants)[middle_of_best(list(scores.values()))]
    if not targets:
        return VariantChoice(chosen, scores)
    reached = {name: over_seeds(group, targets) for name, group in variants.items()}
    return VariantChoice(chosen, scores, max(reached.values()) - reached[chosen])


def middle_of_best(scores: Sequence[float]) -> int:
    """Find the highest score, of several the middle one, of an even number the lower."""
    best = max(scores)
    tied = [number for number, score in enumerate(scores) if score >= best - _EQUAL]
    return tied[(len(tied) - 1) // 2]
