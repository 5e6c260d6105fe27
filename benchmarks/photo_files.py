"""PEER on a folder of JPEG photos against a plain loop with a `DataLoader`, first and later epochs.

The first epoch has all that a cold start has: finding, decoding and keeping the images. The plain
loop decodes them in every epoch.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.contenders import ReferenceProcess, Trained
from benchmarks.folder import environment
from benchmarks.measure import summary
from benchmarks.record import Found, Row, ratio
from peerdg.data.folder import find_images
from peerdg.data.read import read_images
from peerdg.train.settings import TransformSettings

CLASSES, EACH, SIDE, STORED, BATCH = 7, 46, 224, 227, 32
STEPS = CLASSES * EACH // BATCH
TRANSFORM = TransformSettings(size=SIDE, crop=(0.8, 1.0), flip=0.5)


def run(epochs: int = 4) -> Found:
    """Measure: each epoch of both, taking turns."""
    with tempfile.TemporaryDirectory() as folder, environment(Path(folder) / "cache"):
        _write_photos(Path(folder) / "photos")
        reference = ReferenceProcess(Path(folder) / "photos", BATCH)
        seconds: dict[str, list[float]] = {"reference": [], "peer": []}
        began = time.perf_counter()
        listing = find_images(Path(folder) / "photos").require(training=True)
        files = listing.files(listing.classes, name="photos")
        domain = read_images(files, name="photos", classes=listing.classes)
        peer = Trained(domain, "squeezenet1_1", BATCH, transform=TRANSFORM, head=(3, 1024))
        start = time.perf_counter() - began
        for _ in range(epochs):
            seconds["reference"].append(_timed(reference.epoch))
            seconds["peer"].append(_timed(lambda: _epoch(peer)))
        reference.close()
    first = seconds["reference"][0] / (start + seconds["peer"][0])
    later = [a / b for a, b in zip(seconds["reference"][1:], seconds["peer"][1:], strict=True)]
    return Found(
        "photo_files",
        "A folder of JPEG photos",
        f"{CLASSES * EACH} JPEG files of {STORED} px in {CLASSES} classes, SqueezeNet 1.1 at "
        f"{SIDE} px with random weights, batch {BATCH}; {epochs} epochs of {STEPS} steps, taking "
        "turns. The plain loop decodes, crops, flips and RandAugments with PIL in a DataLoader "
        "with two workers. PEER's first epoch includes reading and decoding the folder, without "
        "a cache.",
        [
            Row("plain loop, first epoch", f"{seconds['reference'][0]:.1f} s"),
            Row("PEER, reading and first epoch", f"{start + seconds['peer'][0]:.1f} s"),
            Row("plain loop / PEER, first epoch", f"{first:.2f}"),
            ratio("plain loop / PEER, later epochs", summary(later)),
        ],
        raw={**seconds, "start": start},
    )


def _write_photos(folder: Path) -> None:
    """Smooth random pictures with some grain: JPEG files of about the size of PACS's."""
    generator = np.random.default_rng(0)
    for number in range(CLASSES * EACH):
        coarse = torch.from_numpy(generator.uniform(0, 255, (1, 3, 12, 12)))
        smooth = torch.nn.functional.interpolate(coarse, size=(STORED, STORED), mode="bicubic")
        grain = generator.normal(0, 6, (STORED, STORED, 3))
        pixels = np.clip(smooth[0].permute(1, 2, 0).numpy() + grain, 0, 255).astype(np.uint8)
        path = folder / f"class{number % CLASSES}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def _epoch(peer: Trained) -> None:
    for _ in range(STEPS):
        peer.step()


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
