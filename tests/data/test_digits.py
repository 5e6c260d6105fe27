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

import peerdg._vision  # noqa: F401  (torchvision's import beside a CPU-only torch)
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


def test_a_target_that_was_asked_for_and_is_missing_says_where_to_get_it(root):
    with pytest.raises(DataError, match=r"no files of svhn \(test\)") as caught:
        digits.load(SMALL, root=root, targets=["svhn"])
    assert "housenumbers" in caught.value.hint


def test_a_missing_source_says_where_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"no files of mnist \(train\)") as caught:
        digits.load(SMALL, root=tmp_path)
    assert "MNIST/raw" in caught.value.hint


@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist", "Mnist/RAW", "raw", "."])
@pytest.mark.parametrize("gz", [True, False])
def test_finds_mnist_in_the_usual_places(tmp_path, folder, gz):
    write_mnist(tmp_path / folder, 2060, gz=gz)
    assert len(digits.load(SMALL, root=tmp_path).train) == 40


def test_idx_files_give_their_pixels(tmp_path):
    images, labels = draw(7, 28, 28), cycle(7)
    (tmp_path / "i").write_bytes(idx_images(images))
    (tmp_path / "l.gz").write_bytes(gzip.compress(idx_labels(labels)))
    read_images, read_labels = digits._read_idx(tmp_path / "i", tmp_path / "l.gz")
    assert np.array_equal(read_images, images)
    assert np.array_equal(read_labels, labels)


def test_libsvm_values_become_the_bytes_of_torchvision(tmp_path):
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


def test_mat_files_give_their_pixels_and_ten_means_zero(tmp_path):
    write_mat(tmp_path / "test_32x32.mat", 21)
    images, labels = digits._read_mat(tmp_path / "test_32x32.mat")
    assert np.array_equal(images[4], draw(32, 32, 3, 21, seed=2)[..., 4])
    assert np.array_equal(labels, cycle(21))


def test_png_folders_give_the_pixels_in_the_order_of_the_list(tmp_path):
    write_mnist_m(tmp_path, 3)
    list_file = tmp_path / "mnist_m_test_labels.txt"
    list_file.write_text("00000002.png 7\n00000000.png 1\n00000001.png 4\n")
    images, labels = digits._read_png_folder(list_file, tmp_path / "mnist_m_test")
    assert np.array_equal(images[0], draw(32, 32, 3, seed=2))
    assert labels.tolist() == [7, 1, 4]


def test_scipy_is_asked_for_by_its_extra(tmp_path, monkeypatch):
    write_mat(tmp_path / "a.mat", 10)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ConfigError, match="scipy") as caught:
        digits._read_mat(tmp_path / "a.mat")
    assert caught.value.hint == "pip install 'peerdg[digits]'"


def test_first_and_train_choose_the_training_images_and_validation_follows_them(root):
    images = draw(2060, 28, 28, seed=len("train"))
    splits = digits.load(DigitsSettings(first=5, train=20), root=root)

    def resized(index):
        return np.asarray(Image.fromarray(images[index]).resize((32, 32), Image.Resampling.LANCZOS))

    for channel in range(3):
        assert np.array_equal(splits.train.images[0, channel], resized(5))
        assert np.array_equal(splits.train.images[-1, channel], resized(24))
        assert np.array_equal(splits.validation.images[0, channel], resized(25))


def test_validation_goes_on_at_the_beginning_and_never_meets_the_training_images(root):
    splits = digits.load(DigitsSettings(first=2010, train=50), root=root)
    train = {image.numpy().tobytes() for image in splits.train.images}
    assert len(splits.validation) == 2000
    assert train.isdisjoint(image.numpy().tobytes() for image in splits.validation.images)


def test_too_many_training_images_are_refused(root):
    with pytest.raises(ConfigError, match="MNIST has 2060"):
        digits.load(DigitsSettings(first=5, train=2100), root=root)


def test_no_room_for_validation_is_refused_with_a_way_out(root):
    with pytest.raises(ConfigError, match="left to validate on") as caught:
        digits.load(DigitsSettings(train=2060), root=root)
    assert "mnist-test" in caught.value.hint


def test_mnist_test_can_be_the_validation_set(full_root):
    settings = DigitsSettings(train=2060, validation="mnist-test")
    splits = digits.load(settings, root=full_root)
    assert (len(splits.train), len(splits.validation)) == (2060, 30)


def test_resize_changes_the_pixels_of_small_images_only(full_root):
    lanczos = digits.load(SMALL, root=full_root)
    bilinear = digits.load(DigitsSettings(train=40, resize="bilinear"), root=full_root)
    assert not torch.equal(lanczos.train.images, bilinear.train.images)
    for name, resized in {"usps": True, "svhn": False, "syn": False, "mnist-m": False}.items():
        a, b = lanczos.targets[name], bilinear.targets[name]
        assert torch.equal(a.images, b.images) != resized, name


def test_all_means_train_and_test_together(full_root):
    settings = DigitsSettings(train=40, svhn="all", usps="all")
    targets = digits.load(settings, root=full_root).targets
    assert (len(targets["svhn"]), len(targets["usps"])) == (45, 28)


def test_values_change_the_normalisation_and_not_the_images():
    info = benchmark("digits")
    assert info.normalization(DigitsSettings()) == ((0.0,) * 3, (1.0,) * 3)
    assert info.normalization(DigitsSettings(values="centred")) == ((0.5,) * 3, (0.5,) * 3)


def test_the_second_load_reads_no_source_file(full_root, monkeypatch):
    first = digits.load(SMALL, root=full_root)

    def refuse(*_):
        raise AssertionError("read again")

    monkeypatch.setattr("peerdg.data.digits.Domain", refuse)
    assert digits.load(SMALL, root=full_root).fingerprint == first.fingerprint


def test_a_replaced_file_is_read_again(root):
    write_usps(root, 11)
    digits.load(SMALL, root=root)
    write_usps(root, 12)
    assert len(digits.load(SMALL, root=root).targets["usps"]) == 12


def test_half_a_set_is_an_error(root):
    write_mnist_m(root, 3)
    (root / "mnist_m_test_labels.txt").unlink()
    with pytest.raises(DataError, match=r"not mnist_m_test_labels\.txt"):
        digits.load(SMALL, root=root)


def reports(root):
    return {(report.domain, report.split): report for report in digits.verify(root)}


def test_the_report_names_what_is_missing_and_where_to_get_it(root):
    found = reports(root)
    assert len(found) == 8
    missing = found["svhn", "test"]
    assert (missing.status, missing.count, missing.expected) == ("missing", None, 26_032)
    assert missing.obtain.startswith("http")
    assert found["svhn", "train"].optional and not missing.optional


def test_the_report_counts_and_compares_with_the_published_sizes(root, monkeypatch):
    report = reports(root)["mnist", "train"]
    assert (report.status, report.count) == ("problem", 2060)
    assert report.problems == ("2,060 images where 60,000 are published.",)
    parts = [p for p in digits.SPLITS if (p.domain, p.split) == ("mnist", "train")]
    monkeypatch.setattr(digits, "SPLITS", [parts[0]._replace(expected=2060)])
    (report,) = digits.verify(root)
    assert (report.status, report.problems) == ("found", ())


MNIST = ("MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte")
IMAGES, LABELS = idx_images(draw(5, 28, 28)), idx_labels(cycle(5))
USPS_LINE = libsvm_text(np.zeros((1, 16, 16)), np.array([3]))
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
        ({MNIST[0]: IMAGES + b"x", MNIST[1]: LABELS}, "bytes follow"),
        ({MNIST[0]: idx_images(draw(5, 30, 30)), MNIST[1]: LABELS}, "30, 30"),
        ({MNIST[0]: IMAGES, MNIST[1]: idx_labels(cycle(4))}, "5 images and 4 labels"),
        ({MNIST[0]: IMAGES, MNIST[1]: idx_labels(cycle(5) + 6)}, "from 6 to 10"),
        ({f"{MNIST[0]}.gz": gzip.compress(IMAGES)[:-20], MNIST[1]: LABELS}, "ended before"),
        ({f"{MNIST[0]}.gz": b"not gzip at all", MNIST[1]: LABELS}, "gzip"),
        ({"usps.t.bz2": b"plain text"}, "usps"),
        ({"usps.t.bz2": bz2.compress(USPS_LINE * 50)[:-9]}, "usps"),
        ({"usps.t.bz2": bz2.compress(b"")}, "usps"),
        ({"usps.t.bz2": bz2.compress(b"4 1:a\n")}, "could not convert"),
        ({"usps.t.bz2": bz2.compress(b"4 300:1\n")}, "out of bounds"),
        ({"usps.t.bz2": bz2.compress(b"4 1:7\n")}, "between -1 and 1"),
        ({"usps.t.bz2": bz2.compress(b"4 1:nan\n")}, "between -1 and 1"),
        ({"usps.t.bz2": bz2.compress(b"0 1:1\n")}, "from -1 to -1"),
        ({"test_32x32.mat": b""}, "32x32"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5), y=cycle(5))[:5000]}, "32x32"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5))}, "'y'"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5).astype(float), y=cycle(5))}, "X is float64"),
        ({"test_32x32.mat": mat(X=draw(5, 32, 32), y=cycle(5))}, r"\(5, 32, 32\)"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5), y=cycle(4))}, "5 images and 4 labels"),
        ({"test_32x32.mat": mat(X=draw(32, 32, 3, 5), y=cycle(5) + 7)}, "from 0 to 11"),
        ({M_NAMES: b""}, "labels.txt"),
        ({M_NAMES: b"00000000.png\n"}, "labels.txt"),
        ({M_NAMES: b"00000000.png one\n"}, "one"),
        ({M_NAMES: b"../secret.png 1\n"}, "outside"),
        ({M_NAMES: b"00000009.png 3\n"}, "00000009.png"),
        ({M_NAMES: b"00000000.png 10\n"}, "from 10 to 10"),
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
