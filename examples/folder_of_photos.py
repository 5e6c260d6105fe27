"""Train on a folder of photos, test on another one, and predict new images.

Usage: python examples/folder_of_photos.py photos/ paintings/

Each folder contains one folder per class: photos/cat/*.jpg, photos/dog/*.jpg, ...
"""

import sys
from pathlib import Path

import peerdg

if len(sys.argv) != 3:
    sys.exit(__doc__)
source, target = sys.argv[1:]

run = peerdg.fit(
    source,
    out="runs/photos",
    existing="renew",  # continue an earlier run, or start again if the photos have changed
    targets=[target],
    method="peer",
    # A tiny network for a quick look. Without these lines: a ResNet-18 with ImageNet weights.
    backbone="digits-cnn-half",
    weights="none",
    transform={"size": 32},
    pretrain={"epochs": 4},
    train={"epochs": 4},
    peer={"k": 2},
)
for domain, percent in run.accuracy["task"].items():
    print(f"{domain:12} {percent:5.1f} %")

# Which classes are confused, and which mistakes is the model sure of?
images = sorted(path for path in Path(target).rglob("*.*") if path.is_file())
for prediction in run.model.predict_files(images[:5]):
    print(prediction.path, prediction.label, f"{prediction.probability:.2f}")

# The folder runs/photos/model can be copied to another machine.
model = peerdg.load_model("runs/photos")
print(model.predict(images[0], top=2))
