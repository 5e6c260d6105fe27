"""Algorithm 1 as one would write it from the paper: what peerdg is measured against.

A data set of PIL images, torchvision transforms in a `DataLoader` with two workers, the network as
drawn in the papers (ReLU, then pooling), one forward pass per view, the task model's features
computed in every step, plain Adam. Nothing here is slow on purpose.

Run as a program with a number of steps (Digits) or a folder (photos) it trains one epoch for each
line on its standard input and answers with the seconds, so that it can take turns with others and
still have a process of its own.
"""

import copy
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from peerdg._vision import torchvision, transforms

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


class Photos(Dataset[tuple[Tensor, Tensor, int]]):
    """JPEG files in folders of classes, decoded at every visit; a clean and an augmented view."""

    def __init__(self, folder: Path, num_ops: int, magnitude: int) -> None:
        classes = sorted(path.name for path in folder.iterdir())
        self.files = sorted(folder.glob("*/*.jpg"))
        self.targets = [classes.index(path.parent.name) for path in self.files]
        self.base = transforms.Compose(
            [transforms.RandomResizedCrop(224, scale=(0.8, 1.0)), transforms.RandomHorizontalFlip()]
        )
        self.augment = transforms.RandAugment(num_ops, magnitude)
        self.to_tensor = transforms.Compose(
            [
                transforms.ToImage(),
                transforms.ToDtype(torch.float32, scale=True),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        with Image.open(self.files[index]) as file:
            image = self.base(file.convert("RGB"))
        return self.to_tensor(image), self.to_tensor(self.augment(image)), self.targets[index]


class PhotoNetwork(nn.Module):
    """SqueezeNet 1.1 with a linear head on its pooled features."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        features = torchvision.models.squeezenet1_1().features
        self.encoder = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """H(x) and C(H(x))."""
        h = self.encoder(x)
        return h, self.classifier(h)


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

    def __init__(
        self,
        data: Dataset[tuple[Tensor, Tensor, int]],
        network: nn.Module,
        head: nn.Module,
        *,
        batch: int,
    ) -> None:
        self.proxy = network
        self.task = copy.deepcopy(self.proxy).requires_grad_(False).eval()
        self.head = head
        parameters = [*self.proxy.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-4)
        self.loader = DataLoader(
            data, batch_size=batch, shuffle=True,
            num_workers=2, drop_last=True, persistent_workers=True,
        )  # fmt: skip

    @classmethod
    def of_digits(cls, steps: int, *, num_ops: int = 2, magnitude: int = 9) -> "Reference":
        """The Digits CNN, batch 128, a head of two layers to 128."""
        head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)
        )
        return cls(Digits(steps * BATCH, num_ops, magnitude), Network(), head, batch=BATCH)

    @classmethod
    def of_photos(
        cls, folder: Path, *, batch: int, num_ops: int = 2, magnitude: int = 9
    ) -> "Reference":
        """SqueezeNet 1.1, a head of three layers to 1024."""
        layers: list[nn.Module] = []
        for inputs in (512, 1024):
            layers += [nn.Linear(inputs, 1024), nn.BatchNorm1d(1024), nn.ReLU()]
        head = nn.Sequential(*layers, nn.Linear(1024, 1024))
        network = PhotoNetwork(len(list(folder.iterdir())))
        return cls(Photos(folder, num_ops, magnitude), network, head, batch=batch)

    def epoch(self) -> float:
        """One pass over the images; returns the mean loss."""
        total = 0.0
        for x, x_bar, y in self.loader:
            _, logits = self.proxy(x)
            h_bar, logits_bar = self.proxy(x_bar)
            with torch.no_grad():
                h_task, _ = self.task(x)
            regularizer = barlow_twins(self.head(h_task), self.head(h_bar))
            loss = F.cross_entropy(logits, y) + F.cross_entropy(logits_bar, y) + W * regularizer
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.loader)


def main() -> None:
    """Train one pass per line of input."""
    if sys.argv[1].isdigit():
        reference = Reference.of_digits(int(sys.argv[1]))
    else:
        reference = Reference.of_photos(Path(sys.argv[1]), batch=int(sys.argv[2]))
    for _ in sys.stdin:
        began = time.perf_counter()
        reference.epoch()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
