"""Which epoch, or which setting, one would have chosen, and what that cost on the targets.

A rule scores each candidate by a mean of accuracies and takes the best. The regret of a rule is
how far the mean target accuracy of its choice stays below that of the oracle, which looks at the
targets themselves and is therefore no option in practice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from peerdg.crafted.families import DISJOINT
from peerdg.data import CRAFTED, VALIDATION, is_target
from peerdg.errors import ConfigError

Rule = Literal["last", "source-val", "crafted-val", "oracle"]

RULES: dict[Rule, str] = {
    "last": "the last epoch",
    "source-val": "accuracy on the source's validation images",
    "crafted-val": "mean accuracy on crafted validation images of families not trained on",
    "oracle": "mean target accuracy; NOT AVAILABLE IN PRACTICE, the bound of all other rules",
}

_EQUAL = 1e-9  # percent: means of the same accuracies may differ in the last bit


@dataclass(frozen=True)
class Choice:
    """What a rule chose in one run.

    Attributes:
        rule: Its name.
        epoch: The chosen epoch.
        score: The best score; None for `last`, which has none.
        domains: Domains whose mean accuracy is the score.
        target: Mean target accuracy of the chosen epoch; None without targets.
        regret: The oracle's target accuracy minus this one's; None without targets.
    """

    rule: Rule
    epoch: int
    score: float | None
    domains: tuple[str, ...]
    target: float | None
    regret: float | None = None


@dataclass(frozen=True)
class Trajectory:
    """Accuracy of one model after each evaluated epoch, on each domain."""

    accuracy: Mapping[int, Mapping[str, float]]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], *, model: str) -> "Trajectory":
        """Build from the records of a run; all but evaluations of `model` are skipped.

        Raises:
            ConfigError: If the model was never evaluated.
        """
        accuracy: dict[int, dict[str, float]] = {}
        for record in records:
            if record.get("kind") == "evaluation" and record["model"] == model:
                accuracy.setdefault(record["epoch"], {})[record["domain"]] = record["accuracy"]
        if not accuracy:
            raise ConfigError(f"The run has no evaluation of its model '{model}'.")
        return cls(accuracy)

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains, in the order of their first evaluation."""
        return tuple(dict.fromkeys(d for found in self.accuracy.values() for d in found))

    @property
    def targets(self) -> tuple[str, ...]:
        """The domains that are no validation images."""
        return tuple(filter(is_target, self.domains))

    def scored_by(self, rule: Rule, families: Iterable[str] = DISJOINT) -> tuple[str, ...]:
        """List the domains whose mean accuracy is the rule's score, if they were evaluated."""
        wanted: Mapping[Rule, tuple[str, ...]] = {
            "last": (),
            "source-val": (VALIDATION,),
            "crafted-val": tuple(CRAFTED + family for family in families),
            "oracle": self.targets,
        }
        return tuple(domain for domain in wanted[rule] if domain in self.domains)

    def candidates(self, domains: Iterable[str]) -> list[int]:
        """List epochs evaluated on these domains and all targets; the start only if it is all."""
        needed = {*domains, *self.targets}
        epochs = sorted(epoch for epoch, found in self.accuracy.items() if needed <= found.keys())
        return [epoch for epoch in epochs if epoch > 0] or epochs

    def mean(self, epoch: int, domains: Sequence[str]) -> float:
        """Average the accuracy over `domains`, unweighted."""
        return math.fsum(self.accuracy[epoch][d] for d in domains) / len(domains)

    def choose(
        self, rule: Rule, families: Iterable[str] = DISJOINT, *, also: Iterable[str] = ()
    ) -> Choice | None:
        """Apply the rule, without its regret; None if what it looks at was not evaluated.

        Args:
            rule: The rule.
            families: The crafted families that have a vote.
            also: Further domains that the chosen epoch must have been evaluated on.
        """
        domains = self.scored_by(rule, families)
        epochs = self.candidates([*domains, *also])
        if not epochs or (rule != "last" and not domains):
            return None
        epoch, score = epochs[-1], None
        if domains:
            scores = [self.mean(candidate, domains) for candidate in epochs]
            best = middle_of_best(scores)
            epoch, score = epochs[best], scores[best]
        target = self.mean(epoch, self.targets) if self.targets else None
        return Choice(rule, epoch, score, domains, target)


def select(
    records: Iterable[Mapping[str, Any]], *, model: str, families: Iterable[str] = DISJOINT
) -> dict[Rule, Choice]:
    """Apply every selection rule that a run allows; return each choice with its regret.

    Args:
        records: The run's records, of which the evaluations are read.
        model: The observed model to choose an epoch of, usually the deployed one.
        families: The crafted families that have a vote: those that were not trained on.

    Raises:
        ConfigError: If the model was never evaluated.
    """
    trajectory, families = Trajectory.of(records, model=model), tuple(families)
    found = {rule: trajectory.choose(rule, families) for rule in RULES}
    oracle = found["oracle"]
    best = None if oracle is None else oracle.target
    return {
        rule: choice
        if best is None or choice.target is None
        else replace(choice, regret=best - choice.target)
        for rule, choice in found.items()
        if choice is not None
    }


@dataclass(frozen=True)
class VariantChoice:
    """What a rule chose among settings, e.g. values of w or k.

    Attributes:
        rule: Its name.
        variant: The chosen setting.
        scores: The score of each setting, mean over seeds.
        targets: The mean target accuracy of each setting, mean over seeds; empty without targets.
        regret: The best setting's target accuracy minus the chosen one's; None without targets.
    """

    rule: Rule
    variant: str
    scores: dict[str, float]
    targets: dict[str, float]
    regret: float | None


def select_variant(
    variants: Mapping[str, Sequence[Trajectory]],
    *,
    rule: Rule = "crafted-val",
    epoch: Rule = "last",
    families: Iterable[str] = DISJOINT,
) -> VariantChoice:
    """Choose the setting with the best score, mean over its seeds.

    Args:
        variants: The runs of each setting, one per seed, settings in their natural order.
        rule: What scores a setting.
        epoch: Which epoch of each run is scored; the paper takes the last.
        families: The crafted families that have a vote.

    Raises:
        ConfigError: If there is nothing to choose from, or runs lack what the rule looks at, or
            were scored on different domains.
    """
    families = tuple(families)  # read more than once
    runs = [run for group in variants.values() for run in group]
    if rule == "last" or not all(variants.values()) or not runs:
        raise ConfigError(
            f"There is nothing by which the rule '{rule}' could choose between settings.",
            hint="Give at least one run of each setting, and a rule that has a score.",
        )
    domains, targets = _common_evaluations(runs, rule, families)
    scores = {n: _over_seeds(group, domains, epoch, families) for n, group in variants.items()}
    chosen = list(variants)[middle_of_best(list(scores.values()))]
    if not targets:
        return VariantChoice(rule, chosen, scores, {}, None)
    found = {
        name: _over_seeds(group, targets, epoch, families, also=domains)
        for name, group in variants.items()
    }
    return VariantChoice(rule, chosen, scores, found, max(found.values()) - found[chosen])


def _common_evaluations(
    runs: Sequence[Trajectory], rule: Rule, families: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find what all runs can be scored by, and their targets."""
    found = {(run.scored_by(rule, families), run.targets) for run in runs}
    if len(found) > 1 or not next(iter(found))[0]:
        these = " or ".join(", ".join(scored + targets) or "nothing" for scored, targets in found)
        raise ConfigError(
            f"The rule '{rule}' needs the same evaluations in all runs; these have {these}.",
            hint="Train all of them with the same validation images, families and targets.",
        )
    return next(iter(found))


def middle_of_best(scores: Sequence[float]) -> int:
    """Find the highest score; of several the middle one, of an even number the lower."""
    best = max(scores)
    tied = [number for number, score in enumerate(scores) if score >= best - _EQUAL]
    return tied[(len(tied) - 1) // 2]


def _over_seeds(
    runs: Sequence[Trajectory],
    domains: Sequence[str],
    epoch: Rule,
    families: Iterable[str],
    *,
    also: Sequence[str] = (),
) -> float:
    """Average the accuracy on `domains` at each run's chosen epoch, over runs."""
    means = []
    for run in runs:
        choice = run.choose(epoch, families, also=[*domains, *also])
        if choice is None:
            raise ConfigError(f"A run lacks the evaluations that the rule '{epoch}' looks at.")
        means.append(run.mean(choice.epoch, domains))
    return math.fsum(means) / len(means)
