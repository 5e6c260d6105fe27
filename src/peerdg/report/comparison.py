"""A Markdown page that compares finished runs: table, curves, fluctuation, what it shows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from peerdg.errors import ConfigError
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.evaluate.interval import FEW
from peerdg.files import replace_atomically
from peerdg.report.escape import markdown_text
from peerdg.report.figures import accuracy_figure
from peerdg.report.profile import profile_section
from peerdg.report.runs import RunResult, by_variant, save_runs, variant_differences
from peerdg.report.selection import selection_section
from peerdg.report.tables import comparison, fluctuation_table, targets_table

FIGURE, PAGE, RECORDS = "accuracy.png", "report.md", "runs.json"


def write_comparison(runs: Sequence[RunResult], folder: Path, *, title: str) -> Path:
    """Write `report.md`, its figure and the records behind both; returns the page."""
    require_comparable(runs)
    save_runs(folder / RECORDS, runs)
    if next(iter(by_variant(runs).values()))[0].targets:
        accuracy_figure(runs, folder / FIGURE, title=title)
    with replace_atomically(folder / PAGE) as temporary:
        temporary.write_text(comparison_page(runs, title=title), "utf-8")
    return folder / PAGE


def comparison_page(runs: Sequence[RunResult], *, title: str) -> str:
    """The page as Markdown; every number names its budget, seeds and data."""
    groups = by_variant(runs)
    # Names and values come from run folders, which may be somebody else's.
    variants = [f"- {markdown_text(sentence)}" for sentence in variant_differences(groups)]
    return "\n".join([
        f"# {markdown_text(title)}",
        "",
        markdown_text(_conditions(groups)),
        "",
        comparison(runs).markdown(),
        targets_table(runs).markdown(),
        "Accuracy in percent of the deployed model after the last epoch: mean ± standard deviation "
        "over seeds; `target mean` is the unweighted mean of the targets. `var proxy` and `var "
        "task` are the fluctuation: the variance of target accuracy over evaluations every k "
        f"epochs, the first {BURN_IN_PERIODS} periods left out, mean over targets. Methods with "
        "one network have it in the first column. `seconds` is the time spent in training epochs. "
        f"An accuracy on fewer than {FEW} images has its 95 % interval (Wilson) beside it if it is "
        "of one run, the number of images if it is of several.",
        "",
        *([*variants, ""] if variants else []),
        "## What it shows",
        "",
        *(f"- {markdown_text(sentence)}" for sentence in findings(groups)),
        "",
        f"![Target accuracy over training]({FIGURE})",
        "",
        f"## Fluctuation, first {BURN_IN_PERIODS} periods left out",
        "",
        fluctuation_table(runs, burn_in_periods=BURN_IN_PERIODS).markdown(),
        "## Fluctuation, all periods",
        "",
        fluctuation_table(runs, burn_in_periods=0).markdown(),
        *selection_section(runs),
        *profile_section(runs),
    ])  # fmt: skip


def findings(groups: Mapping[str, Sequence[RunResult]]) -> list[str]:
    """Sentences that the numbers support, whichever way they point."""
    mean = {
        name: float(np.mean([run.target_mean(run.deployed) for run in group]))
        for name, group in groups.items()
        if group[0].targets
    }
    said = [
        _compare(mean, better, worse, about)
        for better, worse, about in (
            ("randaugment", "erm", "augmentation alone"),
            ("peer", "erm", "PEER against no augmentation"),
            ("peer", "randaugment", "PEER against augmentation alone"),
            ("peer", "p-ens", "PEER against augmentation with averaging, without regulariser"),
        )
        if better in mean and worse in mean
    ]
    return said + [_steadiness(name, group) for name, group in groups.items() if _has_task(group)]


def require_comparable(runs: Sequence[RunResult]) -> None:
    """Refuse to put results side by side that were measured on different data.

    Raises:
        ConfigError: If finished runs differ in their data set or their targets.
    """
    data = {
        (group[0].config["benchmark"], *group[0].targets) for group in by_variant(runs).values()
    }
    if len(data) > 1:
        found = "; ".join(
            f"{name}: {', '.join(targets) or 'none'}" for name, *targets in sorted(data)
        )
        raise ConfigError(
            f"These runs have different data or targets ({found}).",
            hint="Compare those with the same targets only, by naming their folders.",
        )


def _compare(mean: Mapping[str, float], a: str, b: str, about: str) -> str:
    gain = mean[a] - mean[b]
    verdict = "above" if gain > 0 else "below"
    sentence = f"{about}: {a} is {abs(gain):.1f} points {verdict} {b} on the target mean"
    if (a, b) == ("peer", "p-ens"):
        lesson = "pays" if gain > 0 else "does not pay"
        sentence += f"; at this budget the regulariser {lesson} in accuracy"
    return sentence + "."


def _steadiness(name: str, group: Sequence[RunResult]) -> str:
    task, proxy = (_variance(group, model) for model in ("task", "proxy"))
    if task is None or proxy is None:
        return f"{name}: too few periods after the first {BURN_IN_PERIODS} to speak of fluctuation."
    verdict = "less" if task < proxy else "not less"
    return (
        f"{name}: the task model fluctuates {verdict} than its proxy ({task:.2f} and {proxy:.2f})."
    )


def _variance(group: Sequence[RunResult], model: str) -> float | None:
    found = [run.fluctuation(model) for run in group]
    values = [f.mean.var for f in found if f is not None]
    return float(np.mean(values)) if values else None


def _has_task(group: Sequence[RunResult]) -> bool:
    return "task" in group[0].models


def _conditions(groups: Mapping[str, Sequence[RunResult]]) -> str:
    run = next(iter(groups.values()))[0]
    config = run.config
    seeds = sorted({r.seed for group in groups.values() for r in group})
    training = config["train"]
    schedules = {
        repr([g[0].config[part] for part in ("pretrain", "train")]) for g in groups.values()
    }
    differ = "" if len(schedules) == 1 else "Schedules differ between rows; this is the first's. "
    return (
        f"Data: {config['benchmark']}, targets {', '.join(run.targets) or 'none'}. {differ}"
        f"Backbone: {config['backbone']}. Budget: {config['budget']}, "
        f"{config['pretrain']['epochs']} + {training['epochs']} epochs, batch "
        f"{training['batch_size']}, {training['optimizer']} {training['lr']:g}, evaluated every "
        f"{config['evaluate_every']} epochs. Seeds: {', '.join(map(str, seeds))}. "
        f"Model selection: last epoch. Made on {datetime.now(UTC):%Y-%m-%d}."
    )
