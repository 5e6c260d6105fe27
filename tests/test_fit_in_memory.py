"""Common forms of data and networks in Python are accepted, or rejected with a remedy."""

import pytest
import torch
from PIL import Image
from torch import nn

import peerdg
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits, stratified
from peerdg.errors import ConfigError, DataError
from tests.conftest import TinyEncoder, tiny_classifier, tiny_domain, tiny_splits
from tests.data.test_objects import HuggingFace

SHORT = {
    "method": "erm",
    "pretrain": {"epochs": 0},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "crafted": "off",
}
SOURCE, OTHER = tiny_domain(n=60), tiny_domain("other", n=12, seed=2)
X, Y = SOURCE.images, SOURCE.labels


class Plain(nn.Module):
    """A typical user network: no class names, no normalization, logits at the end."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.body, self.fc = TinyEncoder(), nn.Linear(8, outputs)

    def forward(self, images):
        return self.fc(self.body(images))


def plain(outputs: int = 3) -> Plain:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Plain(outputs)


def weights(run) -> bytes:
    return (run.path / "model/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Reference run with explicit splits, which all forms of the same data must repeat."""
    train_rows, held_out = stratified(Y, 0.1, 0)
    named = Domain("source", ("0", "1", "2"), X, Y)
    splits = Splits(named.subset(train_rows), named.subset(held_out), {})
    network = tiny_classifier()
    network.classes = named.classes
    return peerdg.fit(
        splits, out=tmp_path_factory.mktemp("runs") / "by-hand", model=network, **SHORT
    )


def network() -> peerdg.Classifier:
    made = tiny_classifier()
    made.classes = ("0", "1", "2")
    return made


FORMS = {
    "tensors": (X, Y),
    "float tensors": (X.float() / 255, Y),
    "arrays, channels last": (X.permute(0, 2, 3, 1).numpy(), Y.numpy()),
    "float arrays": (X.permute(0, 2, 3, 1).double().numpy() / 255, Y.to(torch.int32).numpy()),
    "list": ([Image.fromarray(image.permute(1, 2, 0).numpy()) for image in X], Y.tolist()),
    "splits": Splits(train=(X, Y)),
    "domain": Domain("source", ("0", "1", "2"), X, Y),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_and_labels_in_any_form_train_the_same_weights(form, expected, tmp_path):
    run = peerdg.fit(FORMS[form], out=tmp_path / "run", model=network(), **SHORT)
    assert weights(run) == weights(expected)
    assert run.accuracy == expected.accuracy
    assert set(run.accuracy["model"]) == {"validation"}


def test_the_share_held_out_and_its_seed_are_those_of_own_images(tmp_path):
    own = {"validation_fraction": 0.25, "split_seed": 3}
    run = peerdg.fit((X, Y), out=tmp_path / "run", model=network(), **SHORT, **{"own-data": own})
    (final,) = [r for r in run.records if r["kind"] == "evaluation" and r["epoch"] == 2]
    assert final["n"] == 15
    _, held_out = stratified(Y, 0.25, 3)
    by_hand = Domain("validation", ("0", "1", "2"), X, Y).subset(held_out)
    assert run.model.evaluate(by_hand)["correct"] == final["correct"]


def test_splits_take_a_share_images_or_none_for_validation():
    assert len(Splits((X, Y)).validation) == 6
    assert len(Splits((X, Y), validation=0.5).validation) == 30
    assert Splits((X, Y), validation=None).validation is None
    given = Splits((X, Y), validation=(OTHER.images, OTHER.labels))
    assert (len(given.train), len(given.validation), given.validation.name) == (
        60,
        12,
        "validation",
    )


def test_targets_in_memory_are_matched_by_name(tmp_path):
    targets = {"other": (OTHER.images, [str(label) for label in OTHER.labels.tolist()])}
    run = peerdg.fit((X, Y), out=tmp_path / "run", model=network(), targets=targets, **SHORT)
    by_hand = Domain("other", ("0", "1", "2"), OTHER.images, OTHER.labels)
    assert run.accuracy["model"]["other"] == run.model.evaluate(by_hand)["accuracy"]


def test_a_hugging_face_dataset_keeps_its_class_names(tmp_path):
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in X]
    data = HuggingFace(pictures, labels=Y.tolist())
    made = tiny_classifier()
    made.classes = ("ant", "bee", "cow")
    run = peerdg.fit(data, out=tmp_path / "run", model=made, **SHORT)
    assert run.model.classes == ("ant", "bee", "cow")
    train_rows, held_out = stratified(Y, 0.1, 0)
    named = Domain("source", ("ant", "bee", "cow"), X, Y)
    again = tiny_classifier()
    again.classes = named.classes
    splits = Splits(named.subset(train_rows), named.subset(held_out), {})
    by_hand = peerdg.fit(splits, out=tmp_path / "by-hand", model=again, **SHORT)
    assert weights(run) == weights(by_hand)


def test_a_plain_module_is_trained_with_the_classes_of_the_data(tmp_path):
    module = plain()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = peerdg.fit(tiny_splits(), out=tmp_path / "run", model=module, **SHORT)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert run.model.classes == ("a", "b", "c")
    by_hand = peerdg.Classifier.from_module(plain(), classes=("a", "b", "c"), image_size=12)
    other = peerdg.fit(tiny_splits(), out=tmp_path / "by-hand", model=by_hand, **SHORT)
    assert weights(run) == weights(other)


def test_a_run_of_a_plain_module_is_loaded_with_the_module(tmp_path):
    out = tmp_path / "run"
    run = peerdg.fit(tiny_splits(), out=out, model=plain(), **SHORT)
    images = tiny_domain(seed=9).images
    for model in (
        peerdg.load_model(out, network=plain()),
        peerdg.fit(tiny_splits(), out=out, model=plain(), existing="resume", **SHORT).model,
    ):
        assert torch.equal(model.classifier(images), run.model.classifier(images))


@pytest.mark.parametrize(
    "targets", ["uci", *(pytest.param(x, marks=pytest.mark.slow) for x in (("uci",), ["uci"]))]
)
def test_one_target_may_be_named_without_a_list(targets, tmp_path):
    run = peerdg.fit(
        "digits-mini", out=tmp_path / "run", targets=targets, backbone="digits-cnn-half",
        **{**SHORT, "train": {"epochs": 0, "batch_size": 8}}, **{"digits-mini": {"train": 10}},
    )  # fmt: skip
    assert run.config.targets == ("uci",)
    assert set(run.accuracy["model"]) == {"validation", "uci"}


REFUSED = {
    "other lengths": (((X, Y[:5]), {}), DataError, "got torch.int64"),
    "normalized images": (((X.float() / 255 - 0.5, Y), {}), DataError, "outside 0..1"),
    "float labels": (((X, Y.float()), {}), DataError, "types: float"),
    "NaN": (((torch.full((60, 3, 12, 12), torch.nan), Y), {}), DataError, "NaN"),
    "negative label": (((X, Y - 1), {}), DataError, "label -1"),
    "one class": (((X, Y * 0), {}), DataError, "only one class"),
    "no squares": (((X[:, :, :6], Y), {}), DataError, "non-square"),
    "one image": (((X[0], Y[:1]), {}), DataError, "labels of shape"),
    "nothing": ((None, {}), DataError, "Cannot convert NoneType"),
    "several sets": (({"train": (X, Y)}, {}), DataError, "Give one, e.g."),
    "another number of outputs": (((X, Y), {"model": plain(4)}), ConfigError, "4 outputs.*3 class"),
    "no network": (((X, Y), {"model": "resnet18"}), ConfigError, "backbone='resnet18'"),
    "no layer": (((X, Y), {"model": nn.Flatten()}), ConfigError, "no linear layer"),
    "a list of targets": (((X, Y), {"targets": ["other"]}), DataError, "by name"),
    "targets twice": ((tiny_splits(), {"targets": {}}), ConfigError, "given twice"),
    "targets in memory": (("digits-mini", {"targets": {"a": 1}}), ConfigError, "in memory"),
    "a number as target": (("digits-mini", {"targets": 3}), ConfigError, "of type list"),
    "names of a classifier": (
        ((X, Y), {"model": tiny_classifier()}), ConfigError, "a, b, c.*0, 1, 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_data_gives_a_one_line_error_and_no_files(case, tmp_path):
    (data, options), kind, reason = REFUSED[case]
    with pytest.raises(kind, match=f"(?s){reason}"):
        peerdg.fit(data, out=tmp_path / "run", **{**SHORT, **options})
    assert not (tmp_path / "run").exists()
