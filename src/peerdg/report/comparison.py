"""A Markdown page that compares finished runs: table, curves, fluctuation, what it shows."""

from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

from peerdg.data import VALIDATION
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.evaluate.statistics import FEW
from peerdg.files import remove, replace_atomically
from peerdg.methods.base import OFF
from peerdg.report.comparable import comparison_notes, differences, require_comparable
from peerdg.report.figures import accuracy_figure, overview_figure
from peerdg.report.result import FROZEN, RunResult
from peerdg.report.runs import save_runs
from peerdg.report.selection import selection_section
from peerdg.report.tables import (
    comparison,
    fluctuation_table,
    gradients_table,
    profile_table,
    targets_table,
)
from peerdg.report.variants import MANY, Groups, by_variant, variant_differences
from peerdg.terminal import markdown_text

OVERVIEW, FIGURE, PAGE, RECORDS = "overview.png", "accuracy.png", "report.md", "runs.json"


def write_comparison(runs: Sequence[RunResult], folder: Path, *, title: str) -> Path:
    """Write `report.md`, its figures and the records behind them; returns the page."""
    write_records(runs, folder, title=title)
    with replace_atomically(folder / PAGE) as temporary:
        temporary.write_text(comparison_page(runs, title=title), "utf-8")
    return folder / PAGE


def write_records(runs: Sequence[RunResult], folder: Path, *, title: str) -> None:
    """Write what stands beside a page: the records of its runs, and curves of them.

    Raises:
        ConfigError: If the runs cannot stand side by side.
    """
    require_comparable(runs)
    save_runs(folder / RECORDS, runs)
    groups = by_variant(runs)
    if next(iter(groups.values()))[0].targets:
        overview_figure(runs, folder / OVERVIEW, title=title)
        if len(groups) > MANY:
            remove(folder / FIGURE)  # of an earlier call, with fewer
        else:
            accuracy_figure(runs, folder / FIGURE, title=title)


def comparison_page(runs: Sequence[RunResult], *, title: str) -> str:
    """Compose the page as Markdown; every number names its budget, seeds and data."""
    return "\n".join([
        *opening(runs, title=title),
        comparison(runs).markdown(),
        *([targets_table(runs).markdown()] if any(run.targets for run in runs) else []),
        "Accuracy in percent of the deployed model after the last epoch: mean ± standard deviation "
        "over seeds; `target mean` is the unweighted mean of the targets. `var trained` and `var "
        "deployed` are the fluctuation of the network that is trained and of the average that is "
        "deployed: the variance of target accuracy over evaluations every k epochs (without k, or "
        f"where a note says so, every period of evaluation), the first {BURN_IN_PERIODS} periods "
        "left out, mean over targets. Methods that deploy the trained network have it in the first "
        "column. `seconds` is the time spent in training epochs. "
        f"An accuracy on fewer than {FEW} images has its 95 % interval (Wilson) beside it if it is "
        "of one run, the number of images if it is of several.",
        "",
        *details(runs),
    ])  # fmt: skip


def opening(runs: Sequence[RunResult], *, title: str) -> list[str]:
    """Compose the heading of a page, and under which conditions its numbers were measured."""
    return [f"# {markdown_text(title)}", "", markdown_text(_conditions(by_variant(runs))), ""]


def details(runs: Sequence[RunResult]) -> list[str]:
    """Compose what follows the table: notes, curves, fluctuation, selection, profiles."""
    groups = by_variant(runs)
    # Names and values come from run folders, which may be somebody else's.
    sentences = [*variant_differences(groups), *comparison_notes(groups)]
    notes = [f"- {markdown_text(sentence)}" for sentence in sentences]
    return [
        *([*notes, ""] if notes else []),
        "## Over training",
        "",
        *_figures(groups),
        f"## Fluctuation, first {BURN_IN_PERIODS} periods left out",
        "",
        fluctuation_table(runs, burn_in_periods=BURN_IN_PERIODS).markdown(),
        "## Fluctuation, all periods",
        "",
        fluctuation_table(runs, burn_in_periods=0).markdown(),
        *selection_section(runs),
        *_gradients_section(runs),
        *_profile_section(runs),
    ]


def _figures(groups: Groups) -> list[str]:
    if not any(group[0].targets for group in groups.values()):
        return []
    overview = [f"![Mean target accuracy over training]({OVERVIEW})", ""]
    if len(groups) > MANY:
        return overview
    return [*overview, f"![Accuracy on each target over training]({FIGURE})", ""]


def _batch_statistics(groups: Groups) -> str:
    """Say how batch-normalised networks were evaluated; empty if there are none."""
    found = {name: g[0].batch_statistics for name, g in groups.items() if g[0].batch_statistics}
    frozen = [name for name, rule in found.items() if rule == FROZEN]
    rules = {rule for rule in found.values() if rule != FROZEN}
    fixed = f"Batch statistics of {', '.join(frozen)}: frozen while the network was trained. "
    return _shared_rule(rules, groups, others=bool(frozen)) + (fixed if frozen else "")


def _shared_rule(rules: Collection[str], groups: Groups, *, others: bool) -> str:
    """State the rule of all networks that are not frozen; `others` says whether some are."""
    if not rules:
        return ""
    networks = "every other network" if others else "every network"
    if rules == {"clean"}:
        return f"Batch statistics of {networks}: recomputed on the clean training images. "
    if rules == {"trained"}:
        return f"Batch statistics of {networks}: as training left them. "
    averages = dict.fromkeys(g[0].deployed for g in groups.values() if g[0].averages)
    return (
        "Batch statistics: as training left them; those of the deployed average "
        f"({', '.join(averages)}): of clean training images. "
    )


def _conditions(groups: Groups) -> str:
    run = next(iter(groups.values()))[0]
    config = run.config
    seeds = sorted({r.seed for group in groups.values() for r in group})
    training = config["train"]
    differ = ", ".join(differences(groups))
    return (
        f"Data: {run.data}, targets {', '.join(run.targets) or 'none'}; {_source_images(run)}. "
        f"{f'Rows differ in {differ}; what follows is of the first. ' if differ else ''}"
        f"Backbone: {config['backbone']}. Budget: {config['budget']}, "
        f"{config['pretrain']['epochs']} + {training['epochs']} epochs, batch "
        f"{training['batch_size']}, {training['optimizer']} {training['lr']:g}, evaluated every "
        f"{config['evaluate_every']} epochs. {_own_options(groups)}"
        f"Seeds: {', '.join(map(str, seeds))}. "
        f"{_batch_statistics(groups)}"
        f"{_software(groups)}"
        f"Model selection: last epoch. Page made on {datetime.now(UTC):%Y-%m-%d}."
    )


def _software(groups: Groups) -> str:
    """Name the versions that runs were trained with; empty if no run recorded them."""
    runs = [run for group in groups.values() for run in group]
    found = sorted({name for run in runs for name in run.inputs.software})
    unknown = [] if all(run.inputs.software for run in runs) else ["some by an earlier version"]
    return f"Trained with {'; '.join([*found, *unknown])}. " if found else ""


def _source_images(run: RunResult) -> str:
    """Say how many images of the source were learnt from, if that is known, and held back."""
    held_back, learnt_from = run.images(VALIDATION), run.inputs.images.get("train")
    if learnt_from is None or run.saw_targets:
        return (
            f"{held_back:,} source images for validation" if held_back else "no validation images"
        )
    validation = f"{held_back:,}" if held_back else "none"
    return f"{learnt_from:,} source images to learn from, {validation} for validation"


def _own_options(groups: Groups) -> str:
    """List the options of each method that results depend on; of many rows, its first one's."""
    first = {group[0].method: name for name, group in reversed(list(groups.items()))}
    shown = groups if len(groups) <= MANY else first.values()
    return "".join(
        f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in found.items()) + ". "
        for name, group in groups.items()
        if name in shown and (found := _announced(group[0]))
    )


def _announced(run: RunResult) -> dict[str, float]:
    """Select its announced numbers, without those of a component that is switched off.

    A run of a method that this version does not have announces nothing.
    """
    if run.settings is None:
        return {}
    values = {
        f.name: run.own_options.get(f.name)
        for f in fields(run.settings)
        if f.metadata["announced"] and run.own_options.get(f.metadata["part_of"]) != OFF
    }
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _gradients_section(runs: Sequence[RunResult]) -> list[str]:
    """Compose the part about gradients of the loss terms; empty if no run recorded any."""
    table = gradients_table(runs)
    if table is None:
        return []
    return [
        "## How strongly each term pulls at the encoder",
        "",
        "Norm of the weighted term's gradient over that of the cross-entropy's, on a fixed batch "
        "at the start of each period; mean over seeds.",
        "",
        table.markdown(),
    ]


def _profile_section(runs: Sequence[RunResult]) -> list[str]:
    """Compose the part about the profiled runs among `runs`; empty if there is none."""
    lines: list[str] = []
    for run in runs:
        if run.profile is not None:
            title = markdown_text(f"Where the time went: {run.method}, seed {run.seed}")
            lines += [f"## {title}", "", profile_table(run).markdown()]
    return lines
