"""Compare results with another version, bit for bit: python -m benchmarks.same_results OTHER_TREE.

Trains short runs of ERM, RandAugment, P-ENS and PEER on digits-mini with this checkout and with the
one in OTHER_TREE, on one thread, and compares the weights of the deployed models and every record
of the metrics, but for what an older version did not measure. Exit code 1 if anything differs.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

COMMON = [
    "--budget", "quick", "--train.epochs", "4", "--train.steps-per-epoch", "6", "--threads", "1",
    "--pretrain.epochs", "1", "--quiet",
]  # fmt: skip
# Each run in words of this version, and of those that had no recipes.
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "erm": (["--method", "erm"],) * 2,
    "randaugment": (["--method", "randaugment"],) * 2,
    "p-ens": (["--method", "p-ens"], ["--method", "peer", "--peer.regulariser", "none"]),
    "peer": (["--method", "peer"],) * 2,
}
# Recipes observe the objective's network and its average under other names than PEER's.
RENAMED = {"proxy": "model", "task": "snapshots"}
# Measured beside the training since, so records of older versions lack it.
MEASURED_SINCE = "gradients"


def main(other: Path) -> int:
    """Compare each run of both versions; 1 if one differs."""
    this = Path(__file__).parents[1]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, options in RUNS.items():
            runs = [
                _train(tree, Path(folder) / f"{name}-{side}", words)
                for side, tree, words in zip("ab", (this, other), options, strict=True)
            ]
            renamed = RENAMED if options[0] != options[1] else {}
            problems = _compare(*runs, renamed=renamed)
            failures += bool(problems)
            print(f"{name}: {'equal' if not problems else '; '.join(problems)}", flush=True)
    return min(1, failures)


def _train(tree: Path, out: Path, options: list[str]) -> Path:
    command = [sys.executable, "-m", "peerdg", "train", "digits-mini", *options, *COMMON]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    subprocess.run(
        [*command, "--out", str(out)], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return out


def _compare(ours: Path, theirs: Path, *, renamed: dict[str, str]) -> list[str]:
    problems = []
    a, b = (load_file(next((run / "model").glob("*.safetensors"))) for run in (ours, theirs))
    if a.keys() != b.keys():
        problems.append("the models have other weights by name")
    else:
        different = [name for name in a if a[name].tobytes() != b[name].tobytes()]
        problems += [f"{len(different)} of {len(a)} weights differ"] if different else []
    records = _records(ours), _records(theirs)
    if len(records[0]) != len(records[1]):
        return [*problems, f"{len(records[0])} against {len(records[1])} records"]
    for mine, other in zip(*records, strict=True):
        if "model" in other:
            other["model"] = renamed.get(other["model"], other["model"])
        if MEASURED_SINCE not in other:
            mine.pop(MEASURED_SINCE, None)
        if mine != other:
            return [*problems, f"a record differs: {mine} against {other}"]
    return problems


def _records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
