import bz2
import gzip
import importlib
import io
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

import peerdg._vision  # noqa: F401  (imports torchvision with a CPU-only torch)
from peerdg.data import digits
from peerdg.data.benchmarks import DigitsSettings, benchmark
from peerdg.errors import ConfigError, DataError
from tests.data.digit_files import (
    cycle,
    draw,
    idx_images,
    idx_labels,
    libsvm_text,
    write_mat,
    write_mnist,
    write_mnist_m,
    write_usps,
)

SMALL = DigitsSettings(train=40)


@pytest.fixture
def root(tmp_path):
    """MNIST only, just large enough for 40 + 2,000 images."""
    write_mnist(tmp_path / "MNIST" / "raw", 2060)
    return tmp_path


@pytest.fixture
def full_root(root):
    write_mnist(root / "MNIST" / "raw", 30, prefix="t10k")
    write_mat(root / "SVHN" / "test_32x32.mat", 20)
    write_mat(root / "SVHN" / "train_32x32.mat", 25, seed=3)
    write_mnist_m(root / "mnist_m", 12)
    write_mat(root / "SYN" / "synth_test_32x32.mat", 15, zero_is_ten=False)
    write_usps(root / "USPS", 11)
    write_usps(root / "USPS", 17, name="usps.bz2")
    return root


def test_loads_all_domains_at_32_pixels_in_the_papers_order(full_root):
    splits = digits.load(SMALL, root=full_root)
    assert (len(splits.train), len(splits.validation)) == (40, 2000)
    sizes = {name: len(domain) for name, domain in splits.targets.items()}
    assert list(sizes.items()) == [("svhn", 20), ("mnist-m", 12), ("syn", 15), ("usps", 11)]
    for domain in (splits.train, splits.validation, *splits.targets.values()):
        assert domain.image_size == (32, 32)
        assert torch.equal(domain.labels, torch.arange(len(domain)) % 10), domain.name


def test_missing_files_error_says_where_to_get_them(root, tmp_path_factory):
    for folder, name, place in (
        (root, "svhn", "housenumbers"),
        (tmp_path_factory.mktemp("empty"), "mnist", "MNIST/raw"),
    ):
        with pytest.raises(DataError, match=f"no {name} files") as caught:
            digits.load(SMALL, root=folder, targets=["svhn"])
        assert place in caught.value.hint


def test_finds_mnist_in_the_usual_places(tmp_path):
    for number, folder in enumerate(["MNIST/raw", "mnist", "Mnist/RAW", "raw", "."]):
        write_mnist(tmp_path / str(number) / folder, 4, gz=number % 2 == 0)
        assert len(digits._require(tmp_path / str(number), "mnist", "train")) == 2


def test_libsvm_values_equal_those_of_torchvision(tmp_path):
    generator = np.random.default_rng(0)
    values = generator.uniform(-1, 1, (40, 16, 16)).round(7)
    values[0, 0, :4] = [1, 0, 0.001, -1]
    file = tmp_path / "usps.t.bz2"
    file.write_bytes(bz2.compress(libsvm_text(values, cycle(40))))
    images, labels = digits._read_libsvm(file)
    reference = importlib.import_module("torchvision").datasets.USPS(tmp_path, train=False)
    assert np.array_equal(images, reference.data)
    assert labels.tolist() == reference.targets
    assert images[0, 0, :4].tolist() == [255, 127, 127, 0]


def test_mat_files_are_read_with_label_ten_as_zero(tmp_path, monkeypatch):
    write_mat(tmp_path / "test_32x32.mat", 21)
    images, labels = digits._read_mat(tmp_path / "test_32x32.mat")
    assert np.array_equal(images[4], draw(32, 32, 3, 21, seed=2)[..., 4])
    assert np.array_equal(labels, cycle(21))
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ConfigError, match="needs scipy"):
        digits._read_mat(tmp_path / "test_32x32.mat")


def test_png_folders_give_the_pixels_in_the_order_of_the_list(tmp_path):
    write_mnist_m(tmp_path, 3)
    list_file = tmp_path / "mnist_m_test_labels.txt"
    list_file.write_text("00000002.png 7\n00000000.png 1\n00000001.png 4\n")
    images, labels = digits._read_png_folder(list_file, tmp_path / "mnist_m_test")
    assert np.array_equal(images[0], draw(32, 32, 3, seed=2))
    assert labels.tolist() == [7, 1, 4]


def test_first_and_train_choose_the_training_images_and_validation_follows_them(root):
    images = draw(2060, 28, 28, seed=len("train"))
    splits = digits.load(DigitsSettings(first=5, train=20), root=root)

    def resized(index):
        return np.asarray(Image.fromarray(images[index]).resize((32, 32), Image.Resampling.LANCZOS))

    for channel in range(3):
        assert np.array_equal(splits.train.images[0, channel], resized(5))
        assert np.array_equal(splits.train.images[-1, channel], resized(24))
        assert np.array_equal(splits.validation.images[0, channel], resized(25))


def test_validation_wraps_around_without_training_images(root):
    splits = digits.load(DigitsSettings(first=2010, train=50), root=root)
    train = {image.numpy().tobytes() for image in splits.train.images}
    assert len(splits.validation) == 2000
    assert train.isdisjoint(image.numpy().tobytes() for image in splits.validation.images)


def test_more_images_than_mnist_has_are_rejected(root):
    with pytest.raises(ConfigError, match="MNIST has 2060"):
        digits.load(DigitsSettings(first=5, train=2100), root=root)
    with pytest.raises(ConfigError, match="too few to train"):
        digits.load(DigitsSettings(train=2060), root=root)


def test_resize_changes_the_pixels_of_small_images_only(full_root):
    lanczos = digits.load(SMALL, root=full_root)
    bilinear = digits.load(DigitsSettings(train=40, resize="bilinear"), root=full_root)
    assert not torch.equal(lanczos.train.images, bilinear.train.images)
    for name, resized in {"usps": True, "svhn": False, "syn": False, "mnist-m": False}.items():
        a, b = lanczos.targets[name], bilinear.targets[name]
        assert torch.equal(a.images, b.images) != resized, name


def test_all_splits_and_mnist_test_can_be_used(full_root):
    settings = DigitsSettings(train=2060, validation="mnist-test", svhn="all", usps="all")
    splits = digits.load(settings, root=full_root)
    assert (len(splits.train), len(splits.validation)) == (2060, 30)
    assert (len(splits.targets["svhn"]), len(splits.targets["usps"])) == (45, 28)


def test_values_change_the_normalization_and_not_the_images():
    info = benchmark("digits")
    assert info.normalization(DigitsSettings()) == ((0.0,) * 3, (1.0,) * 3)
    assert info.normalization(DigitsSettings(values="centered")) == ((0.5,) * 3, (0.5,) * 3)


def test_a_file_is_read_again_only_if_it_was_replaced(root, monkeypatch):
    write_usps(root, 11)
    first = digits.load(SMALL, root=root)
    with monkeypatch.context() as patch:
        patch.setattr("peerdg.data.digits.Domain", None)
        assert digits.load(SMALL, root=root).fingerprint == first.fingerprint
    write_usps(root, 12)
    assert len(digits.load(SMALL, root=root).targets["usps"]) == 12


def test_an_incomplete_set_is_an_error(root):
    write_mnist_m(root, 3)
    (root / "mnist_m_test_labels.txt").unlink()
    with pytest.raises(DataError, match=r"mnist_m_test_labels\.txt is missing"):
        digits.load(SMALL, root=root)


def reports(root):
    return {(report.domain, report.split): report for report in digits.verify(root)}


def test_the_report_compares_with_the_published_sizes(root, monkeypatch):
    before = reports(root)
    assert len(before) == 8
    missing = before["svhn", "test"]
    assert (missing.status, missing.count, missing.expected) == ("missing", None, 26_032)
    assert before["svhn", "train"].optional and not missing.optional
    assert before["mnist", "train"].problems == ("Found 2,060 images, expected 60,000.",)
    key = "mnist", "train"
    monkeypatch.setitem(digits.SPLITS, key, digits.SPLITS[key]._replace(expected=2060))
    assert reports(root)[key].status == "found"


MNIST = ("MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte")
IMAGES, LABELS = idx_images(draw(5, 28, 28)), idx_labels(cycle(5))
M_NAMES = "mnist_m/mnist_m_test_labels.txt"


def mat(**variables) -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, variables)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({MNIST[0]: b"", MNIST[1]: LABELS}, "images-idx3"),
        ({MNIST[0]: IMAGES[:-1], MNIST[1]: LABELS}, "bytes follow"),
        ({MNIST[0]: idx_images(draw(5, 30, 30)), MNIST[1]: LABELS}, "30, 30"),
        ({MNIST[0]: IMAGES, MNIST[1]: idx_labels(cycle(4))}, "5 images and 4 labels"),
        ({MNIST[0]: IMAGES, MNIST[1]: idx_labels(cycle(5) + 6)}, "from 6 to 10"),
        ({f"{MNIST[0]}.gz": gzip.compress(IMAGES)[:-20], MNIST[1]: LABELS}, "ended before"),
        ({"usps.t.bz2": b"plain text"}, "usps"),
        ({"usps.t.bz2": bz2.compress(b"")}, "usps"),
        ({"usps.t.bz2": bz2.compress(b"4 1:a\n")}, "could not convert"),
        ({"usps.t.bz2": bz2.compress(b"4 300:1\n")}, "out of bounds"),
        ({"usps.t.bz2": bz2.compress(b"4 1:nan\n")}, "between -1 and 1"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5), y=cycle(5))[:5000]}, "32x32"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5))}, "'y'"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5).astype(float), y=cycle(5))}, "X is float64"),
        ({M_NAMES: b""}, "labels.txt"),
        ({M_NAMES: b"00000000.png one\n"}, "one"),
        ({M_NAMES: b"../secret.png 1\n"}, "outside"),
        ({M_NAMES: b"00000009.png 3\n"}, "00000009.png"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(tmp_path, files, reason):
    write_mnist_m(tmp_path / "mnist_m", 3)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (report,) = (r for r in digits.verify(tmp_path) if r.count is None and r.problems)
    assert report.status == "problem"
    assert re.search(reason, report.problems[0]), report.problems
