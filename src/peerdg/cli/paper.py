"""`peerdg paper`: make the tables and figures of the PEER paper."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from peerdg.benches.plan import SEEDS, VARIANT
from peerdg.cli.flags import OptionalWhole, Options, SeedList, Whole
from peerdg.data.benchmarks import PUBLISHED
from peerdg.errors import ConfigError, DataError
from peerdg.files import replace_atomically
from peerdg.options import did_you_mean, dotted
from peerdg.paper.catalogue import columns, find_items, items, paper_plan
from peerdg.run.presets import BUDGETS
from peerdg.terminal import Table, console, error_console

QUICK_SEEDS = 3  # all items on digits-mini then take about an hour on two cores
OUT = Path("runs/paper")


def list_paper() -> None:
    """List the tables and figures of the PEER paper, and the number of runs they need."""
    plan = paper_plan("digits-mini", {"budget": "quick"}, seeds=[0], bench=OUT)
    rows = []
    for name, item in items().items():
        runs = 0
        if used := item.rows("digits-mini"):
            runs = len(plan.only(used).groups)
        rows.append([name, item.title, ", ".join(item.data) or "-", str(runs or "-")])
    console.print(Table(["item", "title", "data", "runs per seed"], rows, is_text=True))
    shared = len(plan.plan.groups) - 1  # one is the oracle, which has one seed
    console.print(
        f"{len(rows)} items. On digits-mini with budget quick, they share {shared} runs per seed "
        f"and an oracle: {shared * QUICK_SEEDS + 1} runs with {QUICK_SEEDS} seeds."
    )


def show_paper(item: str, /) -> None:
    """Show the published values of an item, what makes each row, and what it needs.

    Example: `peerdg paper show T2`

    Args:
        item: Item of the paper, e.g. T2 or F1.
    """
    for found in find_items([item]):
        console.print(f"{found.id}: {found.title}", style="bold")
        if found.caption:
            console.print(found.caption)
        for panel in found.panels:
            for data in panel.data:
                console.print(f"{panel.title or panel.measure} on {data}", style="bold")
                names = columns(panel.measure, data)
                rows = [
                    [row.label, row.row or "-", *("-" if (v := row.published[data][name]) is None
                                                  else f"{v:.2f}" for name in names)]
                    for row in panel.rows
                ]  # fmt: skip
                console.print(Table(["row", "made by", *names], rows))
        for note in found.notes:
            console.print(f"Note: {note}")
        for data in found.data:
            plan = paper_plan(data, {"budget": "paper"}, seeds=[0], bench=OUT)
            for row in found.rows(data):
                if own := plan.plan.options[VARIANT].get(row):
                    flags = ", ".join(f"{name} = {value}" for name, value in dotted(own).items())
                    console.print(f"{row} on {data}: {flags}")
            used = [plan.group(row).config for row in found.rows(data)]
            networks = dict.fromkeys(c.backbone for c in used if c.weights == "imagenet")
            weights = f", ImageNet weights of {', '.join(networks)}" if networks else ""
            console.print(f"Needs: {data}{weights}")


def run_paper(
    *item: str,
    out: Annotated[Path, Parameter(name=("--out", "-o"))] = OUT,
    data: str | None = None,
    seeds: OptionalWhole = None,
    seed: SeedList = None,
    jobs: Whole = 2,
    until: OptionalWhole = None,
    records: tuple[Path, ...] = (),
    train: Annotated[bool, Parameter(negative="--no-train")] = True,
    options: Options = None,
) -> None:
    """Train the missing runs of some items, and write our values next to the published ones.

    Items share runs. Repeat the command to continue. The options of a run apply to all runs.

    Example: `peerdg paper run T2 F1 --data digits-mini --budget quick`

    Args:
        item: Items of the paper, e.g. T2 or F1, or `all`.
        out: Folder for the pages and runs.
        data: Data set to use instead of those in the paper, e.g. digits-mini.
        seeds: Number of seeds. Default: 3 with budget quick, otherwise 5.
        seed: List of seeds, e.g. 3,4,5, instead of --seeds.
        jobs: Number of runs to train at once. They share the cores.
        until: Epoch to train to.
        records: Folder of an earlier bench. Rows with the same options are reused.
        train: Train missing runs. --no-train only uses complete ones.
    """
    from peerdg.evaluate.statistics import MIN_SEEDS
    from peerdg.paper.run import run_items
    from peerdg.report.html import HTML, uplot

    uplot()  # fail early if it is not installed
    if not item:
        raise ConfigError("No item was given.", hint="Name some, e.g. T2, or use `all`.")
    if data is not None and data not in PUBLISHED:
        raise ConfigError(
            f"`paper run` needs a data set with published values, not '{data}'.",
            hint=f"{did_you_mean(data, PUBLISHED)} --root names the folder with its files.",
        )
    given = {"budget": BUDGETS[0], **(options or {})}
    root = given.pop("root", None)
    usual = QUICK_SEEDS if given["budget"] == BUDGETS[0] else SEEDS
    count = usual if seeds is None else max(0, seeds)
    wanted = find_items(item)
    gaps = run_items(
        wanted,
        out,
        data=data,
        root=None if root is None else Path(root).expanduser(),
        options=given,
        seeds=tuple(range(count)) if seed is None else seed,
        until=until,
        records=records,
        train=train,
        jobs=jobs,
        console=error_console,
    )
    for name, reason in gaps.items():
        console.print(f"{name}: not available: {reason}")
    console.print(f"Page: {out / HTML}")
    if len(range(count) if seed is None else seed) < MIN_SEEDS:
        console.print(f"`peerdg paper claims` needs {MIN_SEEDS} seeds for a verdict (--seeds).")
    if len(gaps) == len(wanted):
        raise DataError("No item is complete.", hint="See the reasons above.")


def claims_paper(folder: Path = OUT, /) -> None:
    """Compare the claims of the paper with the items made so far.

    Example: `peerdg paper claims runs/paper`

    Args:
        folder: Folder of `peerdg paper run`.
    """
    from peerdg.paper.claims import check_claims

    checked = check_claims(folder)
    for data in dict.fromkeys(claim.data for claim in checked):
        rows = [[c.text, c.item, c.verdict, c.evidence] for c in checked if c.data == data]
        table = Table(["claim", "item", "verdict", "evidence"], rows, is_text=True)
        console.print(f"{data}", style="bold")
        console.print(table)
        with replace_atomically(folder / f"claims-{data}.md") as temporary:
            text = f"# Claims of the paper on {data}\n\n{table.markdown()}"
            temporary.write_text(text, "utf-8")
