"""A Hugging Face data set is a domain."""

from pathlib import Path

import pytest
import torch

import peerdg
from tests.cli.stored_models import CLASSES, save_photos

datasets = pytest.importorskip("datasets")


def test_a_dataset_has_the_images_and_classes_of_its_files(tmp_path: Path):
    photos = save_photos(tmp_path / "photos")
    data = datasets.load_dataset(
        "imagefolder", data_dir=str(photos), cache_dir=str(tmp_path / "cache")
    )
    domain = peerdg.as_domain(data["train"], size=32)
    assert domain.classes == CLASSES
    assert domain.labels.tolist() == data["train"]["label"][:]
    paths = [Path(image.filename) for image in data["train"]["image"]]
    expected = peerdg.as_domain((paths, data["train"]["label"][:]), size=32)
    assert torch.equal(domain.images, expected.images)
    with pytest.raises(peerdg.PeerdgError, match="train"):
        peerdg.as_domain(data)
