import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import peerdg
from peerdg.analyze.connectivity import connectivity
from peerdg.analyze.networks import TRAIN, AnalyzedRun, split_name
from peerdg.errors import ConfigError, DamagedError, NumericalError
from peerdg.evaluate.accuracy import evaluate_domain
from peerdg.report.runs import read_run
from tests.analyze.conftest import EPOCHS, K
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits


@pytest.mark.parametrize("name", ["peer", "randaugment"])
def test_the_deployed_model_is_the_mean_of_the_kept_snapshots(runs, name: str):
    run = AnalyzedRun(runs[name])
    assert run.epochs == tuple(range(0, EPOCHS + 1, K))
    members = [dict(run.network(epoch).named_parameters()) for epoch in run.epochs[1:]]
    for key, value in run.network("task").named_parameters():
        mean = torch.stack([member[key] for member in members]).mean(0)
        assert torch.allclose(value, mean, atol=1e-6)


def test_the_first_snapshot_is_the_start_of_the_main_phase_for_all_methods(runs):
    start, other = (AnalyzedRun(runs[name]).network("init") for name in ("peer", "randaugment"))
    for key, value in start.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])


def test_every_network_has_the_accuracy_of_its_evaluation(runs):
    run = AnalyzedRun(runs["peer"])
    recorded = read_run(runs["peer"]).evaluations
    for which, model, epoch in (
        ("init", "proxy", 0),
        (2, "proxy", 2),
        ("2", "proxy", 2),
        ("last", "proxy", EPOCHS),
        ("proxy", "proxy", EPOCHS),
        ("task", "task", EPOCHS),
    ):
        for name, domain in run.domains().items():
            expected = [
                record
                for record in recorded
                if (record["model"], record["domain"], record["epoch"]) == (model, name, epoch)
            ]
            assert len(expected) == (name != TRAIN)
            for record in expected:
                found = evaluate_domain(run.network(which), domain, size=run.size)
                assert found["accuracy"] == record["accuracy"]
                assert found["loss"] == pytest.approx(record["loss"], abs=1e-6)


def test_domains_are_source_and_targets_in_the_class_order_of_the_network(runs):
    run = AnalyzedRun(runs["peer"])
    assert list(run.domains()) == [TRAIN, "validation", "paintings"]
    assert all(domain.classes == run.task.classes for domain in run.domains().values())
    assert {len(domain) for domain in run.domains(2).values()} == {2}
    assert run.source_images(5).shape == (5, 3, 32, 32)


def test_moved_data_is_found_by_its_root(runs, tmp_path: Path):
    copy = tmp_path / "moved"
    shutil.copytree(runs["peer"].parent / "photos", copy)
    moved = AnalyzedRun(runs["peer"], root=str(copy)).splits.train
    assert moved.name == "moved"  # after its folder
    assert moved.fingerprint == AnalyzedRun(runs["peer"]).splits.train.fingerprint


def test_a_run_without_snapshots_names_the_option_and_what_is_left(runs):
    run = AnalyzedRun(runs["plain"])
    assert run.epochs == () and run.network("task") is run.task
    for ask in (lambda: run.network("init"), lambda: run.network(2), lambda: run.spread(4)):
        with pytest.raises(ConfigError) as error:
            ask()
        assert "--keep-snapshots" in str(error.value) and "@task" in str(error.value)


def test_an_unknown_network_lists_the_known_ones(runs):
    run = AnalyzedRun(runs["peer"])
    for which in ("3", "first", "-2", 99):
        with pytest.raises(ConfigError, match=r"task, init, last and the epochs 0, 2, 4") as error:
            run.network(which)
        assert "--keep-snapshots" in str(error.value)


def test_nan_in_a_snapshot_and_a_damaged_one_are_refused(runs, tmp_path: Path):
    shutil.copytree(runs["peer"], tmp_path / "run")
    file = tmp_path / "run/snapshots/000002.safetensors"
    weights = load_file(file)
    weights["head.bias"][0] = torch.nan
    save_file(weights, file)
    run = AnalyzedRun(tmp_path / "run")
    with pytest.raises(NumericalError, match=r"000002.*head\.bias"):
        run.network(2)
    file.write_bytes(b"no weights")
    with pytest.raises(DamagedError, match="000002"):
        run.network(2)


def test_epochs_are_spread_evenly_and_end_with_the_last(runs):
    run = AnalyzedRun(runs["peer"])
    run.epochs = tuple(range(0, 130, 10))
    assert run.spread(4) == [30, 60, 90, 120]
    assert run.spread(100) == list(range(10, 130, 10))
    run.epochs = (0,)
    with pytest.raises(ConfigError, match="--keep-snapshots"):
        run.spread(4)


def test_names_are_split_unless_a_folder_has_an_at_sign(tmp_path: Path):
    assert split_name("runs/a@30") == ("runs/a", "30")
    assert split_name("runs/a") == ("runs/a", None)
    odd = tmp_path / "a@b"
    odd.mkdir()
    assert split_name(str(odd)) == (str(odd), None)
    assert split_name(f"{odd}@init") == (str(odd), "init")


@pytest.mark.parametrize("is_sorted", [True, False])
def test_samples_have_all_classes_however_the_images_are_ordered(is_sorted: bool):
    domain = tiny_domain(n=600)  # its classes come in turn: 0, 1, 2, 0, 1, 2
    if is_sorted:
        domain = domain.subset(domain.labels.argsort(stable=True))
    for count in (100, 200, 300):
        assert torch.bincount(domain.sample(count).labels, minlength=3).min() > count / 4
    assert torch.equal(domain.sample(100).images, domain.sample(100).images)
    assert domain.sample(None) is domain is domain.sample(600)


def test_own_networks_keep_their_evaluations_with_batch_statistics(tmp_path: Path):
    splits, model = tiny_splits(), tiny_classifier(batch_norm=True)
    peerdg.fit(
        splits, out=tmp_path, model=model, method="erm", crafted="off", keep_snapshots=True,
        pretrain={"epochs": 1, "batch_size": 8}, train={"epochs": 2, "batch_size": 8, "lr": 0.01},
        evaluate_every=1, progress=False,
    )  # fmt: skip
    run = AnalyzedRun(tmp_path, model=tiny_classifier(batch_norm=True), splits=splits)
    assert run.epochs == (0, 1, 2)
    ends = run.network("last"), run.network("init")
    path = connectivity(*ends, run.domains(), points=3, clean=run.clean)
    for record in read_run(tmp_path).evaluations:
        if record["epoch"] in (0, 2):
            place = {0: 0, 2: -1}[record["epoch"]]
            assert path.accuracy[record["domain"]][place] == record["accuracy"]
            assert path.loss[record["domain"]][place] == pytest.approx(record["loss"], abs=1e-6)
    run.description["training"]["batch_statistics"] = "frozen"
    assert run.clean is None
