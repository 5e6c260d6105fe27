import json
from pathlib import Path

import pytest
import torch

from peerdg.cli.main import run
from tests.cli.stored_models import CLASSES, save_small_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("stored") / "model")


def export(*arguments: object) -> int:
    return run(["export", *map(str, arguments)], debug=False)


def test_the_default_place_is_named_after_run_and_format(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert export(model, "--format", "safetensors") == 0
    names = sorted(path.name for path in (tmp_path / "model-safetensors").iterdir())
    assert names == ["MODEL_CARD.md", "about.json", "weights.safetensors"]


def test_says_where_the_files_are_and_how_equal_the_answers(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "deep/model.pt2"
    assert export(model, "--format", "torch-export", "-o", out) == 0
    said = capsys.readouterr().out
    assert str(out) in said.replace("\n", "")
    assert "differ from the original's by" in said
    loaded = torch.export.load(out)
    images = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
    assert loaded.module()(images).shape == (3, len(CLASSES))
    extra = {"peerdg.json": ""}
    torch.export.load(out, extra_files=extra)
    assert json.loads(extra["peerdg.json"])["stored_size"] == 40
    card = (tmp_path / "deep/model.MODEL_CARD.md").read_text()
    assert "execute code" in card
    assert "'model.pt2'" in card


def test_wrong_formats_and_folders_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert export(model, "--format", "onyx") == 2
    assert export(tmp_path, "--format", "safetensors") == 5
    assert export(model, "--format", "safetensors", "-o", "/proc/x/w.safetensors") == 4
    assert export(model) == 2
    assert "Traceback" not in capsys.readouterr().err
