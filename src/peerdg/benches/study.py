"""What the plan of a study asks of its report, besides the table.

    [question]
    "Does a longer period help?" = [["peer-k8", "peer"]]
    "More than without averaging?" = [[["peer", "p-ens"], ["peer-latest", "randaugment"]]]

    [ranking]
    "settings of PEER" = ["peer", "peer-k8", "peer-w2"]

    [published]
    source = "the paper's Table 3"
    peer = { sketch = 68.21 }

Free of torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Term = str | tuple[str, str]  # a row of the table, or the difference of two
Pair = tuple[Term, Term]  # what is compared, and what it is compared with
Questions = Mapping[str, Sequence[Pair]]  # pairs, under what they are compared for

MIN_RANKED = 3  # rows, for an order to mean anything


@dataclass(frozen=True)
class Published:
    """Numbers of a publication, to stand beside those of a bench.

    Args:
        source: Where they are from, and what they are of.
        accuracy: In percent, by row and target.
    """

    source: str
    accuracy: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Study:
    """What a report is asked for.

    Args:
        questions: Pairs of rows to compare; those that the bench does not have are left out.
        rankings: Rows that source-only scores are to put in order, under what they are called.
        published: Numbers of a publication.
    """

    questions: Questions = field(default_factory=dict)
    rankings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    published: Published | None = None


def rows_of(term: Term) -> tuple[str, ...]:
    """List the rows of a term: one, or two that are subtracted."""
    return (term,) if isinstance(term, str) else term
