"""Averages of weights around any training loop: EMA after each step, snapshots after each epoch.

An average follows the network without affecting its training, so one run gives all of them.
"""

import torch
import torch.nn.functional as F
from torch import nn

from peerdg import EMA, Classifier, Snapshots

EPOCHS, BATCH = 6, 64

# Made-up data: the color of an image, plus noise, gives its class.
torch.manual_seed(0)
labels = torch.randint(0, 3, (960,))
images = 0.3 * torch.rand(960, 3, 16, 16) + 0.25 * F.one_hot(labels, 3)[:, :, None, None]
images = (images + 0.3 * torch.rand(960, 3, 1, 1)).clamp(0, 1)
train, test = slice(0, 640), slice(640, None)

network = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3),
)  # fmt: skip
model = Classifier.from_module(network, classes=("red", "green", "blue"))  # trains a copy
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

averages = {
    "ema": EMA(model, decay=0.99),
    # The mean of weights needs new batch statistics. They are computed on the clean images.
    "snapshots": Snapshots(model, k=1, bn="recalibrate", clean=images[train].split(BATCH)),
}

for epoch in range(EPOCHS):
    for batch in (torch.randperm(640)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        for average in averages.values():
            average.after_step(model)
    for average in averages.values():
        average.after_epoch(model, epoch)


@torch.no_grad()
def accuracy(classifier: nn.Module) -> float:
    """Compute the accuracy in percent on the test images."""
    predicted = classifier.eval()(images[test]).argmax(1)
    return 100 * (predicted == labels[test]).float().mean().item()


results = {"last weights": accuracy(model)}
results |= {name: accuracy(average.deployed) for name, average in averages.items()}
for name, percent in results.items():
    print(f"{name:12} {percent:5.1f} %")

# Load an average into the network that you started with.
network.load_state_dict(averages["ema"].deployed.network_state_dict(model.last_layer))
