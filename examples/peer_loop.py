"""PEER in a plain PyTorch loop: pre-train on clean digits, then train with PEER.

The proxy is trained on augmented images. The task model, the average of the proxy's weights, is
evaluated on digits that were not seen in training: photos, colors, other handwriting.
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from peerdg import PEER, PeerSettings, Policy, build_classifier
from peerdg.data.benchmarks import DigitsMiniSettings
from peerdg.data.digits_mini import load

PRETRAIN_EPOCHS, EPOCHS = 4, 4

torch.manual_seed(0)
data = load(DigitsMiniSettings(train=1000))
loader = DataLoader(
    TensorDataset(data.train.images, data.train.labels),  # uint8 [N, 3, 32, 32], not normalized
    batch_size=50,
    shuffle=True,
    drop_last=True,
)
model = build_classifier("digits-cnn-half", classes=data.train.classes)


@torch.no_grad()
def accuracy(network: torch.nn.Module) -> dict[str, float]:
    """Compute the accuracy in percent on each target."""
    network.eval()
    return {
        name: 100 * (network(target.images).argmax(1) == target.labels).float().mean().item()
        for name, target in data.targets.items()
    }


# 1. Pre-train on clean images.
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(PRETRAIN_EPOCHS):
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
before = accuracy(model)

# 2. Continue with PEER. The model becomes the proxy, and a copy of it becomes the task model.
peer = PEER(model.train(), PeerSettings(k=2, w=0.1), augment=Policy(operations="sdg"))
optimizer = torch.optim.Adam(peer.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    peer.start_epoch(epoch)  # every k epochs, draw a new augmentation policy
    for images, labels in loader:
        optimizer.zero_grad()
        loss = peer.loss(images, labels)
        loss.total.backward()
        optimizer.step()
    peer.end_epoch(epoch)  # every k epochs, add a snapshot to the average
    print(f"epoch {epoch + 1}: loss {loss.total.item():.2f}, snapshots {peer.average.count}")

# 3. Ship the task model.
after = accuracy(peer.deployed)
for name in data.targets:
    print(f"{name:8} {before[name]:5.1f} % -> {after[name]:5.1f} %")
torch.save(peer.deployed.state_dict(), "task.pt")
