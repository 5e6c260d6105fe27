"""Methods that change the network: their models load and export without the method."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import peerdg
from peerdg.cli.main import run
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from tests.reliability.processes import environment

OPTIONS: dict[str, dict[str, Any]] = {
    "l2d": {"dim": 16},
    "simde": {"width": 4},
    "metacnn": {"atoms": 16, "addressed": 4},
}
IMAGES = np.random.default_rng(0).integers(0, 256, (24, 3, 32, 32), dtype=np.uint8)


@pytest.fixture(scope="module", params=OPTIONS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on a named network and images of 32 pixels."""
    domain = Domain("one", ("a", "b", "c"), torch.from_numpy(IMAGES), torch.arange(24) % 3)
    out = tmp_path_factory.mktemp("stored") / request.param
    peerdg.fit(
        Splits(domain, domain, {"one": domain}), out=out, method=request.param,
        backbone="digits-cnn-half", pretrain={"epochs": 0}, crafted="off",
        train={"epochs": 1, "batch_size": 12}, **{request.param: OPTIONS[request.param]},
    )  # fmt: skip
    return out


def logits(out: Path) -> torch.Tensor:
    with torch.no_grad():
        return peerdg.load_model(out).classifier(torch.from_numpy(IMAGES))


def test_the_stored_model_is_the_one_that_was_evaluated(trained: Path):
    right = int((logits(trained).argmax(1) == torch.arange(24) % 3).sum())
    deployed = json.loads((trained / "done.json").read_text())["deployed"]
    records = map(json.loads, (trained / "metrics.jsonl").read_text().splitlines())
    last = [r for r in records if r["kind"] == "evaluation" and r["epoch"] == 1]
    (own,) = (r for r in last if r["model"] == deployed and r["domain"] == "one")
    assert right == own["correct"]


@pytest.mark.slow
def test_onnx_answers_like_torch(trained: Path, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    assert run(["export", str(trained), "--format", "onnx", "-o", str(file)], debug=False) == 0
    outputs = onnxruntime.InferenceSession(file).run(None, {"images": IMAGES})[0]
    np.testing.assert_allclose(outputs, logits(trained), rtol=1e-3, atol=1e-4)


def test_the_model_folder_is_used_without_the_method(trained: Path):
    code = (
        "import sys, peerdg, numpy as np; "
        f"m = peerdg.load_model({str(trained / 'model')!r}); "
        "m.predict(np.zeros((40, 40, 3), np.uint8)); "
        f"sys.exit('peerdg.methods.{trained.name}' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0
