"""Small saved models and folders of images for the commands that use a trained model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from peerdg.models.backbones import build_classifier
from peerdg.models.stored import save_model

CLASSES = ("cat", "dog", "horse")


def save_small_model(
    folder: Path,
    *,
    classes: Sequence[str] = CLASSES,
    stored_size: int = 40,
    training: dict[str, object] | None = None,
) -> Path:
    """An untrained model whose images are stored larger than the network sees them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_classifier("digits-cnn-half", classes=classes)
        # Far from uniform, so that a wrong pixel would show.
        torch.nn.init.normal_(model.head.weight, std=8.0)
    save_model(
        folder,
        model,
        backbone="digits-cnn-half",
        image_size=32,
        stored_size=stored_size,
        training=training,
    )
    return folder


def save_photos(
    folder: Path, *, classes: Sequence[str] = CLASSES, per_class: int = 3, seed: int = 0
) -> Path:
    """`folder/class/number.png` in odd sizes, none of them square."""
    draw = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            height, width = draw.integers(20, 90), draw.integers(91, 150)
            # Few colors each, so that a model finds them different from each other.
            colors = Image.fromarray(draw.integers(0, 256, (2, 2, 3), dtype=np.uint8))
            picture = colors.resize((int(width), int(height)), Image.Resampling.BICUBIC)
            picture.save(folder / name / f"{number}.png")
    return folder
