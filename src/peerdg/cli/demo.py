"""`peerdg demo`: a bench of four methods on the embedded digits."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.benches.plan import make_plan
from peerdg.cli.bench import bench_and_report
from peerdg.cli.flags import OptionalWhole, SeedList, Whole
from peerdg.errors import ConfigError
from peerdg.terminal import console

MAX_JOBS = 4  # runs; each needs half a gigabyte
METHODS = ("erm", "randaugment", "p-ens", "peer")


def demo(
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))] = Path("runs/demo"),
    seeds: Whole = 3,
    seed: SeedList = None,
    epochs: OptionalWhole = None,
    overwrite: bool = False,
) -> None:
    """Train ERM, RandAugment and PEER on small digits with several seeds, and compare them.

    RandAugment with averaging but without regularizer (P-ENS) comes from the same run as
    RandAugment: it shows which part of PEER's gain is the regularizer's. Called again after Ctrl-C
    it continues; after the end it starts again.

    Example: `peerdg demo --seeds 1 --out runs/glance`

    Args:
        out: Folder of the runs, the report and the plots.
        seeds: Seeds per method, from 0 on.
        seed: These seeds, e.g. 3,4,5, in place of --seeds.
        epochs: Epochs of the main phase, in place of the preset's.
        overwrite: Start again, whatever is in this folder of an earlier demo.
    """
    from peerdg.benches.folder import BenchFolder  # these import torch or numpy
    from peerdg.data.decode import cores
    from peerdg.report.page import OVERVIEW

    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; at least one is needed.")
    # One thread each: so small a network is trained faster by runs at once than by threads.
    options: dict[str, Any] = {"benchmark": "digits-mini", "budget": "quick", "threads": 1}
    if epochs is not None:
        options["train"] = {"epochs": epochs}
    plan = make_plan(options, methods=METHODS, seeds=range(seeds) if seed is None else seed)
    overwrite = overwrite or all(map(BenchFolder(out).is_done, plan.runs))
    jobs = min(cores(), MAX_JOBS, len(plan.runs))
    title = "peerdg demo: digits-mini"
    bench_and_report(plan, out, jobs=jobs, overwrite=overwrite, title=title)
    console.print(f"Plots:  {out / OVERVIEW}")
