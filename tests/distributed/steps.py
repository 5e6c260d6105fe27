"""Train every objective for a few steps in float64, and store all gradients and weights.

RANK=0 WORLD_SIZE=2 ... python -m tests.distributed.steps FILE [NAME ...]
"""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

from peerdg import distributed
from peerdg.models.stored import save_tensors
from peerdg.rng import seeded
from peerdg.run.config import resolve
from peerdg.run.prepare import load_inputs, make_method, phases_of
from peerdg.train.loop import run_phase
from peerdg.train.step import Guard
from tests.conftest import tiny_classifier, tiny_splits
from tests.run.test_resume_all import VARIANTS, options

IN_FLOAT32 = ("pden", "simde")  # their generators make float32 images
CASES = {f"{method} {settings}": (method, settings) for method, settings in VARIANTS}
# The norms that balance gradients are stored in float32.
ROUNDED = {name for name in CASES if name.split()[0] in IN_FLOAT32} | {"peer, balanced"}
CASES["peer, balanced"] = ("peer", {"scale": "gradient"})


def trained(method: str, settings: dict, *, dropout: float = 0.3) -> dict[str, Tensor]:
    """Train the main phase. Return the gradients of each update, and the final state."""
    settings = {"scale": "sum"} | settings if method == "peer" else settings
    given = {"benchmark": "own-data", "batch_statistics": "clean", **options(method, settings)}
    config = resolve({**given, "train": {**given["train"], "epochs": 2}, "pretrain": {"epochs": 0}})
    network = tiny_classifier(batch_norm=True, dropout=dropout)
    inputs = load_inputs(config, splits=tiny_splits(), model=network)
    exact = method not in IN_FLOAT32
    if exact:
        inputs.network.double()
    gradients: dict[str, Tensor] = {}
    inspect = Guard.inspect

    def record(self, optimizer, rows, terms):
        names = {p: name for name, p in self.state.method.named_parameters()}
        update = len({key.split()[0] for key in gradients})
        for group in optimizer.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                gradients[f"{update:02d} {names[p]}"] = p.grad.clone()
        inspect(self, optimizer, rows, terms)

    Guard.inspect = record
    try:
        (phase,) = phases_of(config)
        with seeded(0, "init", "train"):
            made = make_method(phase, config, inputs.network, inputs.source, None)
        if exact:
            made.double()
        with distributed.divided(made):
            run_phase(phase, made, inputs.source, seed=0)
    finally:
        Guard.inspect = inspect
    return gradients | {f"after {name}": value for name, value in made.state_dict().items()}


def main(file: Path, *names: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.connect(torch.device("cpu"))
    for name in names or CASES:
        tensors = trained(*CASES[name])
        number, rank = list(CASES).index(name), distributed.rank()
        save_tensors(file.with_name(f"{file.name} {rank} {number}"), tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
