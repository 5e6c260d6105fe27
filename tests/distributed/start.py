"""Start processes that share their work, as `torchrun` does."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(
    words: Sequence[str],
    *,
    processes: int,
    each: Sequence[Sequence[str]] = ((),) * 9,
    **changes: str,
) -> list[subprocess.Popen]:
    """Start `python WORDS` with a rank each, and words of its own. Output is in `stdout`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    shared |= {"WORLD_SIZE": f"{processes}", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}"}
    return [
        subprocess.Popen(
            [sys.executable, *words, *each[rank]],
            env={**shared, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]


def run(words: Sequence[str], *, processes: int, **changes: str) -> list[tuple[int, str]]:
    """Return exit code and output of each process."""
    started = start(words, processes=processes, **changes)
    texts = [each.communicate(timeout=300)[0] for each in started]
    return [(each.returncode, text) for each, text in zip(started, texts, strict=True)]
