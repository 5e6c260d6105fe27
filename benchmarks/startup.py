"""Time from the start of the process to the first training step, with and without a cache."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.data.digit_files import write_mat, write_mnist, write_usps

from benchmarks.measure import summary
from benchmarks.record import Found, Row

# Prints the seconds to the end of the first step, and of them those that importing torch took, and
# its compiler, which torch imports on its own as soon as an optimizer is made.
PROGRAM = """
import os, sys, time
before = time.time()
import torch
imported = time.time() - before
before = time.time()
import torch._dynamo
compiler = time.time() - before
import peerdg
from peerdg.run.progress import ProgressDisplay

class First(ProgressDisplay):
    def step(self, *args, **kwargs):
        print(time.time() - float(sys.argv[1]), imported, compiler, flush=True)
        os._exit(0)

peerdg.fit("digits", root=sys.argv[2], out=sys.argv[3], progress=First())
"""


def run(repeats: int = 5) -> Found:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_mnist(data / "MNIST" / "raw", 12_000)
        write_usps(data / "USPS", 2_007)
        write_mat(data / "SVHN" / "test_32x32.mat", 26_032)
        cold = [_start(data, Path(folder) / f"cold-{n}", f"cold-{n}") for n in range(repeats)]
        warm = [_start(data, Path(folder) / f"warm-{n}", "cold-0") for n in range(repeats)]
    starts = cold + warm
    return Found(
        "startup",
        "Start to first step",
        "`peerdg.fit` on the Digits benchmark: 10,000 training images, 2,000 for validation, SVHN "
        "(26,032) and USPS (2,007) as targets, made of random pixels. Seconds from the start of "
        "the process to the end of its first training step, less the imports of torch and of its "
        f"compiler, which torch imports by itself for every optimizer; {repeats} starts each.",
        [
            _row("first start: every image is decoded", cold),
            _row("second start: images come from the cache", warm, "at most 2 s"),
            Row("import of torch", f"{summary([s.torch for s in starts]).median:.2f} s"),
            Row("import of its compiler", f"{summary([s.compiler for s in starts]).median:.2f} s"),
        ],
        raw={"first": cold, "second": warm},
    )


class Start(NamedTuple):
    """Seconds to the first step, and of them those for two imports."""

    whole: float
    torch: float
    compiler: float


def _start(data: Path, work: Path, cache: str) -> Start:
    command = [sys.executable, "-c", PROGRAM, str(time.time()), str(data), str(work / "run")]
    environment = {**os.environ, "PEERDG_CACHE": str(data.parent / "caches" / cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Start(*map(float, done.stdout.split()))


def _row(what: str, starts: list[Start], goal: str = "") -> Row:
    timing = summary([s.whole - s.torch - s.compiler for s in starts])
    return Row(what, f"{timing.median:.2f} s", f"{timing.low:.2f} to {timing.high:.2f}", goal)
