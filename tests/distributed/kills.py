"""Kill a process of a shared run again and again. `torchrun` starts it again each time.

    python -m tests.distributed.kills 10

Each run has two processes, of which one is killed at a random time. Every run must finish with the
weights and records of an undisturbed one, bit for bit.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.distributed.start import ROOT

TORCHRUN = Path(sys.executable).with_name("torchrun")
FLAGS = ["train", "digits-mini", "--method", "peer", "--budget", "quick", "--peer.k", "1",
         "--crafted", "off", "--pretrain.epochs", "1", "--pretrain.steps-per-epoch", "4",
         "--digits-mini.train", "400", "--train.steps-per-epoch", "20", "--epochs", "6",
         "--checkpoint-minutes", "0", "--quiet"]  # fmt: skip


def start(out: Path) -> subprocess.Popen[bytes]:
    command = [TORCHRUN, "--standalone", "--max-restarts=3", "--nproc-per-node=2",
               "-m", "peerdg", *FLAGS, "--out", str(out)]  # fmt: skip
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def content(out: Path) -> tuple[bytes, bytes]:
    model = (out / "model/model.safetensors").read_bytes()
    return model, (out / "metrics.jsonl").read_bytes()


def main(kills: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        assert start(folder / "undisturbed").wait() == 0
        expected = content(folder / "undisturbed")
        for number in range(kills):
            out, chance = folder / f"{number}", random.Random(number)
            launcher = start(out)
            while not (out / "metrics.jsonl").exists():
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 6))
            found = ["pgrep", "-P", str(launcher.pid)]
            children = subprocess.run(found, capture_output=True, text=True, check=False).stdout
            killed = [int(pid) for pid in children.split()]
            if killed:
                os.kill(chance.choice(killed), signal.SIGKILL)
            code = launcher.wait(timeout=300)
            state = "killed" if killed else "had ended"
            print(f"{number}: {state}, exit code {code}, equal: {content(out) == expected}")
            assert code == 0 and content(out) == expected


if __name__ == "__main__":
    main(int(sys.argv[1]))
