"""Train PEER on small digits, and store the deployed network of each process.

RANK=0 WORLD_SIZE=2 ... python -m tests.distributed.whole_run FOLDER [batch-norm]
"""

import sys
from pathlib import Path
from typing import Any

import torch

from peerdg import distributed
from peerdg.models.names import OWN
from peerdg.models.stored import save_tensors
from peerdg.run.config import resolve
from peerdg.run.progress import ProgressDisplay
from peerdg.run.run import start_run
from tests.conftest import tiny_classifier

OPTIONS: dict[str, Any] = {
    "benchmark": "digits-mini",
    "budget": "quick",
    "method": "peer",
    "peer": {"k": 1, "head_dim": 16, "head_hidden": 16},
    "pretrain": {"epochs": 1, "steps_per_epoch": 5, "lr": 0.001, "optimizer": "sgd"},
    "train": {"epochs": 3, "steps_per_epoch": 5, "lr": 0.001, "optimizer": "sgd"},
    "digits-mini": {"train": 400},
    "threads": 1,
}


def main(folder: Path, *, batch_norm: bool) -> None:
    torch.set_num_threads(1)
    config, model = resolve(OPTIONS), None
    if batch_norm:
        config = resolve({**OPTIONS, "backbone": OWN})
        model = tiny_classifier(classes=10, batch_norm=True, dropout=0.2)
        model.classes = tuple("0123456789")
    _, network = start_run(
        config, folder / "run", existing="refuse", progress=ProgressDisplay(), model=model
    )
    save_tensors(folder / f"{distributed.rank()}", network.state_dict())


if __name__ == "__main__":
    main(Path(sys.argv[1]), batch_norm="batch-norm" in sys.argv)
