"""A tiny training in a process of its own: python -m tests.reliability.tiny_run OUT [JSON].

Batch normalization, dropout, momentum and both phases are in it, a checkpoint after every step.
It resumes what is in OUT, says `training` before the first step, and ends like the command line.
"""

import json
import sys
import warnings

import torch

import peerdg
from peerdg.errors import PeerdgError, PeerdgWarning
from peerdg.models.classifier import Classifier
from peerdg.options import merge
from peerdg.run.progress import ProgressDisplay
from tests.conftest import tiny_classifier, tiny_splits

OPTIONS = {
    "method": "peer",
    "threads": 1,
    "checkpoint_minutes": 0,
    "pretrain": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "train": {"epochs": 8, "batch_size": 8, "lr": 0.01, "optimizer": "sgd"},
    "peer": {"k": 2, "head_dim": 4, "head_hidden": 8},
}


def tiny_model() -> Classifier:
    """Laid out in memory like the real ones."""
    return tiny_classifier(batch_norm=True, dropout=0.2).to(memory_format=torch.channels_last)


class Announced(ProgressDisplay):
    def start_phase(self, name: str, **_: object) -> None:
        print("training", name, flush=True)


def main(out: str, options: str = "{}") -> int:
    warnings.simplefilter("always", PeerdgWarning)
    try:
        peerdg.fit(
            tiny_splits(),
            out=out,
            model=tiny_model(),
            existing="resume",
            progress=Announced(),
            **merge(OPTIONS, json.loads(options)),
        )
    except PeerdgError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
