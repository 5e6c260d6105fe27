"""The code of docs/integrations.md runs, and its libraries are imported only when needed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from peerdg.model import load_model
from peerdg.models.backbones import build_classifier
from peerdg.models.stored import save_model
from tests.conftest import import_timm
from tests.reliability.processes import environment

pytestmark = pytest.mark.runs
PAGE = Path(__file__).parents[2] / "docs/integrations.md"


def execute(block: str, **scope: Any) -> dict[str, Any]:
    marker = f"<!-- executed by tests/integrations/test_page.py: {block} -->"
    code = re.search(re.escape(marker) + r"\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code[1], scope)
    return scope


def test_the_classifier_learns_digits_and_the_search_finds_more_epochs_better():
    scope = execute("sklearn")
    classifier, test, labels = (scope[name] for name in ("classifier", "test", "test_labels"))
    assert classifier.score(test, labels) > 0.8
    assert scope["search"].best_params_["epochs"] == 12


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # lightning's own call
@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
def test_the_module_trains_a_task_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("lightning_utilities", reason="needs the extra lightning")
    monkeypatch.chdir(tmp_path)
    images, labels = (
        torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8),
        torch.arange(16) % 10,
    )
    loader = DataLoader(TensorDataset(images, labels), batch_size=8)
    scope = execute(
        "lightning", epochs=5, loader=loader, validation_loader=loader, target_loader=loader
    )
    assert scope["module"].peer.average.count == 1
    assert scope["task"] is scope["module"].peer.task
    assert "accuracy" in scope["trainer"].callback_metrics


def test_timm_loads_an_exported_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import_timm()
    monkeypatch.chdir(tmp_path)
    backbone = "timm:mobilenetv3_small_050"
    model = build_classifier(backbone, classes=("cat", "dog"))
    save_model(tmp_path / "model", model, backbone=backbone, image_size=224)
    load_model(tmp_path / "model").export("first-hub", format="hub")
    assert execute("timm")["network"].num_classes == 2


IMPORTS = """
import sys, peerdg
peerdg.fit
assert not {"sklearn", "lightning", "timm"} & set(sys.modules)
import peerdg.integrations.lightning
"""


def test_only_the_adapters_import_their_libraries():
    """Next to a CPU build of torch, lightning alone cannot be imported."""
    pytest.importorskip("lightning_utilities", reason="needs the extra lightning")
    subprocess.run([sys.executable, "-W", "error", "-c", IMPORTS], check=True, env=environment())
