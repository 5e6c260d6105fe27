import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from peerdg.data import digits_mini as mini
from peerdg.data.benchmarks import DigitsMiniSettings, benchmark
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError


@pytest.fixture
def splits() -> Splits:
    return mini.load(DigitsMiniSettings())


def test_has_documented_sizes_and_balanced_classes(splits):
    assert (len(splits.train), len(splits.validation)) == (4000, 1000)
    assert list(splits.targets) == ["street", "mnist-m", "syn", "uci"]
    for domain in (splits.train, splits.validation, *splits.targets.values()):
        assert domain.image_size == (32, 32)
        assert domain.classes == tuple("0123456789")
        assert domain.labels.bincount(minlength=10).unique().numel() == 1, domain.name


def test_a_smaller_training_set_is_a_balanced_subset(splits):
    small = mini.load(DigitsMiniSettings(train=55), targets=[]).train
    counts = small.labels.bincount(minlength=10)
    assert len(small) == 55
    assert int(counts.max() - counts.min()) <= 1
    assert torch.equal(small.images, splits.train.images[:55])


def test_no_training_digit_is_in_the_validation_set(splits):
    def contents(domain):
        return {image.numpy().tobytes() for image in domain.images}

    assert len(contents(splits.train)) == 4000
    assert contents(splits.train).isdisjoint(contents(splits.validation))


def test_mnist_m_uses_the_validation_digits(splits):
    target, digits = splits.targets["mnist-m"], splits.validation
    assert torch.equal(target.labels, digits.labels)
    # |photo - 255| + photo = 255 wherever the digit is full white: so the color of the stroke is
    # that of an inverted photo, and away from the stroke the photo itself is left.
    stroke = (digits.images == 255).float()
    ground = (digits.images == 0).float()
    images = target.images.float()
    inside = (images * stroke).sum((1, 2, 3)) / stroke.sum((1, 2, 3)).clamp_min(1)
    outside = (images * ground).sum((1, 2, 3)) / ground.sum((1, 2, 3))
    full = stroke.sum((1, 2, 3)) > 30
    correlation = torch.corrcoef(torch.stack([inside[full], outside[full]]))[0, 1]
    assert correlation < -0.9


def test_is_read_from_the_cache(splits, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it is made again")

    for name in ("mnist_digits", "uci_digits", "load_photos", "font_files"):
        monkeypatch.setattr(mini, name, never)
    assert mini.load(DigitsMiniSettings()).fingerprint == splits.fingerprint


@pytest.mark.parametrize(
    "targets",
    [["syn", "uci"], pytest.param(["street", "mnist-m", "syn", "uci"], marks=pytest.mark.slow)],
    ids=len,
)
def test_another_process_without_cache_or_network_makes_the_same_images(targets, splits, tmp_path):
    script = """
import socket, sys
def refuse(*_): raise AssertionError("no network is needed")
socket.socket.connect = socket.getaddrinfo = refuse
from peerdg.data.digits_mini import load
from peerdg.data.benchmarks import DigitsMiniSettings
for name, value in sorted(load(DigitsMiniSettings(), targets=sys.argv[1:]).fingerprint.items()):
    print(name, value)
"""
    environment = {
        **os.environ,
        "PEERDG_CACHE": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": "7",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *targets],
        env=environment,
        text=True,
        capture_output=True,
        check=True,
    )
    wanted = mini.load(DigitsMiniSettings(), targets=targets).fingerprint
    expected = [f"{name} {value}" for name, value in sorted(wanted.items())]
    assert len(expected) >= 1 + len(targets)
    assert done.stdout.splitlines() == expected


def test_every_report_has_the_expected_count():
    reports = benchmark("digits-mini").verify(None)
    assert [report.domain for report in reports] == ["mnist", "street", "mnist-m", "syn", "uci"]
    assert {report.status for report in reports} == {"found"}
    assert [report.count for report in reports] == [5000, 1000, 1000, 1000, 1000]


def test_a_missing_package_error_says_what_to_install(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(mini, "version", missing)
    with pytest.raises(ConfigError, match="matplotlib") as caught:
        mini.load(DigitsMiniSettings())
    assert caught.value.hint == "pip install 'peerdg[demo]'"


def test_missing_package_data_is_named(monkeypatch):
    monkeypatch.setattr(mini, "_SKIMAGE_PHOTOS", ["none.png"])
    with pytest.raises(ConfigError, match=r"skimage .* data/none\.png"):
        mini.load_photos()
