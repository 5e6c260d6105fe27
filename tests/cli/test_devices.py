"""The device of `evaluate`, `predict` and `Model`: chosen as in `train`, refused as in `train`."""

from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.cli.main import run
from peerdg.errors import ConfigError
from tests.cli.stored_models import save_photos, save_small_model

# The one beside the CPU is "meta", which has no values; torch names devices that are not built in.
UNUSABLE = ("meta", "cuda:77", "toaster")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("stored") / "model")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos") / "all")


def arguments(command: str, model: Path, photos: Path, tmp_path: Path) -> list[str]:
    if command == "train":
        return ["train", str(photos), "--out", str(tmp_path / "run"), "--weights", "none"]
    out = {"predict": "-o", "evaluate": "--json"}[command]
    return [command, str(model), str(photos), out, str(tmp_path / "found.json")]


@pytest.mark.parametrize("device", UNUSABLE)
@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_a_device_that_cannot_be_used_is_refused_in_one_way(
    command: str, device: str, model: Path, photos: Path, tmp_path: Path, capfd
):
    given = [*arguments(command, model, photos, tmp_path), "--device", device]
    assert run(given, debug=False) == 2
    said = capfd.readouterr().err
    assert f"The device '{device}' cannot be used" in said
    assert "Use --device cpu" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_the_commands_go_to_the_accelerator_unless_told_otherwise(
    command: str, model: Path, photos: Path, tmp_path: Path, monkeypatch, capfd
):
    """An accelerator that loses every value must be noticed: so it was really asked."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    given = arguments(command, model, photos, tmp_path)
    assert run(given, debug=False) == 2
    assert "The device 'auto' cannot be used" in capfd.readouterr().err
    assert run([*given, "--device", "cpu"], debug=False) == 0


def test_a_model_moves_and_stays_on_the_cpu_by_default(model: Path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    loaded = peerdg.load_model(model)
    assert loaded.device == torch.device("cpu")
    assert loaded.to("cpu") is loaded
    assert loaded.to(torch.device("cpu")) is loaded
    with pytest.raises(ConfigError, match="'auto' cannot be used"):
        peerdg.load_model(model, device="auto")
    with pytest.raises(ConfigError, match="'meta' cannot be used"):
        loaded.to("meta")
    assert loaded.device == torch.device("cpu")


def test_every_parameter_and_buffer_moves(model: Path, monkeypatch):
    """On the meta device nothing can be computed, but it shows what was moved."""
    monkeypatch.setattr("peerdg.model.find_device", torch.device)
    moved = peerdg.load_model(model).to("meta")
    state = [*moved.classifier.parameters(), *moved.classifier.buffers()]
    assert {tensor.device.type for tensor in state} == {"meta"}
    assert moved.device.type == "meta"
