"""Train and use the methods of peerdg as a scikit-learn classifier."""

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from peerdg.api import fit
from peerdg.data.objects import as_domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError
from peerdg.options import merge


class PeerClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify images in pipelines, grid searches and cross-validation.

    Images are an array `[n, h, w, 3]`, `[n, h, w]` or `[n, 3, h, w]`, uint8 or floats in [0, 1], or
    a list of paths or PIL images. Labels are numbers or texts. All images are trained on. After
    `fit`, `model_` is the deployed model, see `peerdg.load_model`.

    Args:
        method: Method or recipe, as listed by `peerdg methods`.
        epochs: Epochs of the main phase. By default, chosen from the number of images.
        batch_size: Images per step of the main phase. By default, chosen like `epochs`.
        backbone: Network, e.g. `"resnet18"` or `"timm:NAME"`. By default, chosen from the size of
            the images.
        weights: Initial weights: `"none"`, `"imagenet"` or a file.
        seed: Seed for all random numbers.
        out: Run folder to create. By default, a temporary folder that is deleted.
        options: Further keyword arguments of `peerdg.fit`, e.g. `{"peer": {"k": 5}}`.

    Example:
        >>> classifier = PeerClassifier(epochs=20).fit(images, labels)
        >>> classifier.score(other_images, other_labels)
    """

    def __init__(
        self,
        method: str = "peer",
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        backbone: str | None = None,
        weights: str = "none",
        seed: int = 0,
        out: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.epochs = epochs
        self.batch_size = batch_size
        self.backbone = backbone
        self.weights = weights
        self.seed = seed
        self.out = out
        self.options = options

    def fit(self, X: Any, y: Any) -> Self:
        """Train on all images."""
        y = validate_data(self, X="no_validation", y=y)
        check_classification_targets(y)
        images = list(X)
        check_consistent_length(images, y)
        classes, indices = np.unique(y, return_inverse=True)
        train = {"epochs": self.epochs, "batch_size": self.batch_size}
        options: dict[str, Any] = {
            "method": self.method,
            "weights": self.weights,
            "seed": self.seed,
            "train": {name: value for name, value in train.items() if value is not None},
        }
        if self.backbone is not None:
            options["backbone"] = self.backbone
        with _value_errors(), ExitStack() as stack:
            source = as_domain((images, indices), classes=list(map(str, classes)))
            out = self.out
            if out is None:
                out = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
            # A network in the options is trained, so use a copy.
            options = merge(options, copy.deepcopy(dict(self.options or {})))
            self.model_ = fit(Splits(source, None), out=out, progress=False, **options).model
        if self.out is None:
            self.model_.folder = None  # deleted
        self.classes_ = classes
        # A network in `options` may have its classes in another order.
        self._columns = [self.model_.classes.index(name) for name in source.classes]
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Compute probabilities `[n, classes]`, in the order of `classes_`."""
        check_is_fitted(self)
        with _value_errors():
            return self.model_.probabilities(list(X)).numpy()[:, self._columns]

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable label of each image."""
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return labels

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True  # paths
        return tags


@contextmanager
def _value_errors() -> Iterator[None]:
    """Raise `ValueError`, as scikit-learn does, for data and parameters that cannot be used."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise ValueError(str(error)) from error
