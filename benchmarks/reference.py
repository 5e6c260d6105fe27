"""Algorithm 1 as one would write it from the paper: what peerdg is measured against.

A data set of PIL images, torchvision transforms in a `DataLoader` with two workers, the network as
drawn in the papers (ReLU, then pooling), one forward pass per view, the task model's features
computed in every step, plain Adam. Nothing here is slow on purpose.

Run as a program it trains some steps for each line on its standard input and answers with the
seconds, so that it can take turns with others and still have a process of its own.
"""

import copy
import sys
import time

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from peerdg._vision import transforms

BATCH, LAM, W = 128, 5e-3, 2.0


class Digits(Dataset[tuple[Tensor, Tensor, int]]):
    """Grey 28 x 28 images as MNIST has them; a clean and an augmented view of each."""

    def __init__(self, images: int, num_ops: int, magnitude: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.data = torch.randint(0, 256, (images, 28, 28), dtype=torch.uint8, generator=generator)
        self.targets = torch.randint(10, (images,), generator=generator)
        self.base = transforms.Compose([transforms.Resize(32), transforms.Grayscale(3)])
        self.augment = transforms.RandAugment(num_ops, magnitude)
        self.to_tensor = transforms.Compose(
            [transforms.ToImage(), transforms.ToDtype(torch.float32, scale=True)]
        )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        image = self.base(Image.fromarray(self.data[index].numpy()))
        augmented = self.augment(image)
        return self.to_tensor(image), self.to_tensor(augmented), int(self.targets[index])


class Network(nn.Module):
    """The Digits CNN as in its paper."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(3200, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        )  # fmt: skip
        self.classifier = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """H(x) and C(H(x))."""
        h = self.encoder(x)
        return h, self.classifier(h)


def barlow_twins(z: Tensor, z_plus: Tensor) -> Tensor:
    """Eq. (1) and (2) of Barlow Twins."""
    z = (z - z.mean(0)) / (z.std(0, unbiased=False) + 1e-5)
    z_plus = (z_plus - z_plus.mean(0)) / (z_plus.std(0, unbiased=False) + 1e-5)
    m = z.T @ z_plus / len(z)
    off_diagonal = m - torch.diag(m.diagonal())
    return (1 - m.diagonal()).square().sum() + LAM * off_diagonal.square().sum()


class Reference:
    """Proxy, task model, projection head, loader and optimizer."""

    def __init__(self, steps: int, *, num_ops: int = 2, magnitude: int = 9) -> None:
        self.proxy = Network()
        self.task = copy.deepcopy(self.proxy).requires_grad_(False).eval()
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)
        )
        parameters = [*self.proxy.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-4)
        self.loader = DataLoader(
            Digits(steps * BATCH, num_ops, magnitude), batch_size=BATCH, shuffle=True,
            num_workers=2, drop_last=True, persistent_workers=True,
        )  # fmt: skip

    def epoch(self) -> float:
        """One pass over the images; returns the mean loss."""
        total = 0.0
        for x, x_bar, y in self.loader:
            _, logits = self.proxy(x)
            h_bar, logits_bar = self.proxy(x_bar)
            with torch.no_grad():
                h_task, _ = self.task(x)
            regulariser = barlow_twins(self.head(h_task), self.head(h_bar))
            loss = F.cross_entropy(logits, y) + F.cross_entropy(logits_bar, y) + W * regulariser
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.loader)


def main() -> None:
    """Train one pass per line of input."""
    reference = Reference(steps=int(sys.argv[1]))
    for _ in sys.stdin:
        began = time.perf_counter()
        reference.epoch()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
