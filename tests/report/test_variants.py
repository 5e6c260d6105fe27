"""Compared runs are called by what differs between them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerdg.cli.main import run as peerdg
from peerdg.errors import ConfigError
from peerdg.options import merge
from peerdg.report.comparison import comparison_page, require_comparable
from peerdg.report.result import RunResult
from peerdg.report.runs import load_runs, read_run, save_runs
from peerdg.report.tables import listed_runs
from peerdg.report.variants import by_variant, variant_differences
from tests.report.test_selection_report import run
from tests.run.test_choices import folder


def variant(seed: int = 0, *, data: str = "", folder: str | None = None, **options: Any):
    """A finished run of PEER with other options than the usual ones."""
    usual = run(seed % 2)
    config = merge(usual.config, {"seed": seed}, options)
    fingerprints = {"train": data, "target:art": "a", "target:sketch": "s"} if data else {}
    return replace(usual, config=config, folder=folder, fingerprints=fingerprints)


def names(*runs: RunResult) -> list[str]:
    return list(by_variant(runs))


def test_one_variant_is_called_by_its_method_whatever_its_options():
    assert names(variant(0, peer={"w": 0.1}), variant(1, peer={"w": 0.1})) == ["peer"]


def test_two_variants_are_called_by_the_option_that_differs():
    runs = [variant(0), variant(0, peer={"w": 0.1}), variant(1, peer={"w": 0.1})]
    assert {name: len(group) for name, group in by_variant(runs).items()} == {
        "peer w=2": 1, "peer w=0.1": 2,
    }  # fmt: skip


def test_three_variants_name_every_option_that_differs_anywhere():
    runs = variant(), variant(peer={"w": 0.1}), variant(peer={"w": 0.1, "k": 5})
    assert names(*runs) == ["peer w=2 k=1", "peer w=0.1 k=1", "peer w=0.1 k=5"]


def test_methods_are_named_apart_from_each_other():
    erm = variant(method="erm", erm={})
    assert names(erm, variant(), variant(peer={"w": 0.1})) == ["erm", "peer w=2", "peer w=0.1"]
    without = variant(peer={"regularizer": "none"})
    assert names(without, variant()) == ["p-ens", "peer"]


def test_options_of_other_sections_are_named_shortly_where_that_is_clear():
    assert names(variant(), variant(train={"lr": 0.1})) == ["peer lr=0.01", "peer lr=0.1"]
    both = names(variant(), variant(train={"epochs": 9}), variant(pretrain={"epochs": 9}))
    assert both == [
        "peer pretrain.epochs=1 train.epochs=3",
        "peer pretrain.epochs=1 train.epochs=9",
        "peer pretrain.epochs=9 train.epochs=3",
    ]


def test_an_option_that_one_variant_lacks_is_unset():
    assert names(variant(), variant(transform={"crop": [0.8, 1.0]})) == [
        "peer crop=unset", "peer crop=0.8,1",
    ]  # fmt: skip
    assert names(variant(), variant(peer={"average": False}))[1] == "peer average=false"


def test_evaluation_that_follows_k_is_not_named_beside_it():
    longer = variant(peer={"k": 5}, evaluate_every=5)
    assert names(variant(), longer) == ["peer k=1", "peer k=5"]
    assert names(variant(), variant(evaluate_every=3)) == [
        "peer evaluate_every=1", "peer evaluate_every=3",
    ]  # fmt: skip


def test_of_many_differences_the_fewest_that_tell_variants_apart_are_named():
    other = {"budget": "paper", "backbone": "large", "evaluate_every": 9,
             "train": {"epochs": 9, "lr": 0.5, "batch_size": 64}}  # fmt: skip
    runs = variant(), variant(**other), variant(**other, peer={"w": 0.1})
    groups = by_variant(runs)
    assert list(groups) == [
        "peer budget=quick w=2", "peer budget=paper w=2", "peer budget=paper w=0.1",
    ]  # fmt: skip
    (sentence,) = variant_differences(groups)
    for part in ("peer.w (2, 2, 0.1)", "train.epochs (3, 9, 9)", "backbone (tiny, large, large)"):
        assert part in sentence


def test_each_of_many_variants_is_told_apart_from_the_first():
    lengths = [variant(train={"epochs": n}) for n in (3, 4, 5, 6)]
    both = variant(train={"epochs": 7}, peer={"w": 0.1})
    assert variant_differences(by_variant([*lengths, both])) == [
        "peer w=2 epochs=4 is peer w=2 epochs=3 with train.epochs 4.",
        "peer w=2 epochs=5 is peer w=2 epochs=3 with train.epochs 5.",
        "peer w=2 epochs=6 is peer w=2 epochs=3 with train.epochs 6.",
        "peer w=0.1 epochs=7 is peer w=2 epochs=3 with peer.w 0.1, train.epochs 7.",
    ]


def test_other_training_images_are_another_variant_not_another_seed():
    """The folder is not part of the config that is compared, but its images are."""
    first = variant(0, data="1111111111", folder="photos")
    second = variant(1, data="2222222222", folder="drawings")
    assert names(first, second) == ["peer data=photos", "peer data=drawings"]
    same_name = variant(1, data="2222222222", folder="photos")
    assert names(first, same_name) == ["peer data=photos@111111", "peer data=photos@222222"]
    moved = variant(1, data="1111111111", folder="copy-of-photos")
    assert names(first, moved) == ["peer"]


def test_records_that_do_not_name_their_images_join_those_that_do():
    assert names(variant(0), variant(1, data="1111111111", folder="photos")) == ["peer"]


def test_runs_judged_on_other_images_under_the_same_names_are_not_compared():
    first = variant(0, data="1111", folder="photos")
    second = variant(0, data="2222", folder="drawings")
    require_comparable([first, second])  # the same targets: what was learnt from may differ
    other = replace(second, fingerprints={**second.fingerprints, "target:art": "another"})
    with pytest.raises(ConfigError, match="targets of these runs have the same names but other"):
        require_comparable([first, other])


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "peer": st.fixed_dictionaries(
                    {"w": st.sampled_from([0.1, 2.0]), "k": st.integers(1, 3)}
                ),
                "train": st.fixed_dictionaries(
                    {"lr": st.sampled_from([0.1, 0.01]), "epochs": st.integers(1, 3)}
                ),
                "pretrain": st.fixed_dictionaries({"epochs": st.integers(1, 2)}),
                "backbone": st.sampled_from(["a", "b"]),
                "seed": st.integers(0, 3),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_every_run_is_in_one_group_and_no_two_groups_share_a_name(configs):
    runs = [variant(**config) for config in configs]
    groups = by_variant(runs)
    without_seed = {json.dumps({**c, "seed": None}, sort_keys=True) for c in configs}
    assert len(groups) == len(without_seed)
    for group in groups.values():
        assert len({run.variant for run in group}) == 1
        assert [run.seed for run in group] == sorted({run.seed for run in group})
    assert {run.variant for run in runs} == {g[0].variant for g in groups.values()}


def test_the_page_names_w_and_what_was_held_back():
    runs = [variant(), variant(peer={"w": 0.1})]
    runs = [replace(r, records=[{**x, "n": 171} for x in r.records]) for r in runs]
    page = comparison_page(runs, title="t")
    assert "; 171 source images for validation" in page
    known = [replace(r, inputs=replace(r.inputs, images={"train": 1499})) for r in runs]
    learnt = comparison_page(known, title="t")
    assert "; 1,499 source images to learn from, 171 for validation" in learnt
    assert "peer w=2: k 1, w 2. peer w=0.1: k 1, w 0.1." in page


def test_runs_on_own_images_are_listed_by_their_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder(Path("my photos"))
    arguments = ["train", "my photos", "--epochs", "1", "--method", "erm", "--pretrain.epochs", "0",
                 "--out", "run", "--crafted", "off", "--quiet"]  # fmt: skip
    assert peerdg(arguments, debug=True) == 0
    assert listed_runs([read_run(Path("run"))]).rows[0][1] == "my photos"
    save_runs(Path("runs.json"), [read_run(Path("run"))])
    (kept,) = load_runs(Path("runs.json"))
    assert kept.data == "my photos"
    assert kept.train_fingerprint == read_run(Path("run")).train_fingerprint != ""
    assert str(tmp_path) not in Path("runs.json").read_text()
    capsys.readouterr()
    assert peerdg(["runs", "run"], debug=True) == 0
    shown = capsys.readouterr().out
    assert "own-data" not in shown


def test_rows_of_a_bench_are_called_as_the_bench_calls_them(tmp_path):
    heavy = [replace(variant(seed, peer={"w": 2.0}), row="peer-heavy") for seed in (0, 1)]
    light = [replace(variant(seed, peer={"w": 0.1}), row="peer") for seed in (0, 1)]
    assert {name: len(group) for name, group in by_variant([*heavy, *light]).items()} == {
        "peer-heavy": 2, "peer": 2,
    }  # fmt: skip
    save_runs(tmp_path / "runs.json", [*heavy, *light])
    assert list(by_variant(load_runs(tmp_path / "runs.json"))) == ["peer-heavy", "peer"]
    # Another bench calls something else `peer`: options tell them apart, and no run is lost.
    other = [replace(variant(0, peer={"w": 0.5}), row="peer")]
    found = by_variant([*heavy, *light, *other])
    assert list(found) == ["peer w=2", "peer w=0.1", "peer w=0.5"]
    assert sum(map(len, found.values())) == 5
    alone = [variant(0, peer={"w": 0.5})]  # a run of no bench
    assert len(by_variant([*light, *alone])) == 2
