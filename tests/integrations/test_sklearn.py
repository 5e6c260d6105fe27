"""The scikit-learn classifier: its conventions, and images in all their forms."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import peerdg
from peerdg.errors import OutputError
from peerdg.integrations.sklearn import PeerClassifier
from peerdg.models.classifier import Classifier
from tests.conftest import TinyEncoder

pytestmark = pytest.mark.runs

SHORT: dict[str, Any] = {
    "method": "erm",
    "epochs": 5,
    "backbone": "digits-cnn-half",
    "options": {"pretrain": {"epochs": 0}, "train": {"lr": 2e-3}},
}


class TableClassifier(PeerClassifier):
    """Draws each row of a table as gray stripes, because scikit-learn checks tables only."""

    def fit(self, X, y):
        return super().fit(_drawn(validate_data(self, X)), y)

    def predict_proba(self, X):
        check_is_fitted(self)
        return super().predict_proba(_drawn(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


def _drawn(table: np.ndarray) -> np.ndarray:
    gray = 1 / (1 + np.exp(-table.astype(np.float64)))
    columns = np.arange(32) * gray.shape[1] // 32
    return np.repeat(gray[:, None, columns], 32, axis=1)  # [n, 32, 32]


# No check is expected to fail: those that need tables get them, and the others use no data.
@parametrize_with_checks([TableClassifier(**SHORT)])
def test_follows_the_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def squares(n: int = 40, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a bright left or right half, and which one it is."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 100, (n, side, side, 3), dtype=np.uint8)
    labels = np.array(["left", "right"])[np.arange(n) % 2]
    images[labels == "left", :, : side // 2] += 150
    images[labels == "right", :, side // 2 :] += 150
    return images, labels


@pytest.fixture(scope="module")
def fitted() -> PeerClassifier:
    return PeerClassifier(**SHORT).fit(*squares())


def test_learns_labels_that_are_texts(fitted: PeerClassifier):
    images, labels = squares()
    assert fitted.score(images, labels) > 0.9
    assert list(fitted.classes_) == ["left", "right"]
    assert set(fitted.predict(images)) <= {"left", "right"}


def test_the_same_pixels_in_another_form_give_the_same_probabilities(
    fitted: PeerClassifier, tmp_path
):
    images, _ = squares(n=8)
    expected = fitted.predict_proba(images)
    paths = [tmp_path / f"{n}.png" for n in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    forms = [
        images / 255,
        images.transpose(0, 3, 1, 2),
        paths,
        np.array(list(map(str, paths))),
        [Image.open(path) for path in paths],
    ]
    for form in forms:
        np.testing.assert_allclose(fitted.predict_proba(form), expected, atol=1e-6)


def test_gray_images_are_the_same_as_three_equal_channels(fitted: PeerClassifier):
    gray = squares(n=8)[0][..., 0]
    three = np.repeat(gray[..., None], 3, axis=3)
    np.testing.assert_array_equal(fitted.predict_proba(gray), fitted.predict_proba(three))


def test_trains_the_same_on_arrays_and_on_files(fitted: PeerClassifier, tmp_path):
    images, labels = squares()
    paths = [str(tmp_path / f"{n}.png") for n in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    other = clone(fitted).fit(paths, labels)
    np.testing.assert_array_equal(other.predict_proba(images), fitted.predict_proba(images))


def test_works_in_cross_validation_and_grid_search():
    images, labels = squares()
    classifier = PeerClassifier(**SHORT)
    assert cross_val_score(classifier, images, labels, cv=2).mean() > 0.9
    grid = {"epochs": [1, 5], "options": [SHORT["options"]]}
    search = GridSearchCV(classifier, grid, cv=2, error_score="raise").fit(images, labels)
    assert search.best_estimator_.score(images, labels) > 0.9


def test_the_run_folder_is_kept_where_the_user_wants_it(tmp_path):
    images, labels = squares()
    classifier = PeerClassifier(**SHORT, seed=3, batch_size=10, out=tmp_path / "run")
    probabilities = classifier.fit(images, labels).predict_proba(images)
    stored = peerdg.load_model(tmp_path / "run")
    np.testing.assert_array_equal(stored.probabilities(images).numpy(), probabilities)
    training = stored.description["training"]
    assert (training["seed"], training["settings"]["train.batch_size"]) == (3, 10)
    assert training["images"] == {"train": len(images)}  # none held out
    with pytest.raises(OutputError):
        classifier.fit(images, labels)
    classifier.set_params(options={**SHORT["options"], "existing": "overwrite"})
    np.testing.assert_array_equal(
        classifier.fit(images, labels).predict_proba(images), probabilities
    )


def test_a_network_with_another_order_of_classes_predicts_sorted_ones_and_is_not_changed():
    labels = np.array(["dark", "bright"])[np.arange(40) % 2]
    images = np.where((labels == "dark")[:, None, None], 10, 240) + np.zeros((40, 12, 12))
    network = Classifier(TinyEncoder(), torch.nn.Linear(8, 2), classes=("dark", "bright"))
    before = copy.deepcopy(network.state_dict())
    options = {**SHORT["options"], "model": network}
    classifier = PeerClassifier(method="erm", epochs=20, options=options)
    classifier.fit(images.astype(np.uint8), labels)
    assert list(classifier.classes_) == ["bright", "dark"]  # as scorers of scikit-learn expect
    assert log_loss(labels, classifier.predict_proba(images.astype(np.uint8))) < 0.5
    assert classifier.score(images.astype(np.uint8), labels) > 0.9
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_trains_peer_without_options():
    images, labels = squares()
    classifier = PeerClassifier(epochs=10).fit(images, labels)
    assert classifier.model_.description["training"]["method"] == "peer"
    assert classifier.model_.folder is None  # a temporary folder, deleted


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (squares(8)[0][:, 0, :, 0], np.arange(8) % 2),  # no images but rows
        (squares(8)[0].astype(np.int64), np.arange(8) % 2),
        (squares(8)[0] * 1.0, np.arange(8) % 2),  # floats up to 255
        (np.full((8, 32, 32), np.nan), np.arange(8) % 2),
        (squares(8)[0], np.arange(7) % 2),
        (squares(8)[0], np.zeros(8)),  # one class
        (squares(8)[0], np.linspace(0, 1, 8)),  # not classes
        (squares(8)[0], None),
        ([], []),
        (["missing.png", "missing-too.png"], [0, 1]),
    ],
)
def test_unusable_data_is_a_value_error(images, labels):
    with pytest.raises(ValueError, match=r"\w"):
        PeerClassifier(**SHORT).fit(images, labels)


@pytest.mark.parametrize(
    "wrong",
    [{"method": "pear"}, {"epochs": -1}, {"backbone": "resnet81"}, {"options": {"no": 1}}],
)
def test_unusable_parameters_are_a_value_error_in_fit(wrong):
    classifier = PeerClassifier(**SHORT).set_params(**wrong)
    with pytest.raises(ValueError, match=r"\w"):
        classifier.fit(*squares(8))


def test_predicting_before_training_and_wrong_images_afterwards(fitted: PeerClassifier):
    with pytest.raises(NotFittedError):
        PeerClassifier().predict(squares(2)[0])
    with pytest.raises(ValueError, match="shape"):
        fitted.predict(np.zeros((2, 32), np.uint8))
