"""Which runs belong together, what they are called, and which pairs are compared."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerdg.errors import ConfigError
from peerdg.evaluate.statistics import paired_difference
from peerdg.report.compare import (
    answer,
    answers_csv,
    answers_table,
    by_variant,
    cautions,
    other_crafted_images,
    require_comparable,
    shared_differences,
    variant_differences,
)
from peerdg.report.runs import RunResult
from peerdg.report.table import make_table
from tests.report.made import GROUPS, peer


def names(*runs: RunResult) -> list[str]:
    return list(by_variant(runs))


# Names of variants.


def test_runs_that_differ_only_in_their_seed_are_grouped_under_their_method():
    groups = by_variant([peer(1), peer(0), peer(0, method="erm")])
    assert {name: [r.seed for r in group] for name, group in groups.items()} == {
        "peer": [0, 1], "erm": [0],
    }  # fmt: skip
    assert names(peer(0, recipe="my-recipe"), peer(1)) == ["my-recipe"]  # a name decides nothing
    assert [len(g) for g in by_variant([peer(0), peer(1), peer(0)]).values()] == [2]
    assert names(peer(fields={"status": "resumable"})) == []


def test_variants_are_called_by_every_option_that_differs():
    runs = peer(), peer(peer={"w": 0.1}), peer(peer={"w": 0.1, "k": 5})
    assert names(*runs) == ["peer w=2 k=1", "peer w=0.1 k=1", "peer w=0.1 k=5"]
    assert names(peer(method="erm"), *runs[:2]) == ["erm", "peer w=2", "peer w=0.1"]
    assert names(peer(), peer(train={"lr": 0.1})) == ["peer lr=0.01", "peer lr=0.1"]
    assert names(peer(), peer(train={"epochs": 9}), peer(pretrain={"epochs": 9})) == [
        "peer pretrain.epochs=1 train.epochs=3", "peer pretrain.epochs=1 train.epochs=9",
        "peer pretrain.epochs=9 train.epochs=3",
    ]  # fmt: skip


def test_options_are_written_so_that_they_differ():
    crop = names(peer(), peer(transform={"crop": [0.8, 1.0]}))
    assert crop == ["peer crop=unset", "peer crop=0.8,1"]
    rates = (0.00012345678, 0.00012345699)
    assert names(*(peer(train={"lr": r}) for r in rates)) == [f"peer lr={r!r}" for r in rates]
    # A text, and an option that is not there.
    alike = names(peer(peer={"note": "unset"}), peer())
    assert alike == ["peer note=unset (1)", "peer note=unset (2)"]


def test_evaluation_that_follows_k_is_not_named_with_it():
    assert names(peer(), peer(peer={"k": 5}, evaluate_every=5)) == ["peer k=1", "peer k=5"]
    assert names(peer(), peer(evaluate_every=3))[1] == "peer evaluate_every=3"


def test_of_many_differences_the_first_are_in_the_name_and_all_in_the_notes():
    other = {"budget": "paper", "backbone": "large", "evaluate_every": 9,
             "train": {"epochs": 9, "lr": 0.5, "batch_size": 64}}  # fmt: skip
    groups = by_variant([peer(), peer(**other), peer(**other, peer={"w": 0.1})])
    assert next(iter(groups)).startswith("peer budget=quick w=2") and len(groups) == 3
    first, second = variant_differences(groups)
    for part in ("budget paper", "train.epochs 9", "backbone large"):
        assert part in first and part in second
    assert "peer.w 0.1" in second and "peer.w" not in first


def test_runs_without_augmentation_are_one_variant_whatever_its_options():
    runs = [peer(0, method="erm"), peer(1, method="erm", augment={"operations": "sdg"})]
    assert names(*runs) == ["erm"]
    assert len(names(peer(), peer(augment={"operations": "sdg"}))) == 2


def test_the_length_of_epochs_is_an_option_of_methods_that_make_images_only():
    def other(method: str, **train: object) -> bool:
        first, second = (
            peer(method=method, train={**train, "epoch_of": what}) for what in ("pool", "source")
        )
        return first.variant != second.variant

    assert other("ada") and not other("erm") and not other("ada", steps_per_epoch=5)


def test_other_training_images_are_another_variant_not_another_seed():
    def on(seed: int, images: str, folder: str) -> RunResult:
        return peer(seed, images={"train": images}, fields={"folder": folder})

    first = on(0, "1111111111", "photos")
    assert names(first, on(1, "2222222222", "photos")) == [
        "peer data=photos@111111", "peer data=photos@222222",
    ]  # fmt: skip
    assert names(first, on(1, "1111111111", "copy-of-photos")) == ["peer"]


def test_an_own_network_is_told_apart_by_structure_and_start():
    def own(seed: int, network: str, start: str) -> RunResult:
        return peer(seed, backbone="own", fields={"network": network, "network_weights": start})

    # A new network for each seed is one variant.
    assert names(own(0, "n", "w0"), own(1, "n", "w1")) == ["peer"]
    assert names(own(0, "n", "w0"), own(0, "m", "w0")) == ["peer network=n", "peer network=m"]
    again = names(own(0, "n", "w0"), own(0, "n", "trained"))
    assert again == ["peer initial_weights=w0", "peer initial_weights=trained"]


def test_files_of_weights_of_one_name_stay_apart():
    runs = [
        peer(seed, weights="best.pth", fields={"weights_sha256": digest * 32})
        for seed, digest in enumerate(("aa", "bb", "aa"))
    ]
    groups = by_variant(runs)
    assert [[r.seed for r in group] for group in groups.values()] == [[0, 2], [1]]
    assert next(iter(groups)).startswith("peer weights=best.pth@aaaa")


def test_rows_of_a_bench_keep_their_names():
    heavy = [peer(seed, fields={"row": "peer-heavy"}) for seed in (0, 1)]
    light = [peer(seed, peer={"w": 0.1}, fields={"row": "peer"}) for seed in (0, 1)]
    assert names(*heavy, *light) == ["peer-heavy", "peer"]
    # Another bench calls something else `peer`: options tell them apart, and no run is lost.
    found = by_variant([*heavy, *light, peer(peer={"w": 0.5}, fields={"row": "peer"})])
    assert list(found) == ["peer w=2", "peer w=0.1", "peer w=0.5"]
    assert sum(map(len, found.values())) == 5
    assert len(by_variant([*light, peer(peer={"w": 0.5})])) == 2  # a run of no bench


OPTIONS = st.fixed_dictionaries(
    {
        "peer": st.fixed_dictionaries({"w": st.sampled_from([0.1, 2.0]), "k": st.integers(1, 3)}),
        "train": st.fixed_dictionaries({"lr": st.sampled_from([0.1, 0.01])}),
        "pretrain": st.fixed_dictionaries({"epochs": st.integers(1, 2)}),
        "backbone": st.sampled_from(["a", "b"]),
        "budget": st.sampled_from(["quick", "paper"]),
        "seed": st.integers(0, 3),
    }
)


@given(st.lists(OPTIONS, min_size=1, max_size=8))
def test_every_run_is_in_one_group_and_no_two_groups_share_a_name(configs):
    groups = by_variant([peer(**config) for config in configs])
    assert len(groups) == len({json.dumps({**c, "seed": 0}, sort_keys=True) for c in configs})
    for group in groups.values():
        assert len({run.variant for run in group}) == 1
        assert [run.seed for run in group] == sorted({run.seed for run in group})


# Comparability.


def test_other_data_or_targets_are_not_compared():
    for other in (peer(benchmark="pacs"), peer(domains=["validation", "art"])):
        with pytest.raises(ConfigError, match="different data or targets"):
            require_comparable([peer(), other])


def test_every_run_is_checked_for_the_images_it_was_evaluated_on():
    """Also one that would be another seed, or the same again, of a variant."""
    for seed in (0, 1):
        require_comparable([peer(), peer(seed, images={"train": "t2", "validation": "v2"})])
        with pytest.raises(ConfigError, match=r"different images .* \(art\)"):
            require_comparable([peer(), peer(seed, images={"target:art": "a2"})])
        source = ["validation", "crafted:blur"]
        with pytest.raises(ConfigError, match="different images"):
            require_comparable([peer(0, source), peer(seed, source, images={"validation": "v2"})])


def test_two_rules_for_batch_statistics_are_not_compared():
    def under(rule: str | None, w: float = 2.0) -> RunResult:
        return peer(peer={"w": w}, fields={"batch_statistics": rule})

    with pytest.raises(ConfigError, match="different batch statistics"):
        require_comparable([under("clean"), under("trained"), under("frozen")])
    for rule in ("clean", None, "frozen"):  # without batch normalization, or never changed
        require_comparable([under("clean"), under(rule)])
    assert names(under("clean"), under("frozen")) == [
        "peer batch_statistics=clean", "peer batch_statistics=frozen",
    ]  # fmt: skip


def test_what_makes_rows_differ_besides_the_method_is_said():
    def steps(run: RunResult, *counts: int) -> RunResult:
        epochs = [{"phase": "train", "epoch": n, "steps": c, "seconds": 1.0}
                  for n, c in enumerate(counts, 1)]  # fmt: skip
        pretraining = {"phase": "pretrain", "epoch": 1, "steps": 999, "seconds": 1.0}
        return replace(run, epochs=[pretraining, *epochs])

    erm = steps(peer(method="erm"), 3, 3)
    assert cautions({"peer": [steps(peer(), 3, 3)], "erm": [erm]}) == []
    (sentence,) = cautions({"peer": [steps(peer(), 300, 609)], "erm": [erm]})
    assert "optimizer steps (peer: 909; erm: 6)" in sentence
    (sentence,) = cautions({"peer": [peer(images={"train": "t2"})], "erm": [erm]})
    assert "different images (peer: own-data@t2; erm: own-data@t1)" in sentence
    (sentence,) = cautions({"peer": [peer(images={"validation": "v2"})], "erm": [erm]})
    assert "validation images differ" in sentence
    (sentence,) = cautions({"peer": [peer(fields={"collapsed": ("pretrain",)})]})
    assert sentence.startswith("peer, seed 0: pre-training collapsed")


def test_crafted_images_that_differ_between_rows_are_not_compared():
    """Runs of a seed start from one network, so equal crafted images give equal accuracies."""

    def started(crafted: float, seed: int, method: str, clean: float = 95.0) -> RunResult:
        found = peer(seed, method=method)
        start = {"validation": clean, "art": 40.0, "crafted:blur": crafted}
        records = [{"kind": "evaluation", "epoch": 0, "model": found.trained, "domain": domain,
                    "n": 500, "accuracy": value} for domain, value in start.items()]  # fmt: skip
        return replace(found, evaluations=[*records, *found.evaluations])

    groups = {
        "peer": [started(80.0, 0, "peer"), started(80.0, 1, "peer"), started(80.0, 2, "peer")],
        "erm": [
            started(81.0, 0, "erm"),  # other images
            started(80.0, 1, "erm"),
            started(81.0, 2, "erm", clean=94.0),  # another network
        ],
    }
    assert other_crafted_images([run for group in groups.values() for run in group]) == [0]
    (sentence,) = cautions(groups)
    assert "seed 0 " in sentence
    (found,) = answer({"": [(("peer",), ("erm",))]}, groups, score="target mean", period=1)
    assert found.differences["target mean"].by_seed.keys() == {0, 1, 2}
    assert found.differences["crafted val"].by_seed.keys() == {1, 2}


def test_options_outside_the_method_that_differ_are_listed():
    def differ(*runs: RunResult) -> list[str]:
        return shared_differences(by_variant(runs))

    assert differ(peer(), peer(method="erm")) == []
    assert differ(peer(), peer(method="erm", train={"lr": 0.1})) == ["train.lr"]
    assert differ(peer(), peer(method="erm", augment={"operations": "sdg"})) == []
    randaugment = peer(method="randaugment", augment={"operations": "sdg"})
    assert differ(peer(augment={"operations": "torchvision"}), randaugment) == [
        "augment.operations"
    ]


# Questions.

WORTH, OTHER = "What is averaging worth?", "And <the> rest | of it?"
QUESTIONS = {
    WORTH: [(("p-ens",), ("randaugment",))],
    OTHER: [(("l2d",), ("erm",)), (("peer",), ("erm",))],
}


@pytest.fixture(scope="module")
def table():
    return make_table(GROUPS, questions=QUESTIONS)


def test_a_pair_is_compared_seed_by_seed(table):
    first, second = table.answers  # of PEER there is no run
    assert (first.question, first.method, first.partner) == (WORTH, "p-ens", "randaugment")
    # 59 against 63, 64, 67
    expected = paired_difference({0: -4.0, 1: -5.0, 2: -8.0}, dict.fromkeys(range(3), 0.0))
    assert first.differences["target mean"] == expected
    assert second.differences["target mean"].n == 2  # seeds that both have
    assert second.label == "l2d † - erm"


def test_steadiness_is_that_of_the_deployed_and_of_the_trained_network(table):
    """The trained network moves by 1 from epoch to epoch, the average by half of it."""
    found = table.answers[0].differences
    # Epochs 6 to 8, the first five periods left out. Epoch 6 is four points higher.
    # Around the mean of three only the middle one moves: by 0.5 - 4.5 / 3 and 1 - 5 / 3.
    ratio = (1.5 - 0.5) / (5 / 3 - 1)
    assert found["steadiness"].mean == pytest.approx(np.log(ratio))
    cell = f"×{ratio:.2f} ({', '.join([f'{ratio:.2f}'] * 3)})"
    assert cell in answers_table(table.answers[:1]).rows[0]
    assert found["trained: steadiness"].mean == pytest.approx(0.0)
    assert found["trained: target mean"].mean == found["target mean"].mean  # epoch 8: no swing
    assert found["source val"].mean == 0.0
    assert "crafted val" not in found  # nothing was crafted in these runs


def test_numbers_are_the_same_in_table_and_file(table):
    shown = answers_table(table.answers[:1])
    assert shown.columns[:3] == ["difference", "seeds", "target mean"]
    assert shown.rows[0][:2] == ["p-ens - randaugment", "3"]
    written = list(csv.DictReader(io.StringIO(answers_csv(table.answers))))
    first = written[0]
    assert (first["method"], first["measure"], first["pairs"]) == ("p-ens", "target mean", "3")
    assert shown.rows[0][2].startswith(f"{float(first['difference']):+.1f} (")
    assert len(written) == sum(len(found.differences) for found in table.answers)


def test_two_differences_are_compared_seed_by_seed():
    def answers(*pairs: object):
        return make_table(GROUPS, questions={"?": list(pairs)}).answers

    (found,) = answers((("p-ens", "erm"), ("randaugment", "erm")))
    by_seed = found.differences["target mean"].by_seed
    assert by_seed == {0: -4.0, 1: -5.0, 2: -8.0}  # as without ERM
    assert found.label == "(p-ens - erm) - (randaugment - erm)"
    assert (found.method, found.partner) == ("(p-ens - erm)", "(randaugment - erm)")
    (crossed,) = answers((("p-ens", "randaugment"), ("l2d", "erm")))
    averaging, l2d = answers((("p-ens",), ("randaugment",)), (("l2d",), ("erm",)))
    crossed_by, averaging_by, l2d_by = (
        answer.differences["target mean"].by_seed for answer in (crossed, averaging, l2d)
    )
    assert crossed_by == {seed: averaging_by[seed] - l2d_by[seed] for seed in (0, 1)}
    assert crossed.label.endswith(" - (l2d † - erm)")
    assert answers((("peer", "erm"), ("l2d", "erm"))) == ()  # of PEER there is no run
