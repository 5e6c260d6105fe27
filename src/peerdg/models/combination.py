"""A model made of several networks, as the data that its folder keeps. Free of torch."""

from dataclasses import dataclass
from typing import Literal

from peerdg.schema import within

Rule = Literal["uniform", "greedy", "ensemble"]
"""How runs become one model: by the mean of their weights, or of their outputs."""

Outputs = Literal["probabilities", "logits"]
"""What an ensemble averages."""

MOST_MEMBERS = 100


@dataclass(frozen=True)
class Member:
    """One run that went into a model, or one of several networks that a run deploys as one.

    Args:
        name: The name of its folder, without the path.
        weights_sha256: Of its weights; None if it was never a model of its own.
        method: What it was trained with; None if that is not recorded.
        seed: Its seed; None likewise.
        train_seed: That of its main phase, if it had another.
        validation: Its accuracy in percent on the source's validation images, where it was used.
        used: Whether it is part of the model; a greedy choice leaves some out.
        progress: How far it was trained, if that was not completed.
    """

    name: str
    weights_sha256: str | None = None
    method: str | None = None
    seed: int | None = None
    train_seed: int | None = None
    validation: float | None = within(at_least=0, at_most=100, default=None)
    used: bool = True
    progress: str | None = None


@dataclass(frozen=True)
class CombinedFrom:
    """What a model was made of, and how.

    Args:
        rule: How.
        members: The runs, in the order in which they were given, or the networks of one run.
        outputs: What an ensemble averages; None for a mean of weights.
    """

    rule: Rule
    members: tuple[Member, ...]
    outputs: Outputs | None = None

    @property
    def problem(self) -> str | None:
        """The first error that types and limits do not express; None if nothing is wrong."""
        used = sum(member.used for member in self.members)
        if not 2 <= len(self.members) <= MOST_MEMBERS:
            return f"'combined.members' must be 2 to {MOST_MEMBERS}, not {len(self.members)}"
        if used < (1 if self.rule == "greedy" else len(self.members)):
            return f"'combined.members' uses {used}, which the rule '{self.rule}' does not"
        if (self.outputs is None) == (self.rule == "ensemble"):
            return "'combined.outputs' belongs to the rule 'ensemble', and to no other"
        return None
