"""Check the claims of the paper, listed in `claims.toml`, against the runs: see docs/paper.md.

Each seed gives one difference between two rows, and Student's 95 % interval of their mean decides.
Variances are compared by the logarithm of their ratio. Distances between data sets need no
training, so they have random samples of images instead of seeds.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from peerdg.errors import ConfigError
from peerdg.evaluate.statistics import (
    MIN_SEEDS,
    Difference,
    paired_difference,
    scipy_stats,
    subtract_by_seed,
)
from peerdg.files import read_json
from peerdg.paper.catalogue import MEAN, items

SUPPORTED, NOT_SUPPORTED, NOT_ENOUGH = "supported", "not supported", "not enough data"
BySeed = Mapping[int, float]
Numbers = dict[tuple[str, str], dict[str, BySeed]]  # by measure and row, then by column


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with its verdict on one data set."""

    text: str
    item: str
    data: str
    verdict: str
    evidence: str


def check_claims(folder: Path) -> list[Claim]:
    """Check every claim on each data set that `peerdg paper run` used in `folder`."""
    claims = tomllib.loads(files("peerdg.paper").joinpath("claims.toml").read_text("utf-8"))
    found = read_numbers(folder)
    if not found:
        hint = "Make some with `peerdg paper run`."
        raise ConfigError(f"{folder} has no items of the paper.", hint=hint)
    return [
        Claim(claim["text"], claim["item"], data, *_check(claim, numbers))
        for data, numbers in found.items()
        for claim in claims["claim"]
    ]


def read_numbers(folder: Path) -> dict[str, Numbers]:
    """Read the numbers of all items in a folder, by data set."""
    found: dict[str, Numbers] = {}
    budgets: dict[str, str] = {}
    for file in filter(Path.is_file, (folder / f"{name}.json" for name in items())):
        made = read_json(file)
        for data in {each["data"] for each in (*made["panels"], made["figure"]) if each}:
            if budgets.setdefault(data, made["budget"]) != made["budget"]:
                raise ConfigError(
                    f"Items in {folder} have different budgets or options: {budgets[data]}; "
                    f"{made['budget']}.",
                    hint="Make each budget in its own --out folder.",
                )
        for block in made["panels"]:
            for row in filter(lambda row: row["ours"], block["rows"]):
                columns = {column: _by_seed(each) for column, each in row["ours"].items()}
                found.setdefault(block["data"], {})[block["measure"], row["row"]] = columns
        figure = made["figure"]
        rows = {(m, row): values for m in ("gain", "strength", "variance")
                for row, values in figure.get(m, {}).items()}  # fmt: skip
        for row, epochs in figure.get("cka", {}).items():
            rows[f"cka {figure['against']}", row] = epochs[max(epochs, key=int)]
        for key, values in rows.items():
            found.setdefault(figure["data"], {}).setdefault(key, {MEAN: _by_seed(values)})
    return found


def _by_seed(values: Mapping[str, float]) -> BySeed:
    return {int(seed): value for seed, value in values.items()}


def _check(claim: Mapping[str, Any], numbers: Numbers) -> tuple[str, str]:
    """Return verdict and evidence."""
    measure = claim["measure"]

    def values(row: str) -> BySeed:
        name, _, column = row.partition("@")
        return numbers.get((measure, name), {}).get(column or MEAN, {})

    if "alike" in claim:
        return _alike(claim, {row: values(row) for row in claim["alike"]})
    if "follows" in claim:
        of, distance = numbers.get((measure, claim["follows"]), {}), numbers.get(("distance", ""))
        text = f"rank correlation of {measure} and distance, {claim['follows']}"
        return _verdict(_correlations(of, distance or {}), text, claim["sign"])
    if "positive" in claim:
        row = claim["positive"]
        text = f"rank correlation of distance and {row}"
        return _verdict(values(row), text, 1, unit="random samples of images")
    a, b = claim.get("more") or claim["less"]
    if isinstance(b, list):  # the best of several rows
        seeds = set(values(a)).intersection(*map(values, b))
        if not seeds:
            missing = ", ".join(row for row in (a, *b) if not values(row)) or "common seeds"
            return NOT_ENOUGH, f"{measure}, {a} against the best of {len(b)} rows: no {missing}"
        b = max(b, key=lambda row: fmean(values(row)[seed] for seed in seeds))
    first, second = values(a), values(b)
    if is_ratio := measure == "variance":
        first, second = ({s: math.log(v) for s, v in x.items() if v > 0} for x in (first, second))
    shared = subtract_by_seed(first, second)
    text = f"{measure}, {a} {'/' if is_ratio else '-'} {b}"
    return _verdict(shared, text, 1 if "more" in claim else -1, is_ratio=is_ratio)


def _verdict(
    by_seed: BySeed, what: str, sign: int, *, is_ratio: bool = False, unit: str = "seeds"
) -> tuple[str, str]:
    found = paired_difference(by_seed, dict.fromkeys(by_seed, 0.0))
    if found is None:
        return NOT_ENOUGH, f"{what}: no values"
    agree = sum(value * sign > 0 for value in by_seed.values())
    text = f"{what}: {_text(found, is_ratio)}, as claimed in {agree} of {found.n} {unit}"
    if found.margin is None:
        return NOT_ENOUGH, f"{text}, {MIN_SEEDS} are needed"
    if not found.is_clear:
        return NOT_ENOUGH, text
    return (SUPPORTED if found.mean * sign > 0 else NOT_SUPPORTED), text


def _text(found: Difference, is_ratio: bool = False) -> str:
    """Format a mean difference or ratio with its interval."""
    ends = [found.mean] if found.margin is None else [
        found.mean, found.mean - found.margin, found.mean + found.margin]  # fmt: skip
    mean, *interval = (f"×{math.exp(v):.2f}" if is_ratio else f"{v:+.2f}" for v in ends)
    return f"{mean} [{', '.join(interval)}] (Student's 95 %)" if interval else mean


def _alike(claim: Mapping[str, Any], rows: Mapping[str, BySeed]) -> tuple[str, str]:
    """Check that all rows differ from the first by at most the tolerance."""
    reference, *others = rows
    limit = claim["tolerance"]
    pairs = {row: paired_difference(rows[row], rows[reference]) for row in others}
    found = {row: each for row, each in pairs.items() if each is not None}
    text = ", ".join(f"{row} {_text(each)}" for row, each in found.items()) or "no runs"
    text = f"{claim['measure']}, difference from {reference}, at most {limit}: {text}"
    ends = [(abs(d.mean), d.margin) for d in found.values() if d.margin is not None]
    if any(mean - margin > limit for mean, margin in ends):
        return NOT_SUPPORTED, text
    is_supported = len(ends) == len(others) and all(m + margin <= limit for m, margin in ends)
    return (SUPPORTED if is_supported else NOT_ENOUGH), text


def _correlations(values: Mapping[str, BySeed], distance: Mapping[str, BySeed]) -> BySeed:
    """Return Spearman's correlation over targets with their distance, for each seed."""
    targets = [name for name in values if name in distance and name != MEAN]
    if len(targets) < 3:
        return {}
    far = [fmean(distance[name].values()) for name in targets]
    spearman = scipy_stats().spearmanr
    return {
        seed: float(spearman(far, [values[name][seed] for name in targets])[0])
        for seed in values[targets[0]]
    }
