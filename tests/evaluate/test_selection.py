import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerdg.errors import ConfigError
from peerdg.evaluate.selection import (
    RULES,
    Trajectory,
    middle_of_best,
    select,
)


def records(accuracy: dict[str, list[float]], *, model="task", first=1, every=1) -> list[dict]:
    """One accuracy per evaluated epoch for each domain."""
    return [
        {
            "kind": "evaluation",
            "epoch": first + n * every,
            "model": model,
            "domain": d,
            "accuracy": a,
        }
        for d, series in accuracy.items()
        for n, a in enumerate(series)
    ]


# Epochs 1 to 5. Target means: 50, 62, 70, 58, 64. Six families, of which two were evaluated here,
# means 40, 55, 54, 50, 45; a trained-on family prefers epoch 5.
RUN = {
    "validation": [90, 92, 91, 95, 94],
    "crafted:blur": [50, 60, 58, 50, 50],
    "crafted:weather": [30, 50, 50, 50, 40],
    "crafted:color": [10, 10, 10, 10, 99],
    "art": [60, 64, 80, 56, 68],
    "sketch": [40, 60, 60, 60, 60],
}


def test_each_rule_chooses_as_computed_by_hand():
    chosen = select(records(RUN), model="task")
    assert list(chosen) == list(RULES)
    actual = {rule: (c.epoch, c.score, c.target, c.regret) for rule, c in chosen.items()}
    assert actual == {
        "last": (5, None, 64, 6),
        "source-val": (4, 95, 58, 12),
        "crafted-val": (2, 55, 62, 8),
        "oracle": (3, 70, 70, 0),
    }


def test_only_the_named_model_counts_and_other_records_are_passed_over():
    other = records({"validation": [1, 2, 100], "art": [1, 2, 3]}, model="proxy")
    epoch = [{"kind": "epoch", "epoch": 3, "loss": 0.1}]
    mixed = select(other + epoch + records(RUN), model="task")
    assert mixed == select(records(RUN), model="task")
    assert select(other, model="proxy")["source-val"].target == 3
    with pytest.raises(ConfigError, match="no evaluation"):
        select(other, model="none")


def test_without_targets_there_is_no_oracle_and_no_regret():
    source_only = {name: RUN[name] for name in ("validation", "crafted:blur")}
    chosen = select(records(source_only), model="task")
    assert list(chosen) == ["last", "source-val", "crafted-val"]
    assert chosen["crafted-val"].epoch == 2
    assert {c.target for c in chosen.values()} == {c.regret for c in chosen.values()} == {None}


def test_without_crafted_images_their_rule_is_left_out():
    chosen = select(records({"validation": [1, 2], "art": [3, 4]}), model="task")
    assert list(chosen) == ["last", "source-val", "oracle"]
    trained_on = select(records({"crafted:color": [1, 2], "art": [3, 4]}), model="task")
    assert list(trained_on) == ["last", "oracle"]


def test_epoch_zero_is_a_candidate_only_if_alone():
    falling = records({"validation": [99, 80, 70], "art": [99, 10, 20]}, first=0)
    chosen = select(falling, model="task")
    assert chosen["source-val"].epoch == 1
    assert (chosen["oracle"].epoch, chosen["oracle"].target) == (2, 20)
    alone = select(records({"validation": [50], "art": [40]}, first=0), model="task")
    assert {choice.epoch for choice in alone.values()} == {0}


def test_a_partially_evaluated_epoch_is_not_a_candidate():
    whole = records({"validation": [50, 60], "art": [10, 20], "sketch": [30, 40]})
    half = [{**whole[0], "epoch": 3, "accuracy": 100}, {**whole[2], "epoch": 3, "accuracy": 100}]
    assert select(whole + half, model="task") == select(whole, model="task")


def test_the_order_of_the_records_does_not_matter():
    backwards = sorted(records(RUN), key=lambda record: -record["epoch"])
    assert select(backwards, model="task") == select(records(RUN), model="task")


def test_ties_go_to_the_middle_and_to_the_lower_middle_of_an_even_number():
    assert middle_of_best([1, 3, 3, 3, 2]) == 2
    assert middle_of_best([3, 1, 3, 3, 3]) == 2
    assert middle_of_best([3, 3]) == 0
    assert middle_of_best([5]) == 0
    assert middle_of_best([90.0, 90.0, 90.0001]) == 2  # one image in a million is a difference
    tied = records({"validation": [95, 95, 90, 95, 95], "art": [1, 2, 3, 4, 5]}, every=10)
    assert select(tied, model="task")["source-val"].epoch == 11


def test_means_of_the_same_accuracies_in_another_order_are_ties():
    for n in range(3, 40):  # a plain sum rounds some of these differently
        a, b, c = 100 / n, 100 / 7, 1100 / 13
        blur, edges, weather = [a, b, c], [b, c, a], [c, a, b]
        crafted = {"crafted:blur": blur, "crafted:edges": edges, "crafted:weather": weather}
        assert select(records(crafted), model="task")["crafted-val"].epoch == 2


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_the_chosen_score_is_the_best_and_as_many_ties_lie_on_either_side(scores):
    chosen = middle_of_best(scores)
    assert scores[chosen] == max(scores)
    below, above = scores[:chosen].count(max(scores)), scores[chosen + 1 :].count(max(scores))
    assert above - below in (0, 1)


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.fixed_dictionaries(
            {
                name: st.lists(st.floats(0, 100), min_size=n, max_size=n)
                for name in ("validation", "crafted:edges", "art", "sketch")
            }
        )
    )
)
def test_no_rule_beats_the_oracle(accuracy):
    chosen = select(records(accuracy), model="task")
    assert min(choice.regret for choice in chosen.values()) >= -1e-9
    assert chosen["oracle"].regret == 0


def trajectory(accuracy: dict[str, list[float]]) -> Trajectory:
    return Trajectory.from_records(records(accuracy), model="task")
