"""The report of any set of runs: a page in Markdown, its figures, and the records behind it."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED, VALIDATION
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.evaluate.selection import RULES, Trajectory, select_variant
from peerdg.evaluate.statistics import RESAMPLES, scipy_stats, spread
from peerdg.files import remove, replace_atomically
from peerdg.methods.base import OFF
from peerdg.report.compare import (
    CLEAR,
    CRAFTED_MEAN,
    Groups,
    answers_csv,
    answers_table,
    choices,
    require_comparable,
    shared_differences,
    variant_differences,
)
from peerdg.report.figures import MANY, differences_figure, overview_figure
from peerdg.report.runs import RunResult, save_runs
from peerdg.report.table import (
    ReportTable,
    Row,
    crafted_table,
    fluctuation_table,
    gradients_table,
    selection_table,
    targets_table,
)
from peerdg.terminal import Table, markdown_text

if TYPE_CHECKING:
    from peerdg.benches.plan import Published, Study

PAGE, TABLE, ANSWERS_CSV = "report.md", "table.csv", "answers.csv"
OVERVIEW, DIFFERENCES, ANSWERS = "overview.png", "differences.png", "answers.png"
_MIN_RANKED = 3  # rows of a ranking


def write_report(
    table: ReportTable,
    groups: Groups,
    folder: Path,
    *,
    title: str,
    failures: Mapping[str, str] | None = None,
    study: "Study | None" = None,
) -> Path:
    """Write `report.md` with its tables, figures and records, and return its path.

    Args:
        table: Table of the runs.
        groups: Finished runs of each row.
        folder: Output folder.
        title: Page title.
        failures: Error message of each failed run.
        study: Questions, rankings and published numbers of a plan.

    Raises:
        ConfigError: If the runs are not comparable.
    """
    labeled = table.labeled(groups)
    runs = [run for group in labeled.values() for run in group]
    require_comparable(runs)
    save_runs(folder, runs)
    for name in (OVERVIEW, DIFFERENCES, ANSWERS, ANSWERS_CSV):
        remove(folder / name)  # of an earlier call
    figures = []
    if runs[0].targets:
        overview_figure(labeled, folder / OVERVIEW, title=title)
        figures.append(OVERVIEW)
    if table.answers or any(row.difference for row in table.rows):
        figures.append(ANSWERS if table.answers else DIFFERENCES)
        differences_figure(table, folder / figures[-1])
    page = compose_page(table, groups, title=title, failures=failures, study=study, figures=figures)
    texts = {TABLE: table.csv(), PAGE: page}
    if table.answers:
        texts[ANSWERS_CSV] = answers_csv(table.answers)
    for name, text in texts.items():
        with replace_atomically(folder / name) as temporary:
            temporary.write_text(text, "utf-8", newline="")
    return folder / PAGE


def compose_page(
    table: ReportTable,
    groups: Groups,
    *,
    title: str,
    failures: Mapping[str, str] | None = None,
    study: "Study | None" = None,
    figures: Sequence[str] = (),
) -> str:
    """Compose the page as Markdown. Names from run folders are escaped."""
    groups = table.labeled(groups)
    captions = {
        OVERVIEW: "Mean target accuracy over training",
        DIFFERENCES: f"Difference of each row to {table.reference}, with its interval",
        ANSWERS: "Differences of the pairs that the questions name",
    }
    pictures = {n: [f"![{markdown_text(captions[n])}]({n})", ""] for n in figures}
    notes = [*table.notes(), *table.cautions, *variant_differences(groups)]
    notes += [f"The run {name} failed: {text}" for name, text in (failures or {}).items()]
    gradients = gradients_table(groups)
    return "\n".join([
        f"# {markdown_text(title)}",
        "",
        markdown_text(_conditions(groups)),
        "",
        *pictures.get(OVERVIEW, ()),
        table.table().markdown(),
        *(f"- {markdown_text(note)}" for note in notes),
        "",
        markdown_text(explain(table)),
        "",
        *pictures.get(DIFFERENCES, ()),
        *(published_section(table, study.published) if study and study.published else ()),
        *_answers_section(table, pictures.get(ANSWERS, ())),
        *(ranking_section(table, study.rankings) if study else ()),
        *_targets_section(groups),
        *selection_section(groups),
        *(() if gradients is None else [
            "## Gradients of the loss terms", "",
            "Norm of the weighted term's gradient relative to that of the cross-entropy, on a "
            "fixed batch at the start of each period. Mean over seeds.", "", gradients.markdown(),
        ]),
    ])  # fmt: skip


def _conditions(groups: Groups) -> str:
    """Describe data, budget, seeds and versions of the runs."""
    runs = [run for group in groups.values() for run in group]
    run, config = runs[0], runs[0].config
    train = config["train"]
    differ = ", ".join(shared_differences(groups))
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    software = "; ".join(sorted({name for run in runs for name in run.software}))
    statistics = ", ".join(sorted({r.batch_statistics for r in runs if r.batch_statistics}))
    held_back, learned = run.size(VALIDATION), run.images.get("train")
    images = f"{held_back:,} source images for validation" if held_back else "no validation images"
    if learned is not None and not run.oracle:
        images = f"{learned:,} source images for training, {images}"
    sentences = [
        f"Data: {run.data}, targets {', '.join(run.targets) or 'none'}, {images}",
        f"Rows differ in {differ}. The settings below are those of the first row" if differ else "",
        f"Backbone: {config['backbone']}. Budget: {config['budget']}, "
        f"{config['pretrain']['epochs']} + {train['epochs']} epochs, batch {train['batch_size']}, "
        f"{train['optimizer']} {train['lr']:g}, evaluated every {config['evaluate_every']} epochs",
        *_own_options(groups),
        f"Seeds: {seeds}",
        f"Batch statistics: {statistics}" if statistics else "",
        f"Trained with {software}" if software else "",
        f"Model selection: last epoch. Page made on {datetime.now(UTC):%Y-%m-%d}",
    ]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def _own_options(groups: Groups) -> list[str]:
    """List the announced numbers of each method, of many rows only those of its first."""
    first = {group[0].method: name for name, group in reversed(list(groups.items()))}
    shown = groups if len(groups) <= MANY else first.values()
    sentences = []
    for name, group in groups.items():
        run = group[0]
        numbers = {
            f.name: run.own_options.get(f.name)
            for f in (fields(run.settings) if run.settings else ())
            if f.metadata["announced"] and run.own_options.get(f.metadata["part_of"]) != OFF
        }
        texts = [f"{key} {v:g}" for key, v in numbers.items() if isinstance(v, int | float)]
        if texts and name in shown:
            sentences.append(f"{name}: {', '.join(texts)}")
    return sentences


def explain(table: ReportTable) -> str:
    """Explain the columns of the table."""
    late = ""
    if table.late_epochs:
        epochs = ", or of longer runs ".join(f"{a} to {b}" for a, b in table.late_epochs)
        late = (
            f" 'late mean' is the target mean over such evaluations of epochs {epochs}: it depends "
            "less on the moment at which training ends, but where accuracy still rises it is that "
            "of an earlier time."
        )
    costs = ""
    if table.plain is not None:
        costs = (
            f" The columns with × are relative to {table.plain}: time per step, of each row's "
            "fastest seed, and memory."
        )
    return (
        "Accuracy in percent of the deployed network after the last epoch: mean ± standard "
        f"deviation over seeds. The difference to {table.reference} is of runs with the same seed, "
        f"with a 95 % bootstrap interval over seeds (BCa, {RESAMPLES:,} resamples). Fluctuation is "
        "the variance of the deployed network's target accuracy over evaluations every "
        f"{table.period} epochs, the same for all rows, without the first {BURN_IN_PERIODS} of "
        f"them, mean over targets.{late} 'by source-val' is the target mean of the epoch that is "
        "best on the source's validation images, and regret how far it is below the best epoch. "
        f"Seconds are those of training epochs, MB the peak memory of the run's process.{costs}"
    )


def _targets_section(groups: Groups) -> list[str]:
    if not any(run.targets for group in groups.values() for run in group):
        return []
    return [
        "## Targets",
        "",
        targets_table(groups).markdown(),
        "## Fluctuation",
        "",
        "Statistics of target accuracy over evaluations every k epochs, by each method's own k, "
        f"without the first {BURN_IN_PERIODS} of them. Mean over targets and seeds.",
        "",
        fluctuation_table(groups).markdown(),
    ]


def _answers_section(table: ReportTable, picture: Sequence[str]) -> list[str]:
    if not table.answers:
        return []
    lines = [
        "## Questions",
        "",
        "Differences of runs with the same seed, with the interval of the table above and "
        f"{CLEAR} where Student's excludes 0, too. Fluctuation is compared as a ratio of "
        "variances, by logarithms: below 1 is steadier. `trained` is the network that is trained.",
        "",
        *picture,
    ]
    for question in dict.fromkeys(answer.question for answer in table.answers):
        own = [answer for answer in table.answers if answer.question == question]
        lines += [f"**{markdown_text(question)}**", "", answers_table(own).markdown()]
    return lines


# Model selection.


def selection_section(groups: Groups) -> list[str]:
    """Compose the part of a page about model selection."""
    runs = [run for group in groups.values() for run in group]
    lines = ["## Model selection", ""]
    if any(run.targets for run in runs):
        lines += [selection_table(groups).markdown()]
    used = {rule for run in runs for rule in choices(run)}
    lines += [f"- {rule}: {meaning}." for rule, meaning in RULES.items() if rule in used]
    lines += [f"- {markdown_text(sentence)}" for sentence in preferred_settings(groups)]
    if any(domain.startswith(CRAFTED) for run in runs for domain in run.domains):
        lines += [
            "",
            "Crafted validation at the last epoch. `crafted val` is the mean over the evaluated "
            f"families that RandAugment does not train on ({', '.join(DISJOINT)}):",
            "",
            crafted_table(groups).markdown(),
        ]
    return [*lines, ""]


def preferred_settings(groups: Groups) -> list[str]:
    """Name the setting of each method that crafted validation prefers at the last epoch."""
    by_method: dict[str, dict[str, list[RunResult]]] = {}
    for name, group in groups.items():
        if all(run.voting for run in group):
            by_method.setdefault(group[0].method, {})[name] = list(group)
    sentences = []
    for variants in by_method.values():
        # Scores of different images cannot be compared.
        evaluated = {
            (*run.voting, *run.targets, run.fingerprints.get(VALIDATION), run.size(*run.voting))
            for group in variants.values()
            for run in group
        }
        if len(variants) < 2 or len(evaluated) > 1:
            continue
        choice = select_variant({
            name: [Trajectory.from_records(r.evaluations, model=r.deployed) for r in group]
            for name, group in variants.items()
        })  # fmt: skip
        cost = "" if choice.regret is None else f". Its regret is {choice.regret:.1f} points"
        sentences.append(
            f"of {', '.join(variants)}, crafted validation prefers {choice.variant} "
            f"({choice.scores[choice.variant]:.1f}){cost}."
        )
    return sentences


# Published numbers.


def published_section(table: ReportTable, published: "Published") -> list[str]:
    """Compare rows with their published accuracies. Empty if no row of the table was published.

    Means are over the targets that all these rows have, here and in the publication.
    """
    theirs = published.accuracy
    rows = [r for r in table.rows if r.targets.keys() & theirs.get(r.method, {}).keys()]
    rows.sort(key=lambda row: list(theirs).index(row.method))
    targets = (
        [t for t in rows[0].targets if all(t in theirs[r.method] for r in rows)] if rows else []
    )
    if not targets:
        return []
    known = dict.fromkeys(target for accuracy in theirs.values() for target in accuracy)
    missing = ", ".join(target for target in known if target not in targets)
    means = [
        {
            seed: float(np.mean([row.targets[t].by_seed[seed] for t in targets]))
            for seed in row.seeds
        }
        for row in rows
    ]
    published_means = [float(np.mean([theirs[row.method][t] for t in targets])) for row in rows]
    lines = []
    for row, ours, mean in zip(rows, means, published_means, strict=True):
        own = theirs[row.method]
        cells = [f"{spread(row.targets[t].values)} / {own[t]:.1f}" for t in targets]
        gains = [ours[seed] - means[0][seed] for seed in ours if seed in means[0]]
        gain = f"{np.mean(gains):+.1f} / {mean - published_means[0]:+.1f}" if gains else "-"
        cells += [f"{spread(list(ours.values()))} / {mean:.1f}", "-" if row is rows[0] else gain]
        lines.append([row.label, str(len(row.seeds)), *cells])
    left_out = f" Left out, because not all rows have them: {missing}." if missing else ""
    return [
        "## Published numbers",
        "",
        markdown_text(
            f"Ours / published, in percent. Published: {published.source}. Means are over the "
            "targets of this table. The last column has the differences of these means to the "
            f"first row, ours of the same seeds.{left_out}"
        ),
        "",
        Table(["method", "seeds", *targets, "mean", f"vs {rows[0].method}"], lines).markdown(),
    ]


# Rankings.


def ranking_section(table: ReportTable, rankings: Mapping[str, Sequence[str]]) -> list[str]:
    """Correlate source-only scores with the target mean. Empty if there is nothing to rank."""
    lines = []
    for name, methods in rankings.items():
        rows = [row for row in table.rows if row.method in methods and row.score is not None]
        if len(rows) >= _MIN_RANKED:
            texts = (rank_correlation(rows, score) for score in ("source val", CRAFTED_MEAN))
            lines.append([name, str(len(rows)), *texts])
    if not lines or table.score == CRAFTED_MEAN:  # there are no targets to agree with
        return []
    return [
        "## Choosing without targets",
        "",
        "Spearman's rank correlation of source-only scores with the target mean, over rows: of "
        "their means over the seeds that all of them have and, in brackets, within single seeds. "
        "1: the same order.",
        "",
        Table(["rows", "n", "source val", CRAFTED_MEAN], lines).markdown(),
    ]


def rank_correlation(rows: Sequence[Row], score: str) -> str:
    """Correlate a column with the target mean over rows, as `0.92 (0.45 to 0.83)`."""
    pairs = [(row.values.get(score), row.score) for row in rows]
    known = [spread.by_seed.keys() if spread else set() for pair in pairs for spread in pair]
    common = sorted(set.intersection(*map(set, known)))
    if not common:
        return "-"
    values = np.array([[[s.by_seed[n] for n in common] for s in pair if s] for pair in pairs])
    scores, targets = values[:, 0], values[:, 1]  # (rows, seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal values have no order and give nan
        correlate = scipy_stats().spearmanr
        whole = correlate(scores.mean(1), targets.mean(1)).statistic
        single = [correlate(*pair).statistic for pair in zip(scores.T, targets.T, strict=True)]
    single = [value for value in single if np.isfinite(value)]
    if not np.isfinite(whole):
        return "-"
    within = f" ({min(single):.2f} to {max(single):.2f})" if len(single) > 1 else ""
    return f"{whole:.2f}{within}"
