"""`profile.json`: how many seconds of a run went into which stage."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from peerdg.files import write_json
from peerdg.stages import profile

REST = "everything else"


@contextlib.contextmanager
def profiled(path: Path, device: torch.device) -> Iterator[None]:
    """Measure the stages of what runs in this context, and write them to `path` at its end.

    A device that works on its own is waited for at each stage's end, which costs some speed.
    """
    wait = (lambda: None) if device.type == "cpu" else torch.accelerator.synchronize
    began = time.perf_counter()
    with profile(wait) as times:
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            stages = {name: asdict(spent) for name, spent in times.items()}
            rest = seconds - sum(spent.seconds for spent in times.values())
            stages[REST] = {"seconds": rest, "calls": 1}
            write_json(path, {"seconds": seconds, "device": str(device), "stages": stages})
