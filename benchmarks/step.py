"""One step of PEER against the bare step of its proxy on the Digits CNN, batch 128.

The floor is forward, backward and fused Adam on two views of random images already in memory.
"""

import torch
import torch.nn.functional as F

from benchmarks.measure import Timing, interleave
from peerdg.augment.policy import Policy
from peerdg.methods.base import Batch
from peerdg.methods.peer import PEER
from peerdg.models.backbones import build_classifier

BATCH = 128


def measure(repeats: int = 15) -> dict[str, Timing]:
    """Time the sgemm peak, the bare step and PEER's step."""
    classes = tuple("0123456789")
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1024, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (1024,), generator=generator)
    rows = torch.arange(BATCH)

    bare = build_classifier("digits-cnn", classes=classes)
    bare_adam = torch.optim.Adam(bare.parameters(), lr=1e-4, fused=True)
    views = images[: 2 * BATCH].float().div(255).to(memory_format=torch.channels_last)
    twice = labels[: 2 * BATCH]

    def floor() -> None:
        bare_adam.zero_grad()
        F.cross_entropy(bare(views), twice).backward()
        bare_adam.step()

    model = build_classifier("digits-cnn", classes=classes)
    peer = PEER(model, augment=Policy(operations="sdg"), clean=images.split(512))
    adam = torch.optim.Adam([p for p in peer.parameters() if p.requires_grad], lr=1e-4, fused=True)
    peer.train()
    peer.start_epoch(0)

    def step() -> None:
        adam.zero_grad()
        batch = Batch(images[rows], labels[rows], index=rows, seed=0)
        peer.loss(batch)["loss"].backward()
        adam.step()

    a = torch.randn(2048, 2048)
    return interleave(
        {"sgemm 2048": lambda: a @ a, "bare step": floor, "PEER step": step}, repeats=repeats
    )
