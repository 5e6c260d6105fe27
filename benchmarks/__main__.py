"""Run every benchmark, print a table with ratios, write `results/benchmarks/latest.json`."""

import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import randaugment, step
from benchmarks.measure import Timing


def show(title: str, timings: dict[str, Timing], *, floor: str) -> None:
    """One block: each contender's time, and its ratio to the floor."""
    print(f"\n{title}")
    for name, timing in timings.items():
        ratio = timing.median / timings[floor].median
        print(f"  {name:<22}{timing}   {ratio:6.2f} x {floor}")


def main() -> None:
    """Measure, print, save."""
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, {platform.processor() or 'CPU'}")
    results = {"Digits CNN step, batch 128": step.measure()}
    show("Digits CNN step, batch 128", results["Digits CNN step, batch 128"], floor="bare step")
    for size, batch in ((32, 128), (224, 16)):
        title = f"RandAugment, {size} px, {batch} images"
        results[title] = randaugment.measure(size, batch)
        show(title, results[title], floor="peerdg, batched")
    record = {
        "torch": torch.__version__,
        "threads": threads,
        "platform": platform.platform(),
        "seconds": {t: {n: asdict(v) for n, v in r.items()} for t, r in results.items()},
    }
    path = Path("results/benchmarks/latest.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
