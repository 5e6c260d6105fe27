"""Comparisons say what differs besides the methods, and compare only what goes together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import peerdg
from peerdg.averages.average_options import AverageSettings
from peerdg.errors import ConfigError
from peerdg.files import sha256
from peerdg.models.classifier import network_fingerprint
from peerdg.options import merge, to_dict
from peerdg.report.comparison import comparison_page, require_comparable
from peerdg.report.result import RunResult
from peerdg.report.runs import load_runs, read_run, save_runs
from peerdg.report.selection import settings_findings
from peerdg.report.variants import by_variant
from tests.conftest import tiny_classifier, tiny_splits
from tests.report.test_selection_report import run

FINGERPRINTS = {"train": "t1", "validation": "v1", "target:art": "a1", "target:sketch": "s1"}


def made(
    method: str = "peer",
    *,
    seed: int = 0,
    shift: float = 0.0,
    images: dict[str, str] | None = None,
    **options: Any,
) -> RunResult:
    """A finished run; `images` are fingerprints other than the usual ones."""
    usual = run(seed % 2, shift=shift)
    config = {k: v for k, v in usual.config.items() if k != "peer" or method == "peer"}
    config = merge(config, {"method": method, "seed": seed}, options)
    records = usual.records
    if method != "peer":
        records = [{**r, "model": "model"} for r in records if r["model"] == "task"]
    fingerprints = {**FINGERPRINTS, **(images or {})}
    return replace(usual, config=config, records=records, fingerprints=fingerprints)


# What was learnt from.


# Options that belong to no method.


def test_runs_that_do_not_augment_are_one_variant_whatever_their_augmentation():
    runs = [made("erm", seed=0), made("erm", seed=1, augment={"operations": "sdg"})]
    assert list(by_variant(runs)) == ["erm"]
    unset = [made("randaugment"), made("randaugment", augment={"num_ops": 2})]
    assert list(by_variant(unset)) == ["randaugment num_ops=unset", "randaugment num_ops=2"]


def with_steps(result: RunResult, *steps: int) -> RunResult:
    """`result` with an event for each epoch, the first of them twice, as a killed run has it."""
    events = [
        {"event": "epoch", "phase": "train", "epoch": number, "steps": count, "seconds": 1.0}
        for number, count in enumerate(steps, 1)
    ]
    pretraining = {**events[0], "phase": "pretrain", "steps": 999}
    return replace(result, events=[pretraining, events[0], *events])


def test_the_length_of_epochs_is_an_option_of_methods_that_make_images_only():
    def length(method: str, **train: Any) -> str:
        return str(made(method, train=train).options["train.epoch_of"])

    assert length("erm") == length("erm", epoch_of="pool") == "source"
    assert length("ada", epoch_of="source") == "source"
    assert length("ada", epoch_of="pool") == length("ada") == "pool"  # before there was a choice
    assert length("ada", epoch_of="pool", steps_per_epoch=5) == "source"
    assert length("m-ada", epoch_of="pool") == "source"
    old, new = made("erm"), made("erm", train={"epoch_of": "source"})
    assert old.variant == new.variant


# PEER against P-ENS.


RANDAUGMENT = {"randaugment": {"k": 1}, "average": {"kind": ["snapshots"]}, "recipe": "p-ens"}


def recipe(*, shift: float = 0.0, **options: Any) -> RunResult:
    """P-ENS as the recipe it is: RandAugment, deployed as the mean of its snapshots."""
    usual = made("randaugment", shift=shift, **merge(RANDAUGMENT, options))
    average = [{**record, "model": "snapshots"} for record in usual.records]
    return replace(usual, records=[*usual.records, *average])


def test_runs_from_before_there_were_averages_are_seeds_of_one_variant():
    config = AverageSettings()
    new = made("erm", seed=1, average=to_dict(config))
    assert {name: len(g) for name, g in by_variant([made("erm"), new]).items()} == {"erm": 2}
    watched = made("erm", seed=1, average=to_dict(replace(config, kind=("ema", "sma"))))
    assert list(by_variant([made("erm"), watched])) == ["erm", "erm+ema"]


# What was judged on.


@pytest.mark.parametrize("seed", [0, 1])
def test_every_run_is_checked_for_the_images_it_was_judged_on(seed):
    """Also one that would be another seed, or the same again, of a variant."""
    require_comparable([made(), made(seed=seed)])
    with pytest.raises(ConfigError, match=r"same names but other images \(art; data"):
        require_comparable([made(), made(seed=seed, images={"target:art": "a2"})])


def test_every_run_without_targets_is_checked_for_its_validation_images():
    def without(seed: int, validation: str) -> RunResult:
        usual = run(seed, ("validation", "crafted:blur"))
        return replace(usual, fingerprints={"train": "t1", "validation": validation})

    require_comparable([without(0, "v1"), without(1, "v1")])
    with pytest.raises(ConfigError, match="validation images of these runs have the same names"):
        require_comparable([without(0, "v1"), without(1, "v2")])


def test_other_validation_images_under_the_same_targets_are_told_of():
    runs = [made(), made(peer={"w": 0.1}, images={"validation": "v2"})]
    require_comparable(runs)
    note = "The validation images differ between runs: source val and crafted val"
    assert note in comparison_page(runs, title="t")
    assert settings_findings(runs) == []  # crafted scores of other images
    same = [made(), made(peer={"w": 0.1})]
    assert note not in comparison_page(same, title="t")
    assert len(settings_findings(same)) == 1


# Inputs that a config only names.


OPTIONS: dict[str, Any] = {
    "method": "erm", "evaluate_every": 1, "progress": False, "crafted": "off",
    "pretrain": {"epochs": 0, "batch_size": 8}, "train": {"epochs": 1, "batch_size": 8, "lr": 0.02},
}  # fmt: skip


def test_other_networks_of_ones_own_are_other_rows(tmp_path: Path):
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 3))
    networks = {
        "usual": (tiny_classifier(seed=0), 0),
        "usual-1": (tiny_classifier(seed=0), 1),
        "dropout": (tiny_classifier(seed=0, dropout=0.9), 0),
        "flat": (flat, 1),
        "other-start": (tiny_classifier(seed=5), 0),
    }
    runs = []
    for name, (network, seed) in networks.items():
        peerdg.fit(tiny_splits(), out=tmp_path / name, model=network, seed=seed, **OPTIONS)
        runs.append(read_run(tmp_path / name))
    expected = [["usual", "usual-1"], ["dropout"], ["flat"], ["other-start"]]
    assert [[r.path.name for r in group] for group in by_variant(runs).values()] == expected
    save_runs(tmp_path / "runs.json", runs)
    kept = by_variant(load_runs(tmp_path / "runs.json"))
    assert [[r.path.name for r in group] for group in kept.values()] == expected
    assert list(kept) == list(by_variant(runs))


def own(seed: int, network: str | None, start: str | None, method: str = "peer") -> RunResult:
    usual = made(method, seed=seed, backbone="own")
    return replace(usual, inputs=replace(usual.inputs, network=network, network_weights=start))


def test_own_networks_of_old_runs_are_one_group():
    assert list(by_variant([own(0, None, None), own(1, None, None)])) == ["peer"]
    mixed = by_variant([own(0, None, None), own(1, None, None), own(0, "abc", "w")])
    assert {name: len(group) for name, group in mixed.items()} == {
        "peer network=unknown": 2, "peer network=abc": 1,
    }  # fmt: skip


def test_a_fingerprint_tells_structure_and_values_apart():
    first, again, other = (tiny_classifier(seed=seed) for seed in (0, 0, 1))
    assert network_fingerprint(first) == network_fingerprint(again)
    assert network_fingerprint(first)[0] == network_fingerprint(other)[0]
    assert network_fingerprint(first)[1] != network_fingerprint(other)[1]
    again.head.bias.requires_grad_(False)  # another training, from the same values
    assert network_fingerprint(first)[0] != network_fingerprint(again)[0]
    assert network_fingerprint(first)[1] == network_fingerprint(again)[1]
    with_statistics = tiny_classifier(batch_norm=True)
    before = network_fingerprint(with_statistics)
    next(with_statistics.buffers()).add_(1)
    assert network_fingerprint(with_statistics)[1] != before[1]


def test_a_functions_address_is_no_part_of_a_fingerprint():
    class Activation(torch.nn.Module):
        def extra_repr(self) -> str:
            return f"<function relu at {hex(id(self))}>"

    assert network_fingerprint(Activation()) == network_fingerprint(Activation())


def test_files_of_weights_of_one_name_stay_apart(tmp_path: Path):
    files = [tmp_path / folder / "best.pth" for folder in ("a", "b", "c")]
    for file, content in zip(files, (b"first", b"second", b"first"), strict=True):
        file.parent.mkdir()
        file.write_bytes(content)
    runs = [made(seed=seed, weights=str(file)) for seed, file in enumerate(files)]
    save_runs(tmp_path / "runs.json", runs)
    assert str(tmp_path) not in (tmp_path / "runs.json").read_text()
    groups = by_variant(load_runs(tmp_path / "runs.json"))
    assert [[r.seed for r in group] for group in groups.values()] == [[0, 2], [1]]
    assert all(name.startswith("peer weights=best.pth@") for name in groups)
    for file in files:  # then their contents cannot be known any more
        file.unlink()
    save_runs(tmp_path / "runs.json", runs)
    assert len(by_variant(load_runs(tmp_path / "runs.json"))) == 3


def test_the_hash_of_the_weights_is_that_at_the_start_of_the_run(tmp_path: Path):
    peerdg.fit(tiny_splits(), out=tmp_path / "first", backbone="digits-cnn", **OPTIONS)
    file = tmp_path / "net.safetensors"
    stored = tmp_path / "first" / "model" / "model.safetensors"
    file.write_bytes(stored.read_bytes())
    peerdg.fit(
        tiny_splits(), out=tmp_path / "second", backbone="digits-cnn", weights=str(file), **OPTIONS
    )
    before = read_run(tmp_path / "second").variant
    recorded = json.loads((tmp_path / "second" / "manifest.json").read_text())["weights_sha256"]
    assert recorded == sha256(stored)
    file.write_bytes(b"another")
    save_runs(tmp_path / "runs.json", [read_run(tmp_path / "second")])
    assert load_runs(tmp_path / "runs.json")[0].variant == before


@pytest.mark.parametrize(
    ("method", "operations", "expected"),
    [
        ("randaugment", "sdg", {"operations revision 1": [0, 1], "operations revision 2": [2]}),
        ("randaugment", "torchvision", {"": [0, 1, 2]}),  # no revision changed this set
        ("erm", "sdg", {"": [0, 1, 2]}),  # augments nothing
    ],
)
def test_a_revision_that_changed_the_operations_of_a_run_makes_another_row(
    tmp_path: Path, method: str, operations: str, expected: dict[str, list[int]]
):
    augment = {} if method == "erm" else {"augment": {"operations": operations}}
    options = {**OPTIONS, "method": method, **augment}
    peerdg.fit(tiny_splits(), out=tmp_path / "run", model=tiny_classifier(), **options)
    manifest = tmp_path / "run" / "manifest.json"
    content = json.loads(manifest.read_text())
    runs = []
    for revision in (None, 1, 2):
        content.pop("augmentation", None)
        content |= {} if revision is None else {"augmentation": revision}
        manifest.write_text(json.dumps(content))
        runs.append(read_run(tmp_path / "run"))
    runs = [replace(r, config={**r.config, "seed": n}) for n, r in enumerate(runs)]
    save_runs(tmp_path / "runs.json", runs)
    for found in (runs, load_runs(tmp_path / "runs.json")):
        groups = {name: [r.seed for r in group] for name, group in by_variant(found).items()}
        assert groups == {f"{method} {name}".strip(): seeds for name, seeds in expected.items()}


def test_methods_with_and_without_augmentation_do_not_differ_in_its_revision():
    def at(revision: int, method: str) -> RunResult:
        usual = made(method, augment={"operations": "sdg"})
        return replace(usual, inputs=replace(usual.inputs, augmentation=revision))

    assert "operations revision" not in comparison_page([at(2, "peer"), at(1, "erm")], title="t")
    page = comparison_page([at(2, "peer"), at(1, "randaugment")], title="t")
    assert "Rows differ in operations revision;" in page


# Names.


def test_numbers_that_differ_late_are_written_in_full():
    rates = (0.00012345678, 0.00012345699)
    groups = by_variant([made(train={"lr": rate}) for rate in rates])
    assert list(groups) == [f"peer lr={rate!r}" for rate in rates]
    crops = ([0.8, 1.0], [0.80000001, 1.0])
    groups = by_variant([made(transform={"crop": crop}) for crop in crops])
    assert list(groups) == ["peer crop=0.8,1.0", "peer crop=0.80000001,1.0"]


def test_variants_with_the_same_name_are_numbered():
    runs = [made(peer={"note": "unset"}), made()]  # a text, and an option that is not there
    groups = by_variant(runs)
    assert list(groups) == ["peer note=unset (1)", "peer note=unset (2)"]
    alike = [made(images={"train": f"123456{n}"}) for n in range(3)]
    assert len(by_variant(alike)) == 3


# Periods of fluctuation.


def test_a_period_that_is_not_k_is_told_of():
    runs = [made(evaluate_every=3, peer={"k": 2})]
    page = comparison_page(runs, title="t")
    assert "Fluctuation of peer is over evaluations every 6 epochs, the first 30 epochs" in page
    assert "k is 2, but it was evaluated every 3 epochs." in page
    assert "Fluctuation of peer" not in comparison_page([made()], title="t")


def test_rows_with_other_periods_are_told_of():
    page = comparison_page([made(peer={"k": 2}), made("erm", evaluate_every=3)], title="t")
    assert "periods of different lengths, in epochs (2: peer; 3: erm)" in page
    page = comparison_page([made(peer={"k": 3}), made("erm", evaluate_every=3)], title="t")
    assert "different lengths" not in page
    many = [made(peer={"w": 0.1 * n}) for n in range(8)] + [made(peer={"k": 2})]
    assert "in epochs (1: the others; 2: peer w=2 k=2)" in comparison_page(many, title="t")
