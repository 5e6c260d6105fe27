"""Claims are decided by differences between seeds."""

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from peerdg.errors import ConfigError
from peerdg.paper.catalogue import items
from peerdg.paper.claims import NOT_ENOUGH, NOT_SUPPORTED, SUPPORTED, check_claims

CLAIMS = tomllib.loads(files("peerdg.paper").joinpath("claims.toml").read_text())["claim"]


EARLIER = ["erm", "ada", "m-ada", "l2d", "pden", "simde", "advst", "metacnn"]


def write(
    folder: Path, measure: str, rows: dict[str, Any], *, budget: str = "quick", **figure: Any
) -> None:
    """Write an item whose rows have values by column, or one value per seed as their mean."""
    blocks = []
    for row, values in rows.items():
        columns = values if isinstance(values, dict) else {"mean": values}
        ours = {name: dict(enumerate(each)) for name, each in columns.items()}
        blocks.append({"row": row, "ours": ours})
    panel = {"data": "digits", "measure": measure, "rows": blocks}
    number = len(list(folder.glob("T*.json"))) + 1
    made = {"budget": budget, "panels": [panel]}
    made |= {"figure": {"data": "digits", **figure} if figure else {}}
    (folder / f"T{number}.json").write_text(json.dumps(made))


def verdict(folder: Path, text: str) -> str:
    (claim,) = [claim for claim in check_claims(folder) if text in claim.text]
    return claim.verdict


PEER = "PEER is more accurate than RandAugment."


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ([61, 62, 61.5, 62.5, 61], SUPPORTED),
        ([59, 58, 58.5, 57.5, 59], NOT_SUPPORTED),
        ([61, 59, 60.5, 59.5, 60], NOT_ENOUGH),  # contains 0
        ([61, 62, 61.5, 62.5], NOT_ENOUGH),  # four seeds
    ],
)
def test_the_interval_over_seeds_decides(tmp_path, peer, expected):
    write(tmp_path, "accuracy", {"randaugment": [60.0] * 5, "peer": peer})
    assert verdict(tmp_path, PEER) == expected


def test_a_claim_without_runs_has_not_enough_data(tmp_path):
    write(tmp_path, "accuracy", {"erm": [50.0] * 5})
    assert {claim.verdict for claim in check_claims(tmp_path)} == {NOT_ENOUGH}
    with pytest.raises(ConfigError):
        check_claims(tmp_path / "empty")


def test_variances_are_compared_by_their_ratio(tmp_path):
    """The ratio is always 1/2 or less, but one seed dominates the differences."""
    write(
        tmp_path, "variance", {"randaugment": [1, 1, 1, 1, 900], "peer": [0.5, 0.4, 0.5, 0.4, 440]}
    )
    assert verdict(tmp_path, "PEER (task model) fluctuates less") == SUPPORTED


def test_the_best_earlier_method_counts(tmp_path):
    rows = {"peer": [60.0, 61, 60, 61, 60], **dict.fromkeys(EARLIER, [50.0] * 5)}
    write(tmp_path, "accuracy", {**rows, "advst": [65.0] * 5, "pden": [69.0, 40, 40, 40, 40]})
    assert verdict(tmp_path, "than all earlier methods") == NOT_SUPPORTED


def test_the_best_of_some_earlier_methods_proves_nothing(tmp_path):
    write(tmp_path, "accuracy", {"peer": [60.0, 61, 60, 61, 60], "erm": [50.0] * 5})
    assert verdict(tmp_path, "than all earlier methods") == NOT_ENOUGH


def test_items_with_different_budgets_are_not_compared(tmp_path):
    write(tmp_path, "accuracy", {"peer": [80.0] * 5}, budget="standard")
    write(tmp_path, "accuracy", {"randaugment": [60.0] * 5})
    with pytest.raises(ConfigError):
        check_claims(tmp_path)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([60.1, 59.9, 60.2, 59.8, 60], SUPPORTED),
        ([55.0, 56, 55, 56, 55], NOT_SUPPORTED),
        ([63.0, 57, 60, 61, 58], NOT_ENOUGH),
        ([60.9, 61.1, 61.0, 61.4, 61.1], NOT_ENOUGH),  # 1.1, with the limit 1 in its interval
    ],
)
def test_equality_needs_intervals_within_the_tolerance(tmp_path, other, expected):
    write(tmp_path, "accuracy", {"peer": [60.0] * 5, "peer-info-nce": other})
    assert verdict(tmp_path, "choice of the loss") == expected


def test_fluctuation_follows_distance_if_it_does_so_in_every_seed(tmp_path):
    distance = {"a": [1.0], "b": [2.0], "c": [3.0], "d": [4.0], "mean": [2.5]}
    write(tmp_path, "distance", {"": distance})
    near_to_far = {name: [n + 1 + s / 10 for s in range(5)] for n, name in enumerate("abcd")}
    # In one seed the two farthest targets change places, so that the correlations differ.
    near_to_far["c"][0], near_to_far["d"][0] = near_to_far["d"][0], near_to_far["c"][0]
    write(tmp_path, "variance", {"randaugment": near_to_far})
    write(tmp_path, "accuracy", {"randaugment": near_to_far})
    assert verdict(tmp_path, "fluctuates more on targets") == SUPPORTED
    assert verdict(tmp_path, "Accuracy is lower on targets") == NOT_SUPPORTED


def test_features_and_paths_of_figures_count_by_seed(tmp_path):
    cka = {"peer": {"10": {"0": 0.1}, "20": {str(s): 0.8 + s / 100 for s in range(5)}},
           "randaugment": {"20": {str(s): 0.6 for s in range(5)}}}  # fmt: skip
    write(tmp_path, "accuracy", {}, cka=cka, against="start")
    assert verdict(tmp_path, "distorts the features of the start less") == SUPPORTED


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["text"])
def test_every_claim_is_about_rows_that_its_items_make(claim):
    assert claim["item"] in items()
    rows = {row for item in items().values() for row in item.rows("digits-mini")}
    first, *others = claim.get("more") or claim.get("less") or claim.get("alike") or ["peer"]
    named = [first, *(others[0] if others and isinstance(others[0], list) else others)]
    named.append(claim.get("follows", "peer"))
    assert {row.partition("@")[0].partition(":")[0] for row in named} <= rows
