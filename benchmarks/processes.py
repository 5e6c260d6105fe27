"""Two processes that share a run against one process with two threads, and a grid on a cluster.

Whole commands in processes of their own, taking turns.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import summary
from benchmarks.record import Found, Row, ratio
from peerdg.models.backbones import build_classifier

EPOCHS, STEPS, BATCH = 3, 20, 128
OPTIONS = ["digits-mini", "--backbone", "digits-cnn", "--method", "peer", "--budget", "standard",
           "--crafted", "off", "--pretrain.epochs", "0", "--peer.k", "3", "--overwrite", "--quiet",
           "--train.batch-size", str(BATCH), "--epochs", str(EPOCHS)]  # fmt: skip
GRID = ["digits-mini", "--budget", "quick", "--methods", "erm,randaugment,peer,augmix",
        "--seeds", "2", "--crafted", "off", "--pretrain.epochs", "4", "--epochs", "6",
        "--threads", "1"]  # fmt: skip

# Counts the bytes that a process hands to torch's collectives, and prints them.
COUNT = """
import sys
import torch.distributed as dist
from peerdg.cli.main import run

sent = 0

def counted(call, sends):
    def wrapper(*arguments, **options):
        global sent
        sent += sends(*arguments)
        return call(*arguments, **options)
    return wrapper

size = lambda tensor: tensor.numel() * tensor.element_size()
dist.all_reduce = counted(dist.all_reduce, lambda x, *_: size(x))
dist.all_gather = counted(dist.all_gather, lambda parts, x: size(x))
dist.broadcast = counted(dist.broadcast, lambda x, owner: size(x) * (owner == dist.get_rank()))
assert run(sys.argv[1:], debug=False) == 0
print("sent", sent)
"""


def run(repeats: int = 5) -> Found:
    """Measure."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ways = {"one": ["--threads", "2"], "two": ["--processes", "2"]}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        memory: dict[str, float] = {}
        for _ in range(repeats):
            for processes, (name, more) in enumerate(ways.items(), 1):
                events = _train(folder / name, *more)
                epochs = [e["seconds"] / e["steps"] for e in events if e["event"] == "epoch"]
                seconds[name].append(min(epochs[1:]))
                memory[name] = processes * max(e.get("peak_memory") or 0 for e in events)
        sent = [_bytes_sent(folder, steps) for steps in (STEPS, 2 * STEPS)]
        grid = [_grid(folder / "local"), _grid_with_dask(folder)]
    per_step = (sent[1] - sent[0]) / EPOCHS / STEPS
    weights = sum(p.numel() * 4 for p in build_classifier("digits-cnn", classes=10).parameters())
    one, two = (summary(each) for each in seconds.values())
    pairs = zip(*seconds.values(), strict=True)
    return Found(
        "processes",
        "Several processes",
        f"PEER with the Digits CNN and batches of {BATCH}, {repeats} runs of {EPOCHS} epochs of "
        f"{STEPS} steps each, taking turns: one process with two threads, and two processes with "
        "one thread each, which share every batch (gloo). Memory is the peak of process 0, times "
        "the processes. Then a grid of 4 methods and 2 seeds of a few hundred steps: one run after "
        "the other, and by two dask workers.",
        [
            ratio("step of two processes / of one", summary([b / a for a, b in pairs]), ""),
            Row("step, one process with two threads", f"{1000 * one.median:.0f} ms"),
            Row("step, two processes with one thread", f"{1000 * two.median:.0f} ms"),
            Row("memory, one process", f"{memory['one'] / 2**20:.0f} MB"),
            Row("memory, two processes", f"{memory['two'] / 2**20:.0f} MB"),
            Row("sent per step and process", f"{per_step / 2**20:.1f} MB"),
            Row("gradients of the network", f"{weights / 2**20:.1f} MB"),
            Row("8 runs, one after the other", f"{grid[0]:.0f} s"),
            Row("8 runs by two dask workers", f"{grid[1]:.0f} s", f"{grid[0] / grid[1]:.2f} times"),
        ],
        raw={**seconds, "memory": memory, "sent": sent, "grid": grid},
    )


def _train(out: Path, *more: str, steps: int = STEPS) -> list[dict[str, object]]:
    """Train in a process of its own. Return the run's events."""
    words = ["train", *OPTIONS, "--train.steps-per-epoch", str(steps), "--out", str(out), *more]
    subprocess.run([sys.executable, "-m", "peerdg", *words], check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def _bytes_sent(folder: Path, steps: int) -> int:
    """Return the bytes that process 0 of 2 sends in a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["train", *OPTIONS, "--train.steps-per-epoch", str(steps), "--out", str(folder / "n")]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT, *words],
            env={**shared, "WORLD_SIZE": "2", "RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    texts = [process.communicate()[0] for process in started]
    return int(re.findall(r"sent (\d+)", texts[0])[0])


def _grid(out: Path, *more: str) -> float:
    began = time.perf_counter()
    words = [sys.executable, "-m", "peerdg", "bench", *GRID, "--out", str(out), *more]
    environment = {**os.environ, "PEERDG_SHARE_PRETRAINING": "0"}
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _grid_with_dask(folder: Path) -> float:
    with _cluster(folder) as address:
        return _grid(folder / "dask", "--executor", "dask", "--scheduler", address)


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    """Start a scheduler and two workers, each in a process of its own."""
    dask, file = Path(sys.executable).with_name("dask"), folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [
        subprocess.Popen([dask, "scheduler", "--host", "127.0.0.1", "--port", "0",
                          "--no-dashboard", "--scheduler-file", file], **quiet)
    ]  # fmt: skip
    try:
        while not file.exists():
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        started += [
            subprocess.Popen([dask, "worker", address, "--nthreads", "1", "--no-dashboard",
                              "--no-nanny", "--local-directory", folder], **quiet)
            for _ in range(2)
        ]  # fmt: skip
        yield address
    finally:
        for process in started:
            process.terminate()
            process.wait()
