"""`peerdg demo`: a bench of four methods on the included digits."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.benches.plan import make_plan
from peerdg.cli.bench import bench_and_report
from peerdg.cli.flags import OptionalWhole, SeedList
from peerdg.terminal import console

MAX_JOBS = 4  # each run needs half a gigabyte
METHODS = ("erm", "randaugment", "p-ens", "peer")


def demo(
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))] = Path("runs/demo"),
    full: bool = False,
    seed: SeedList = None,
    epochs: OptionalWhole = None,
    overwrite: bool = False,
) -> None:
    """Train ERM, RandAugment and PEER on small digits, and compare them.

    P-ENS, which averages RandAugment without a regularizer, comes from the same run as RandAugment.
    It shows how much of PEER's gain is due to the regularizer. Repeat the command after Ctrl-C to
    continue.

    Example: `peerdg demo --full --out runs/three-seeds`

    Args:
        out: Folder for the runs, the report and the plots.
        full: Train with three seeds instead of one.
        seed: Seeds to train with, e.g. 3,4,5.
        epochs: Epochs of the main phase. Default: set by the preset.
        overwrite: Start again if the folder has an earlier demo.
    """
    from peerdg.benches.folder import BenchFolder  # imported here: these pull in torch or numpy
    from peerdg.data.decode import cores

    # One thread per run: for such a small network, parallel runs are faster than more threads.
    options: dict[str, Any] = {"benchmark": "digits-mini", "budget": "quick", "threads": 1}
    if epochs is not None:
        options["train"] = {"epochs": epochs}
    seeds = seed if seed is not None else range(3 if full else 1)
    plan = make_plan(options, methods=METHODS, seeds=seeds)
    overwrite = overwrite or all(map(BenchFolder(out).is_done, plan.runs))
    jobs = min(cores(), MAX_JOBS, len(plan.runs))
    title = "peerdg demo: digits-mini"
    bench_and_report(plan, out, jobs=jobs, overwrite=overwrite, title=title)
    if len(seeds) == 1:
        console.print("One seed is not conclusive. `peerdg demo --full` trains three.")
