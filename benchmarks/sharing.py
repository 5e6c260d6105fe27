"""What one training gives to several methods: watched averages, and a shared pre-training.

Whole commands in processes of their own, taking turns.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import rounds
from benchmarks.record import Found, Row, ratio

AVERAGES = ("snapshots", "ema", "sma", "swad")
RECIPES = ("randaugment", "p-ens", "ema", "sma", "swad")
GRID = ("erm", "randaugment", "p-ens", "peer")


def run(repeats: int = 5) -> Found:
    """Measure."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _train(folder, "erm")  # makes digits-mini, which is kept
        found = rounds(
            {
                "alone": lambda: _train(folder, "randaugment"),
                "watched": lambda: _train(folder, "randaugment", "--average", ",".join(AVERAGES)),
            },
            repeats=repeats,
            warm_up=0,
        )
        separate = _timed(folder, [(name,) for name in RECIPES])
        own = _timed(folder, [(name, "--no-share-pretraining") for name in GRID])
        shared = _timed(folder, [(name, "--share-pretraining") for name in GRID])
    watched = found["watched"].median
    return Found(
        "sharing",
        "What a grid saves",
        f"digits-mini, budget quick, whole commands of RandAugment with and without "
        f"{len(AVERAGES)} averages ({', '.join(AVERAGES)}), {repeats} each, taking turns; then "
        f"{', '.join(RECIPES)} one by one, and {', '.join(GRID)} with and without a shared "
        "pre-training.",
        [
            ratio(
                "RandAugment with four averages / without",
                found.ratio("watched", "alone"),
                "at most 1.10",
            ),
            Row(f"the {len(RECIPES)} methods one by one", f"{separate:.1f} s"),
            Row("in one watched run", f"{watched:.1f} s", f"{separate / watched:.1f} times less"),
            Row(f"{len(GRID)} methods, each with its own pre-training", f"{own:.1f} s"),
            Row(f"{len(GRID)} methods, one pre-training", f"{shared:.1f} s", f"{own / shared:.2f}"),
        ],
        raw={**found.seconds, "separate": separate, "own": own, "shared": shared},
    )


def _timed(folder: Path, runs: list[tuple[str, ...]]) -> float:
    began = time.perf_counter()
    for method, *options in runs:
        _train(folder, method, *options)
    return time.perf_counter() - began


def _train(folder: Path, method: str, *options: str) -> None:
    out = str(folder / "run")
    command = [sys.executable, "-m", "peerdg", "train", "digits-mini", "--budget", "quick"]
    command += ["--method", method, "--out", out, "--overwrite", "--quiet", *options]
    environment = {**os.environ, "PEERDG_CACHE": str(folder / "cache")}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
