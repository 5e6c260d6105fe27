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
from pathlib import Path
from typing import Any

from peerdg.errors import ConfigError
from peerdg.options import did_you_mean

Term = str | tuple[str, str]  # a row of the table, or the difference of two
Pair = tuple[Term, Term]  # what is compared, and what it is compared with
Questions = Mapping[str, Sequence[Pair]]  # pairs, under what they are compared for

QUESTION, RANKING, PUBLISHED = "question", "ranking", "published"
SECTIONS = (QUESTION, RANKING, PUBLISHED)
FEWEST_RANKED = 3  # rows, for an order to mean anything


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


def read_study(tables: Mapping[str, Any], rows: Sequence[str], path: Path) -> Study:
    """Read what a plan asks of its report.

    Args:
        tables: The sections of `SECTIONS`, as far as the file has them.
        rows: The rows of the table.
        path: The file.

    Raises:
        ConfigError: If a section has other types, or names a row that there is not.
    """
    published = tables.get(PUBLISHED)
    return Study(
        _questions(tables.get(QUESTION, {}), rows, path),
        _rankings(tables.get(RANKING, {}), rows, path),
        None if published is None else _published(published, rows, path),
    )


def _questions(tables: Any, rows: Sequence[str], path: Path) -> dict[str, list[Pair]]:
    hint = (
        f'Write [{QUESTION}], then "What is asked?" = [["method", "partner"], ...]; in place of '
        "two rows there may be two pairs of rows, whose differences are compared."
    )
    if not isinstance(tables, Mapping):
        raise ConfigError(f"'{QUESTION}' must be a table in {path}.", hint=hint)
    for text, pairs in tables.items():
        if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
            raise ConfigError(f"The question {text!r} needs pairs of rows in {path}.", hint=hint)
        names = [name for pair in pairs for term in pair for name in rows_of(_term(term))]
        _require_rows(names, f"The question {text!r}", rows, path)
    return {text: [(_term(a), _term(b)) for a, b in pairs] for text, pairs in tables.items()}


def _rankings(tables: Any, rows: Sequence[str], path: Path) -> dict[str, list[str]]:
    hint = f'Write [{RANKING}], then "what they are" = ["row", "row", "row", ...].'
    if not isinstance(tables, Mapping):
        raise ConfigError(f"'{RANKING}' must be a table in {path}.", hint=hint)
    for text, names in tables.items():
        known = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not known or len(set(names)) < len(names) or len(names) < FEWEST_RANKED:
            raise ConfigError(
                f"The ranking {text!r} needs {FEWEST_RANKED} or more different rows in {path}.",
                hint=hint,
            )
        _require_rows(names, f"The ranking {text!r}", rows, path)
    return dict(tables)


def _published(tables: Any, rows: Sequence[str], path: Path) -> Published:
    hint = f'Write [{PUBLISHED}], then source = "...", then row = {{ target = 68.2, ... }}.'
    accuracy = dict(tables) if isinstance(tables, Mapping) else {}
    source = accuracy.pop("source", None)
    if not isinstance(source, str) or not accuracy:
        raise ConfigError(f"'{PUBLISHED}' needs a source and rows in {path}.", hint=hint)
    _require_rows(accuracy, f"'{PUBLISHED}'", rows, path)
    for name, values in accuracy.items():
        known = isinstance(values, Mapping) and values and all(map(_is_percent, values.values()))
        if not known:
            raise ConfigError(
                f"'{PUBLISHED}' needs percentages of '{name}' by target in {path}.", hint=hint
            )
    return Published(source, accuracy)


def _require_rows(names: Any, what: str, rows: Sequence[str], path: Path) -> None:
    for name in (name for name in names if name not in rows):
        raise ConfigError(
            f"{what} names '{name}', which is no row of {path}.",
            hint=did_you_mean(str(name), rows),
        )


def rows_of(term: Term) -> tuple[str, ...]:
    """List the rows of a term: one, or two that are subtracted."""
    return (term,) if isinstance(term, str) else term


def _term(term: Any) -> Term:
    return (str(term[0]), str(term[1])) if isinstance(term, list) else str(term)


def _is_pair(pair: Any) -> bool:
    """Whether it is two different names, or two different pairs of names."""
    if not isinstance(pair, list) or len(pair) != 2 or pair[0] == pair[1]:
        return False
    return all(isinstance(term, str) for term in pair) or all(map(_is_pair_of_names, pair))


def _is_pair_of_names(pair: Any) -> bool:
    return _is_pair(pair) and isinstance(pair[0], str)


def _is_percent(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 100
