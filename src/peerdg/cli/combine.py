"""`peerdg combine`: combine several runs into one model."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from peerdg.models.names import Outputs, Rule
from peerdg.terminal import command, console


def combine(
    runs: tuple[Path, ...],
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "--out", "-o"))],
    rule: Rule = "uniform",
    outputs: Outputs | None = None,
    root: Annotated[str | None, Parameter(help="folder with the data, if it was moved")] = None,
) -> None:
    """Combine several runs into one self-contained model folder.

    Weights can only be averaged if the runs start from the same weights: use the same --seed and
    different --train-seed values. Outputs can always be averaged.

    Example: `peerdg combine runs/a runs/b runs/c -o combined`

    Args:
        runs: Run folders or model folders, at least two.
        output: Model folder to write.
        rule: uniform: average the weights of all runs. greedy: average only runs that do not lower
            the accuracy on the source's validation images. ensemble: average the outputs.
        outputs: Outputs to average in an ensemble. Default: probabilities.
    """
    from peerdg.run.combine import combine as combine_runs
    from peerdg.terminal import Table

    made = combine_runs(runs, output, rule=rule, outputs=outputs, root=root)
    accuracy = made["training"].get("accuracy", {})
    members = made["combined"]["members"]
    used = [member["name"] for member in members if member["used"]]
    if len(used) < len(members):
        console.print(f"{len(used)} of {len(members)} runs are in the average: {', '.join(used)}.")
    if accuracy:
        rows = [[name, f"{r['accuracy']:.2f}", f"{r['n']:,}"] for name, r in accuracy.items()]
        console.print(Table(["domain", "accuracy %", "images"], rows, is_text=True))
    console.print(f"Model in {output}. Use it with: {command('predict', output, 'IMAGE')}")
