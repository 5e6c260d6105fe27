"""What one training gives to several methods: watched averages, and a shared pre-training.

Whole commands in processes of their own, taking turns. Following an average costs little, while
evaluating it costs as much as any network; so training and whole commands are measured apart.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Timing, rounds, summary
from benchmarks.record import Found, Row, ratio

AVERAGES = ("snapshots", "ema", "sma", "swad")
RECIPES = ("randaugment", "p-ens", "ema", "sma", "swad")
GRID = ("erm", "randaugment", "p-ens", "peer")
EPOCHS = 3  # of the budget standard
EVALUATIONS = 11  # of the budget quick


def run(repeats: int = 5) -> Found:
    """Measure."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _train(folder, "erm")  # makes digits-mini, which is kept
        training = _training_seconds(folder, repeats)
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
    apart = found.ratio("watched", "alone")
    return Found(
        "sharing",
        "What a grid saves",
        f"digits-mini, RandAugment with and without {len(AVERAGES)} averages "
        f"({', '.join(AVERAGES)}), {repeats} runs each, taking turns: training alone, {EPOCHS} "
        f"epochs of budget standard, and whole commands of budget quick, which evaluate "
        f"{len(AVERAGES) + 1} networks instead of one {EVALUATIONS} times; then "
        f"{', '.join(RECIPES)} one by one, and {', '.join(GRID)} with and without a shared "
        "pre-training.",
        [
            ratio("training: RandAugment with four averages / without", training, "at most 1.10"),
            ratio("whole command, evaluating all five / one", apart, ""),
            Row(f"the {len(RECIPES)} methods one by one", f"{separate:.1f} s"),
            Row("in one watched run", f"{watched:.1f} s", f"{separate / watched:.1f} times less"),
            Row(f"{len(GRID)} methods, each with its own pre-training", f"{own:.1f} s"),
            Row(f"{len(GRID)} methods, one pre-training", f"{shared:.1f} s", f"{own / shared:.2f}"),
        ],
        raw={**found.seconds, "separate": separate, "own": own, "shared": shared},
    )


def _training_seconds(folder: Path, repeats: int) -> Timing:
    """Seconds of all epochs with averages over those without, in turns."""
    short = ["--budget", "standard", "--pretrain.epochs", "1", "--epochs", str(EPOCHS)]
    short += ["--evaluate-every", str(EPOCHS), "--randaugment.k", "1"]
    ratios = []
    for _ in range(repeats):
        alone = _epoch_seconds(_train(folder, "randaugment", *short))
        names = ",".join(AVERAGES)
        watched = _epoch_seconds(_train(folder, "randaugment", *short, "--average", names))
        ratios.append(watched / alone)
    return summary(ratios)


def _epoch_seconds(run: Path) -> float:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    epochs = [e for e in events if e["event"] == "epoch" and e["phase"] == "train"]
    return sum(float(e["seconds"]) for e in epochs)


def _timed(folder: Path, runs: list[tuple[str, ...]]) -> float:
    began = time.perf_counter()
    for method, *options in runs:
        _train(folder, method, *options)
    return time.perf_counter() - began


def _train(folder: Path, method: str, *options: str) -> Path:
    out = folder / "run"
    budget = () if "--budget" in options else ("--budget", "quick")
    command = [sys.executable, "-m", "peerdg", "train", "digits-mini", "--method", method]
    command += ["--out", str(out), "--overwrite", "--quiet", *budget, *options]
    environment = {**os.environ, "PEERDG_CACHE": str(folder / "cache")}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return out
