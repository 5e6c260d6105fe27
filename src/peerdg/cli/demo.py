"""`peerdg demo`: the three methods on the embedded digits, compared."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from peerdg.cli.console import console
from peerdg.cli.flags import whole_number
from peerdg.cli.train import train_into
from peerdg.errors import ConfigError
from peerdg.run.folder import Existing, RunFolder
from peerdg.run.settings import RunConfig, resolve

METHODS: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "randaugment": {"method": "randaugment"},
    "p-ens": {"method": "p-ens"},
    "peer": {"method": "peer"},
}


def demo(
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))] = Path("runs/demo"),
    seeds: Annotated[int, Parameter(converter=whole_number)] = 3,
    epochs: Annotated[int | None, Parameter(converter=whole_number)] = None,
) -> None:
    """Train ERM, RandAugment and PEER on small digits with several seeds, and compare them.

    RandAugment with averaging but without regulariser (P-ENS) is trained too: it shows which part
    of PEER's gain is the regulariser's. Called again after Ctrl-C it goes on; after the end it
    starts anew.

    Args:
        out: Folder of the runs, the report and the plot.
        seeds: Seeds per method.
        epochs: Epochs of the main phase, in place of the preset's.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; at least one is needed.")
    plans = _plans(out, seeds, epochs)
    anew = all(RunFolder(path).done for path, _ in plans)
    existing: Existing = "overwrite" if anew else "resume"
    for number, (path, config) in enumerate(plans, start=1):
        label = f"[{number}/{len(plans)}] {path.name}  "
        train_into(config, path, existing, label=label)
    from peerdg.report.comparison import write_comparison
    from peerdg.report.runs import read_run
    from peerdg.report.tables import comparison, targets_table

    runs = [read_run(path) for path, _ in plans]
    page = write_comparison(runs, out, title="peerdg demo: digits-mini")
    console.print(comparison(runs).rich())
    console.print(targets_table(runs).rich())
    console.print(f"Report: {page}", markup=False, soft_wrap=True)
    console.print(f"Plots:  {page.parent / 'overview.png'}", markup=False, soft_wrap=True)


def _plans(out: Path, seeds: int, epochs: int | None) -> list[tuple[Path, RunConfig]]:
    common: dict[str, Any] = {"benchmark": "digits-mini", "budget": "quick"}
    if epochs is not None:
        common["train"] = {"epochs": epochs}
    return [
        (out / f"{name}-{seed}", resolve(common, options, {"seed": seed}))
        for seed in range(seeds)
        for name, options in METHODS.items()
    ]
