from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import peerdg
from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED
from peerdg.errors import ConfigError, DataError, OutputError, PeerdgWarning
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

CRAFTED_DISJOINT = [CRAFTED + family for family in DISJOINT]
SHORT = {
    "pretrain": {"epochs": 1, "batch_size": 8},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "peer": {"k": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "one"
    return peerdg.fit(tiny_splits(), out=out, model=tiny_classifier(), **SHORT)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """A saved, untrained digit model."""
    from peerdg.models.stored import save_model

    folder = tmp_path_factory.mktemp("model") / "model"
    model = peerdg.build_classifier("digits-cnn-half", classes=tuple("0123456789"))
    save_model(folder, model, backbone="digits-cnn-half", image_size=32)
    return folder


def test_fit_writes_a_run_folder_with_the_accuracy_of_every_domain(run):
    names = {p.name for p in run.path.iterdir()}
    assert {"config.toml", "manifest.json", "metrics.jsonl", "events.jsonl", "checkpoint",
            "model", "done.json"} <= names  # fmt: skip
    assert set(run.accuracy) == {"proxy", "task"}
    assert list(run.accuracy["task"]) == ["validation", "one", "two", *CRAFTED_DISJOINT]


def test_records_contain_losses_policies_and_evaluations(run):
    epochs = [r for r in run.records if r["kind"] == "epoch" and r["phase"] == "train"]
    assert [r["epoch"] for r in epochs] == [1, 2]
    assert {"loss", "ce_clean", "ce_augmented", "regularizer", "policy", "snapshots"} <= set(
        epochs[0]
    )
    evaluated = {r["epoch"] for r in run.records if r["kind"] == "evaluation"}
    assert evaluated == {0, 1, 2}


def test_the_deployed_model_gives_the_recorded_accuracy(run):
    result = run.model.evaluate(tiny_splits().targets["one"])
    assert result["accuracy"] == run.accuracy["task"]["one"]


def test_weights_are_loaded_into_the_users_network(run):
    model = peerdg.load_model(run.path, network=tiny_classifier(seed=5))
    images = tiny_domain().images
    assert torch.equal(model.classifier(images), run.model.classifier(images))
    with pytest.raises(ConfigError, match="custom network"):
        peerdg.load_model(run.path)


def test_a_finished_run_is_read_and_not_repeated(run):
    before = (run.path / "metrics.jsonl").stat().st_mtime_ns
    again = peerdg.fit(
        tiny_splits(), out=run.path, model=tiny_classifier(), existing="resume", **SHORT
    )
    assert (run.path / "metrics.jsonl").stat().st_mtime_ns == before
    images = tiny_domain().images
    assert torch.equal(again.model.classifier(images), run.model.classifier(images))


def test_an_existing_run_is_rejected_by_default(run):
    with pytest.raises(OutputError, match="already holds"):
        peerdg.fit(tiny_splits(), out=run.path, model=tiny_classifier(), **SHORT)


def test_overwriting_repeats_the_run_bit_for_bit(run, tmp_path):
    other = peerdg.fit(tiny_splits(), out=tmp_path, model=tiny_classifier(), **SHORT)
    again = peerdg.fit(
        tiny_splits(), out=tmp_path, model=tiny_classifier(), existing="overwrite", **SHORT
    )
    for path in (other.path, again.path):
        for name in ("metrics.jsonl", "model/model.safetensors"):
            assert (path / name).read_bytes() == (run.path / name).read_bytes()


def test_the_callers_random_state_is_unchanged(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    peerdg.fit(tiny_splits(), out=tmp_path, model=tiny_classifier(dropout=0.5), **SHORT)
    assert torch.equal(torch.rand(1), expected)


def test_all_methods_with_one_seed_start_from_the_same_pretrained_weights(tmp_path):
    starts = []
    for method in ("erm", "randaugment", "peer"):
        options = {k: v for k, v in SHORT.items() if k != "peer" or method == "peer"}
        run = peerdg.fit(
            tiny_splits(), out=tmp_path / method, model=tiny_classifier(), method=method, **options
        )
        starts.append([r["correct"] for r in run.records
                       if r["kind"] == "evaluation" and r["epoch"] == 0][:3])  # fmt: skip
    assert starts[0] == starts[1] == starts[2]


def test_snapshots_are_stored_on_request(tmp_path):
    from safetensors.torch import load_file

    run = peerdg.fit(
        tiny_splits(), out=tmp_path, model=tiny_classifier(), keep_snapshots=True, **SHORT
    )
    files = sorted((run.path / "snapshots").iterdir())
    assert [f.stem for f in files] == ["000000", "000001", "000002"]
    mean = (load_file(files[1])["head.weight"] + load_file(files[2])["head.weight"]) / 2
    assert (run.model.classifier.head.weight - mean).abs().max() < 1e-6


def test_a_teacher_is_loaded_from_a_model_folder(digits, tmp_path):
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    source = peerdg.Domain("source", tuple("0123456789"), images, torch.arange(16) % 10)
    splits = peerdg.Splits(train=source, validation=None, targets={})
    run = peerdg.fit(
        splits, out=tmp_path / "run", backbone="digits-cnn-half", seed=2,
        pretrain={"epochs": 0, "batch_size": 8}, train={"epochs": 1, "batch_size": 8},
        method="teacher", teacher={"k": 1, "model": str(digits)},
    )  # fmt: skip
    assert run.accuracy == {}


def test_paths_pil_images_arrays_and_tensors_are_predicted_equally(digits, tmp_path):
    model = peerdg.load_model(digits)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    path = tmp_path / "digit.png"
    Image.fromarray(pixels).save(path)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    forms = [path, str(path), Image.fromarray(pixels), pixels, tensor, tensor.float() / 255]
    predictions = [model.predict(form) for form in forms]
    assert len(set(predictions)) == 1
    assert predictions[0].label in model.classes
    for batch in (forms, np.stack([pixels, pixels]), torch.stack([tensor, tensor])):
        for prediction in model.predict(batch):
            assert prediction.label == predictions[0].label
            assert prediction.probability == pytest.approx(predictions[0].probability, rel=1e-5)


def test_values_that_are_not_images_are_rejected(digits):
    model = peerdg.load_model(digits)
    with pytest.raises(DataError, match="outside 0"):
        model.predict(np.full((32, 32, 3), 7.5))
    with pytest.raises(DataError, match="absent"):
        model.predict("absent.png")


def test_gray_images_are_accepted_and_other_shapes_rejected(digits):
    model = peerdg.load_model(digits)
    gray = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    forms = [gray, gray[:, :, None], torch.from_numpy(gray)[None]]
    assert len({model.predict(form).label for form in forms}) == 1
    with pytest.raises(DataError, match="shape"):
        model.predict([np.zeros((2, 32, 32, 3), dtype=np.uint8)])


def test_images_of_unsupported_size_are_rejected_before_writing(tmp_path):
    images = torch.zeros(8, 3, 28, 28, dtype=torch.uint8)
    source = peerdg.Domain("source", ("a", "b"), images, torch.arange(8) % 2)
    splits = peerdg.Splits(train=source, validation=None, targets={})
    out = tmp_path / "run"
    with pytest.raises(DataError, match="28 x 28 images"):
        peerdg.fit(splits, out=out, train={"batch_size": 4}, pretrain={"batch_size": 4},
                   transform={"size": 28}, peer={"k": 1})  # fmt: skip
    assert not out.exists()


def test_tied_weights_are_saved_and_stay_tied(tmp_path):
    model = tiny_classifier()
    model.encoder.again = model.encoder.fc
    run = peerdg.fit(tiny_splits(), out=tmp_path, model=model, **SHORT)
    task = run.model.classifier
    assert task.encoder.again.weight is task.encoder.fc.weight


def test_k_larger_than_the_epochs_gives_a_warning(tmp_path):
    with pytest.warns(PeerdgWarning, match="no snapshot is averaged"):
        run = peerdg.fit(
            tiny_splits(), out=tmp_path, model=tiny_classifier(),
            **{**SHORT, "peer": {"k": 5}},
        )  # fmt: skip
    start = [r["correct"] for r in run.records if r.get("epoch") == 0 and r.get("model") == "task"]
    final = [r["correct"] for r in run.records if r.get("epoch") == 2 and r.get("model") == "task"]
    assert start == final


def test_all_public_names_can_be_imported():
    for name in dir(peerdg):
        assert getattr(peerdg, name) is not None
    with pytest.raises(AttributeError, match="PERR"):
        _ = peerdg.PERR


def test_fit_warns_about_a_trained_network_without_normalization(tmp_path: Path):
    classifier = tiny_classifier(batch_norm=True)
    classifier(tiny_splits().train.images)  # in train mode: the statistics follow
    network = torch.nn.Sequential(classifier.encoder, classifier.head)
    with pytest.warns(PeerdgWarning, match="Sequential seems to be trained"):
        peerdg.fit(
            tiny_splits(),
            out=tmp_path,
            model=network,
            method="erm",
            pretrain={"epochs": 0},
            train={"epochs": 1, "batch_size": 8},
        )
