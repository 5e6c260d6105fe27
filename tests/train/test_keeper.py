import time
from pathlib import Path

import pytest
import torch

from peerdg.methods.erm import ERM
from peerdg.train import keeper
from peerdg.train.optim import make_optimizer
from peerdg.train.rundir import RunFolder
from peerdg.train.settings import PhaseSettings, RunConfig
from peerdg.train.state import TrainState
from tests.conftest import tiny_classifier


def test_a_checkpoint_holds_what_was_saved_though_training_and_the_next_save_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Copies share their memory from one checkpoint to the next; a slow disk must not see that."""
    written = []

    def slow(folder: Path, number: int, tensors: dict[str, torch.Tensor], plain: object) -> None:
        time.sleep(0.2)
        written.append({float(t.flatten()[0]) for n, t in tensors.items() if "head.weight" in n})

    monkeypatch.setattr(keeper, "save_checkpoint", slow)
    method = ERM(tiny_classifier())
    state = TrainState("train", method, make_optimizer(method, PhaseSettings()))
    keeps = keeper.Keeper(RunFolder.open(tmp_path / "run", RunConfig()), minutes=1)
    for value in (1.0, 2.0, 3.0):
        torch.nn.init.constant_(method.deployed.head.weight, value)
        keeps.save(state)
    torch.nn.init.constant_(method.deployed.head.weight, 4.0)
    keeps.close()
    assert written == [{1.0}, {2.0}, {3.0}]
