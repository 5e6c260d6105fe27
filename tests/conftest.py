import gc
import importlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.models.classifier import Classifier
from tests.forked import ForkedPopen

# Folders and files of tests that train whole runs or start processes.
RUNS = {
    "run", "reliability", "benches", "cli", "export", "mutants", "report", "security",
    "test_api.py", "test_attached_averages.py", "test_class_order.py", "test_fit_in_memory.py",
    "test_made_images.py", "test_nan.py", "test_plain_loop.py", "test_same_numbers.py",
    "test_stop_between_epochs.py", "test_stored_layers.py", "test_stored_models.py",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test-fast` leaves out."""
    for item in items:
        if RUNS & set(item.path.relative_to(Path(__file__).parent).parts):
            item.add_marker("runs")


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for the whole session, so that digits-mini is made once; never the user's own."""
    monkeypatch.setenv("PEERDG_CACHE", str(session_cache))
    # Each test trains for itself, so that none depends on which ran before.
    monkeypatch.setenv("PEERDG_SHARE_PRETRAINING", "0")
    return session_cache


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Only after a loss of power would a test see that its files were not on the disk yet.

    That they are asked to be is tested in `test_files`; processes that tests start do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # fails as well if the file is not open
        patch.setattr(os, "sync", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def fewer_collections() -> None:
    """Keep the many objects of the libraries out of every garbage collection."""
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(scope="session", autouse=True)
def fork_commands() -> Iterator[None]:
    """Start commands as forks, unless REAL_PROCESSES is set."""
    with pytest.MonkeyPatch.context() as patch:
        if "REAL_PROCESSES" not in os.environ:
            patch.setattr(subprocess, "Popen", ForkedPopen)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run side by side; small shapes gain nothing from a second thread."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_global_stream() -> None:
    """Make each test independent of the ones before: torchvision draws from the global stream."""
    torch.manual_seed(0)


def import_timm() -> ModuleType:
    """Skip the test where timm is absent; it needs torchvision as the package imports it."""
    importlib.import_module("peerdg._vision")
    module: ModuleType = pytest.importorskip("timm")
    return module


class TinyEncoder(torch.nn.Module):
    """A network of the same kind as the real ones, small enough for hundreds of runs."""

    def __init__(self, *, batch_norm: bool = False, dropout: float = 0.0, dim: int = 8) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, stride=2)
        self.norm = torch.nn.BatchNorm2d(4) if batch_norm else torch.nn.Identity()
        self.drop = torch.nn.Dropout(dropout)
        self.fc = torch.nn.Linear(4, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return torch.relu(self.fc(self.drop(x)))


def tiny_classifier(
    *, seed: int = 0, classes: int = 3, batch_norm: bool = False, dropout: float = 0.0
) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = TinyEncoder(batch_norm=batch_norm, dropout=dropout)
        return Classifier(
            encoder, torch.nn.Linear(8, classes), classes=tuple("abcdefghij"[:classes])
        )


def tiny_domain(name: str = "source", *, n: int = 24, classes: int = 3, seed: int = 0) -> Domain:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    images = torch.randint(0, 256, (n, 3, 12, 12), generator=generator, dtype=torch.uint8)
    images[:, 0] = (images[:, 0] // 4 + (labels * 60).view(-1, 1, 1)).to(torch.uint8)
    return Domain(name, tuple("abcdefghij"[:classes]), images, labels)


def tiny_splits() -> Splits:
    return Splits(
        train=tiny_domain(),
        validation=tiny_domain("validation", n=9, seed=1),
        targets={"one": tiny_domain("one", n=12, seed=2), "two": tiny_domain("two", n=15, seed=3)},
    )
