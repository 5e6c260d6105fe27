"""Memory and time against the number of snapshots, epochs and images.

Every case is a training run in a process of its own; its peak memory is what the system counted.
"""

import json
import subprocess
import sys
import tempfile
from statistics import median
from typing import Any

from benchmarks.record import Found, Row

# Prints for each evaluation the peak of memory so far and what is in use, in bytes, and the seconds
# of each training epoch.
PROGRAM = """
import ctypes, gc, json, resource, sys
import peerdg
from benchmarks.contenders import random_domain
from peerdg.data.splits import Splits
from peerdg.run.progress import ProgressDisplay

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]

def in_use():  # what was allocated and not freed, says glibc
    gc.collect()
    mallinfo = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo.restype = Mallinfo
    found = mallinfo()
    return found.uordblks + found.hblkhd

class Memory(ProgressDisplay):
    peak, in_use = {}, {}
    def evaluated(self, epoch, records):
        self.peak[epoch], self.in_use[epoch] = peak(), in_use()

images, epochs, backbone, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
source = random_domain(images, 32)
run = peerdg.fit(
    Splits(train=source, validation=random_domain(500, 32), targets={}), out=out,
    backbone=backbone, pretrain={"epochs": 0}, train={"epochs": epochs}, peer={"k": 1},
    evaluate_every=min(epochs, 5), checkpoint_minutes=0.001, augment={"policy": "fixed"},
    progress=Memory(),
)
events = [json.loads(line) for line in open(f"{out}/events.jsonl")]
seconds = [event["seconds"] for event in events if event["event"] == "epoch"]
memory = {"peaks": Memory.peak, "in_use": Memory.in_use, "peak": peak()}
print(json.dumps({**memory, "epochs": seconds}))
"""
PERIODS = (10, 100)
IMAGES = (1_000, 10_000, 60_000)


def run(repeats: int = 3) -> Found:
    """Measure."""
    runs = [_train(images=512, epochs=PERIODS[-1]) for _ in range(repeats)]
    images = {n: _train(images=n, epochs=2 if n <= 10_000 else 1) for n in IMAGES}
    rows = [
        *_period_rows("peak memory", [run["peaks"] for run in runs]),
        *_period_rows("memory in use between epochs", [run["in_use"] for run in runs]),
    ]
    for n, record in images.items():
        seconds = min(record["epochs"])
        rows.append(Row(f"peak memory, {n:,} images", _megabytes(record["peak"])))
        rows.append(
            Row(f"epoch, {n:,} images", f"{seconds:.2f} s", f"{1e3 * seconds / n:.3f} ms each")
        )
    return Found(
        "scaling",
        "Memory and time",
        "PEER with the half-width Digits CNN, k = 1, so every epoch takes a snapshot and "
        "recomputes the task model's features; batch 128, fixed policy, a checkpoint after every "
        "step. "
        f"Snapshots: 512 images, {repeats} runs; growth is measured within a run. Images of 32 px "
        "take 3 kB each. The time of an epoch is the faster of two (60,000 images: of one).",
        rows,
        raw={"periods": runs, "images": images},
    )


def _train(*, images: int, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", PROGRAM, str(images), str(epochs), "digits-cnn-half", out]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def _period_rows(what: str, runs: list[dict[str, float]]) -> list[Row]:
    """After few and after many periods of the same run."""
    few, many = ([run[str(n)] for run in runs] for n in PERIODS)
    growth = [100 * (b / a - 1) for a, b in zip(few, many, strict=True)]
    return [
        Row(f"{what}, {PERIODS[0]} snapshots and epochs", *_spread(few, "{:.0f} MB", 1e-6)),
        Row(f"{what}, {PERIODS[1]} snapshots and epochs", *_spread(many, "{:.0f} MB", 1e-6)),
        Row(f"{what}, growth", *_spread(growth, "{:+.2f} %"), "below 1 %"),
    ]


def _spread(values: list[float], form: str, unit: float = 1.0) -> tuple[str, str]:
    """The median, and the range."""
    low, middle, high = (form.format(unit * f(values)) for f in (min, median, max))
    return middle, f"{low} to {high}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"
