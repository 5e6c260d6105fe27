"""Train a network of your own with PEER: here a small one from timm, without its weights.

Any network that ends in a linear layer works. `fit` trains a copy of it, recomputes the batch
statistics of the average, and stores the result.
"""

from peerdg import fit, load_model  # first, so that timm also works with a CPU build of torch

import timm  # isort: skip

network = timm.create_model("test_resnet", num_classes=10, pretrained=False)

run = fit(
    "digits-mini",
    out="runs/own-network",
    existing="overwrite",
    model=network,  # normalized with mean 0 and std 1; see Classifier.from_module for weights
    method="peer",
    peer={"k": 1},
    budget="quick",
    pretrain={"epochs": 2, "lr": 1e-3},
    train={"epochs": 2, "lr": 1e-3},
    evaluate_every=2,
)
print(run.accuracy["task"])  # percent, by domain

# Load the trained weights into your network. It expects images in [0, 1].
network.load_state_dict(run.model.classifier.network_state_dict())
network.eval()

# The stored model needs your network as a skeleton, because the folder contains no code.
skeleton = timm.create_model("test_resnet", num_classes=10, pretrained=False)
model = load_model("runs/own-network", network=skeleton)
print(model)
