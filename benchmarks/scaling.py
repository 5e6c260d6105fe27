"""Memory and time against the number of snapshots, epochs and images.

Every case is a training run in a process of its own; its peak memory is what the system counted.
"""

import json
import subprocess
import sys
import tempfile

from benchmarks.record import Found, Row

# Prints peak and final memory in bytes, and the seconds of each training epoch.
PROGRAM = """
import json, resource, sys
import peerdg
from benchmarks.contenders import random_domain
from peerdg.data.domain import Splits
from peerdg.models.backbones import build_classifier

images, epochs, backbone, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
source = random_domain(images, 32)
run = peerdg.fit(
    Splits(train=source, validation=random_domain(500, 32), targets={}), out=out,
    backbone=backbone, pretrain={"epochs": 0}, train={"epochs": epochs}, peer={"k": 1},
    evaluate_every=max(1, epochs // 10), checkpoint_minutes=0.02,
    augment={"policy": "fixed"},
)
lines = open("/proc/self/status").read().splitlines()
final = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
events = [json.loads(line) for line in open(f"{out}/events.jsonl")]
seconds = [event["seconds"] for event in events if event["event"] == "epoch"]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak": peak, "final": final, "epochs": seconds}))
"""
PERIODS = (10, 100)
IMAGES = (1_000, 10_000, 60_000)


def run() -> Found:
    """Measure."""
    periods = {n: _train(images=512, epochs=n) for n in PERIODS}
    images = {n: _train(images=n, epochs=2 if n <= 10_000 else 1) for n in IMAGES}
    few, many = (periods[n] for n in PERIODS)
    growth = 100 * (many["peak"] / few["peak"] - 1)
    rows = [
        Row(f"peak memory, {n} snapshots and epochs", _megabytes(record["peak"]))
        for n, record in periods.items()
    ]
    rows.append(Row("growth from 10 to 100", f"{growth:+.2f} %", "", "below 1 %"))
    for n, record in images.items():
        seconds = min(record["epochs"])
        rows.append(Row(f"peak memory, {n:,} images", _megabytes(record["peak"])))
        rows.append(
            Row(f"epoch, {n:,} images", f"{seconds:.2f} s", f"{1e3 * seconds / n:.3f} ms each")
        )
    return Found(
        "scaling",
        "Memory and time",
        "PEER with the half-width Digits CNN, k = 1, so every epoch takes a snapshot and computes "
        "the task model's features anew; batch 128, fixed policy, a checkpoint every 1.2 s. "
        "Snapshots: 512 images. Images of 32 px take 3 kB each. The time of an epoch is the faster "
        "of two (60,000 images: of one).",
        rows,
        raw={"periods": periods, "images": images},
    )


def _train(*, images: int, epochs: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", PROGRAM, str(images), str(epochs), "digits-cnn-half", out]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    record: dict[str, object] = json.loads(done.stdout)
    return record


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"
