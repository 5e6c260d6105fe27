"""Pass a batch through an encoder with unusual layers, and store its features and gradients.

RANK=0 WORLD_SIZE=2 ... python -m tests.distributed.layers FILE
"""

import copy
import sys
from pathlib import Path

import torch
from torch import nn

from peerdg import distributed, torchvision  # noqa: F401  (timm imports it)
from peerdg.models.stored import save_tensors


def main(file: Path) -> None:
    from timm.layers import BatchNormAct2d

    torch.set_num_threads(1)
    distributed.connect(torch.device("cpu"))
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        BatchNormAct2d(4),
        nn.RReLU(),
        nn.Dropout(0.3),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Dropout(0.0),
    ).double()
    x, found = torch.rand(7, 3, 6, 6).double(), {}
    average = copy.deepcopy(encoder).requires_grad_(False)  # as in an average of the weights
    with distributed.divided(nn.ModuleList([encoder, average])):
        for mode in (True, False):
            encoder.train(mode).zero_grad()
            features = distributed.encode(encoder, x)
            features.pow(3).sum().backward()
            distributed.share_gradients(encoder.parameters(), set(encoder.parameters()))
            found[f"features {mode}"] = features.detach()
            found |= {f"{name} {mode}": p.grad.clone() for name, p in encoder.named_parameters()}
    save_tensors(file.with_name(f"{file.name}-{distributed.rank()}"), found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
