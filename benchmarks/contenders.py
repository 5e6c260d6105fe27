"""What takes turns in the benchmarks of the training step: the floor, PEER, and the reference."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from peerdg.augment.policy import Policy
from peerdg.data.domain import Domain
from peerdg.losses.barlow_twins import barlow_twins
from peerdg.methods.base import Batch
from peerdg.methods.peer import PEER, Settings
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import images_per_pass
from peerdg.models.layers import projection_head
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings, TransformSettings
from peerdg.train.source import Source, epoch_batches, epoch_order
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step


def random_domain(images: int, side: int, classes: int = 10) -> Domain:
    """Images without meaning, as stored."""
    generator = torch.Generator().manual_seed(0)
    return Domain(
        "random",
        tuple(map(str, range(classes))),
        torch.randint(0, 256, (images, 3, side, side), dtype=torch.uint8, generator=generator),
        torch.randint(classes, (images,), generator=generator),
    )


class Floor:
    """The bare step: forward, backward and fused Adam on two views already in memory.

    Args:
        backbone: The network.
        batch: Images per view.
        side: Their side.
        task_forward: Also the task model's forward pass on one view, which PEER cannot avoid when
            the clean view is random.
    """

    def __init__(self, backbone: str, batch: int, side: int, *, task_forward: bool = False) -> None:
        self.model = build_classifier(backbone, classes=tuple("0123456789"))
        self.task = build_classifier(backbone, classes=tuple("0123456789")).eval()
        self.adam = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        views = torch.rand(2 * batch, 3, side, side)
        self.views = views.to(memory_format=torch.channels_last)
        self.labels = torch.randint(10, (2 * batch,))
        self.task_forward = task_forward
        self.model.train()

    def step(self) -> None:
        """One step."""
        self.adam.zero_grad()
        if self.task_forward:
            with torch.no_grad():
                self.task.features(self.views[: len(self.views) // 2])
        F.cross_entropy(self.model(self.views), self.labels).backward()
        self.adam.step()


class MethodFloor(Floor):
    """The bare step with the method's own arithmetic: projection head, Barlow Twins, its Adam.

    Task features are given, as they are looked up in training; what they cost is `features`.

    Args:
        backbone: The network.
        batch: Images per view.
        side: Their side.
        head: Layers and width of the projection head.
    """

    def __init__(
        self, backbone: str, batch: int, side: int, *, head: tuple[int, int] = (2, 128)
    ) -> None:
        super().__init__(backbone, batch, side)
        self.projection = projection_head(self.model.feature_dim, head[1], layers=head[0])
        parameters = [*self.model.parameters(), *self.projection.parameters()]
        self.adam = torch.optim.Adam(parameters, lr=1e-4, fused=True)
        self.h_task = torch.randn(batch, self.model.feature_dim)

    def step(self) -> None:
        """One step."""
        self.adam.zero_grad()
        h = self.model.features(self.views)
        ce = F.cross_entropy(self.model.head(h), self.labels)
        z_f, z_p = self.projection(self.h_task), self.projection(h[len(self.h_task) :])
        (ce + 2.0 * barlow_twins(z_f, z_p)).backward()
        self.adam.step()

    @torch.no_grad()
    def features(self, images: Tensor) -> None:
        """Features of all images by the task model, in chunks, as a period needs them once."""
        for chunk in images.split(images_per_pass(images.shape[-1])):
            self.task.features(chunk)


class Trained:
    """PEER as `peerdg train` runs it, without evaluation.

    Args:
        domain: The source.
        backbone: The network.
        batch: Images per step.
        num_ops: Operations of the augmentation.
        transform: The base transform.
        head: Layers and width of the projection head.
        k: Epochs of a period.
    """

    def __init__(
        self,
        domain: Domain,
        backbone: str,
        batch: int,
        *,
        num_ops: int = 2,
        transform: TransformSettings | None = None,
        head: tuple[int, int] = (2, 128),
        k: int = 10,
    ) -> None:
        self.source = Source(domain, transform)
        settings = Settings(
            k=k, head_layers=head[0], head_dim=head[1], cache_features=self.source.is_deterministic
        )
        policy = Policy.named("fixed", num_ops=num_ops, magnitude=9)
        model = build_classifier(backbone, classes=domain.classes)
        self.method = PEER(model, settings, augment=policy, clean=self.source.clean)
        self.method.train()
        self.method.start_epoch(0)
        self.phase = PhaseSettings(batch_size=batch)
        self.state = TrainState("train", self.method, make_optimizers(self.method, self.phase))
        self.guard = Guard(self.state)
        self.batches = self._batches()

    def step(self) -> None:
        """One step."""
        rows, batch = next(self.batches)
        key = ("train", 0, self.state.step)
        terms = train_step(self.state, batch, rows, guard=self.guard, seed=0, key=key)
        self.state.add_terms(terms)
        self.state.step += 1

    def _batches(self) -> Iterator[tuple[Tensor, Batch]]:
        for epoch in itertools.count():
            order = epoch_order(self.phase, len(self.source), 0, "train", epoch)
            key = ("train", epoch)
            yield from epoch_batches(self.method, self.source, order, start=0, seed=0, key=key)

    def refresh(self) -> None:
        """What PEER does once in k epochs: snapshot, average, features of all clean images."""
        last = self.method.settings.k * (int(self.method.average.count) + 1) - 1
        self.method.start_epoch(last)
        self.method.end_epoch(last)
        self.method.start_epoch(0)


class ReferenceProcess:
    """The reference loop in a process of its own, so that nothing of ours helps or hinders it."""

    def __init__(self, *arguments: object) -> None:
        # By its path: as a module of the package it would keep memory as peerdg does.
        program = str(Path(__file__).with_name("reference.py"))
        command = [sys.executable, program, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def epoch(self) -> None:
        """One pass; returns when it is done."""
        assert self.process.stdin is not None  # noqa: S101  (narrows the type)
        assert self.process.stdout is not None  # noqa: S101  (narrows the type)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def flops(step: Floor) -> float:
    """Floating-point operations of a step, counted by torch."""
    with FlopCounterMode(display=False) as counter:
        step.step()
    return float(counter.get_total_flops())
