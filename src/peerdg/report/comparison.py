"""A Markdown page that compares finished runs: table, curves, fluctuation, what it shows."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from peerdg.data import VALIDATION
from peerdg.errors import ConfigError
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.evaluate.interval import FEW
from peerdg.files import replace_atomically
from peerdg.methods.registry import method_names, settings_of
from peerdg.report.escape import markdown_text
from peerdg.report.figures import accuracy_figure, overview_figure
from peerdg.report.profile import profile_section
from peerdg.report.runs import WITHOUT_EFFECT, RunResult, save_runs
from peerdg.report.selection import selection_section
from peerdg.report.tables import comparison, fluctuation_table, targets_table
from peerdg.report.variants import Groups, by_variant, variant_differences

OVERVIEW, FIGURE, PAGE, RECORDS = "overview.png", "accuracy.png", "report.md", "runs.json"


def write_comparison(runs: Sequence[RunResult], folder: Path, *, title: str) -> Path:
    """Write `report.md`, its figures and the records behind them; returns the page."""
    require_comparable(runs)
    save_runs(folder / RECORDS, runs)
    if next(iter(by_variant(runs).values()))[0].targets:
        overview_figure(runs, folder / OVERVIEW, title=title)
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
        *([targets_table(runs).markdown()] if any(run.targets for run in runs) else []),
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
        *_figures(groups),
        f"## Fluctuation, first {BURN_IN_PERIODS} periods left out",
        "",
        fluctuation_table(runs, burn_in_periods=BURN_IN_PERIODS).markdown(),
        "## Fluctuation, all periods",
        "",
        fluctuation_table(runs, burn_in_periods=0).markdown(),
        *selection_section(runs),
        *profile_section(runs),
    ])  # fmt: skip


def _figures(groups: Groups) -> list[str]:
    if not any(group[0].targets for group in groups.values()):
        return []
    return [
        f"![Mean target accuracy over training]({OVERVIEW})",
        "",
        f"![Accuracy on each target over training]({FIGURE})",
        "",
    ]


def findings(groups: Groups) -> list[str]:
    """Sentences that the numbers support, whichever way they point."""
    mean = {
        name: float(np.mean([run.target_mean(run.deployed) for run in group]))
        for name, group in groups.items()
        if group[0].targets
    }
    said = [
        _compare(mean, a, b, about)
        for better, worse, about in (
            ("randaugment", "erm", "augmentation alone"),
            ("peer", "erm", "PEER against no augmentation"),
            ("peer", "randaugment", "PEER against augmentation alone"),
            ("peer", "p-ens", "PEER against augmentation with averaging, without regulariser"),
        )
        for a, b in _pairs(groups, better, worse)
        if a in mean and b in mean
    ]
    return said + [_steadiness(name, group) for name, group in groups.items() if _has_task(group)]


def _pairs(groups: Groups, better: str, worse: str) -> list[tuple[str, str]]:
    """Variants of two methods to compare: of several, those that share everything else."""
    first, second = (
        [name for name in groups if name.partition(" ")[0] == method] for method in (better, worse)
    )
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    shared = {name: _shared_options(groups[name][0]) for name in (*first, *second)}
    return [(a, b) for a in first for b in second if shared[a] == shared[b]]


def _shared_options(run: RunResult) -> str:
    """What does not belong to the method, as a comparable text."""
    own = {"method", str(run.config["method"]), *WITHOUT_EFFECT}
    return repr([(key, value) for key, value in run.config.items() if key not in own])


def require_comparable(runs: Sequence[RunResult]) -> None:
    """Refuse to put results side by side that were measured on different data or in different ways.

    Raises:
        ConfigError: If finished runs differ in their data set or their targets, were judged on
            other images under the same names, or follow different rules for batch statistics.
    """
    first = [group[0] for group in by_variant(runs).values()]
    data = {(run.config["benchmark"], *run.targets): run for run in first}
    hint = "Compare those with the same targets only, by naming their folders."
    if len(data) > 1:
        found = "; ".join(
            f"{run.data}: {', '.join(run.targets) or 'none'}" for _, run in sorted(data.items())
        )
        raise ConfigError(f"These runs have different data or targets ({found}).", hint=hint)
    images = {tuple(run.judged_on.items()) for run in first if run.judged_on}
    if len(images) > 1:
        judged = ", ".join(dict.fromkeys(run.data for run in first))
        what = "targets" if first[0].targets else "validation images"
        raise ConfigError(
            f"The {what} of these runs have the same names but other images (data: {judged}).",
            hint=hint,
        )
    ruled = [run for group in by_variant(runs).values() for run in group if run.batch_statistics]
    rules = sorted({str(run.batch_statistics) for run in ruled})
    # Runs that are older than the rule stay comparable to each other; the table says what they are.
    if len(rules) > 1 and any(run.has_statistics_rule for run in ruled):
        raise ConfigError(
            f"These runs were evaluated with different batch statistics ({'; '.join(rules)}).",
            hint="Compare those with the same --batch-statistics only, by naming their folders.",
        )


def _compare(mean: Mapping[str, float], a: str, b: str, about: str) -> str:
    gain = mean[a] - mean[b]
    verdict = "above" if gain > 0 else "below"
    sentence = f"{about}: {a} is {abs(gain):.1f} points {verdict} {b} on the target mean"
    if (a.partition(" ")[0], b.partition(" ")[0]) == ("peer", "p-ens"):
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


def _batch_statistics(groups: Groups) -> str:
    """How batch-normalised networks were evaluated; empty if there are none."""
    rules = {str(g[0].batch_statistics) for g in groups.values() if g[0].batch_statistics}
    if not rules:
        return ""
    if rules == {"clean"}:
        return "Batch statistics of every network: recomputed on the clean training images. "
    if rules == {"trained"}:
        return "Batch statistics of every network: as training left them. "
    return "Batch statistics: as training left them; PEER's task model: of clean training images. "


def _conditions(groups: Groups) -> str:
    run = next(iter(groups.values()))[0]
    config = run.config
    seeds = sorted({r.seed for group in groups.values() for r in group})
    training = config["train"]
    parts = ("backbone", "budget", "pretrain", "train")
    schedules = {repr([g[0].config[part] for part in parts]) for g in groups.values()}
    differ = "Backbone or schedule differ between rows; these are the first's. "
    return (
        f"Data: {run.data}, targets {', '.join(run.targets) or 'none'}; {_held_back(run)}. "
        f"{'' if len(schedules) == 1 else differ}"
        f"Backbone: {config['backbone']}. Budget: {config['budget']}, "
        f"{config['pretrain']['epochs']} + {training['epochs']} epochs, batch "
        f"{training['batch_size']}, {training['optimizer']} {training['lr']:g}, evaluated every "
        f"{config['evaluate_every']} epochs. {_own_options(groups)}"
        f"Seeds: {', '.join(map(str, seeds))}. "
        f"{_batch_statistics(groups)}"
        f"Model selection: last epoch. Page made on {datetime.now(UTC):%Y-%m-%d}."
    )


def _held_back(run: RunResult) -> str:
    """What was not trained on, beside the targets."""
    images = run.images(VALIDATION)
    return f"{images:,} source images for validation" if images else "no validation images"


def _own_options(groups: Groups) -> str:
    """Those options of each method that results depend on."""
    said = [
        f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in found.items()) + ". "
        for name, group in groups.items()
        if (found := _announced(group[0].config))
    ]
    return "".join(said)


def _announced(config: Mapping[str, Any]) -> dict[str, float]:
    method = str(config["method"])
    if method not in method_names():  # of a run made with another version or a plugin
        return {}
    named = [f.name for f in fields(settings_of(method)) if f.metadata.get("announced")]
    settings = config.get(method, {})
    if settings.get("regulariser") == "none":  # then its weight means nothing
        named = [name for name in named if name != "w"]
    values = {name: settings.get(name) for name in named}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
