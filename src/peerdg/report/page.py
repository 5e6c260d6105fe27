"""Write a report on a set of runs: Markdown pages, figures and records."""

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
from peerdg.evaluate.selection import RULES
from peerdg.evaluate.statistics import MIN_SEEDS, scipy_stats, spread
from peerdg.files import remove, replace_atomically
from peerdg.methods.base import OFF
from peerdg.report.compare import (
    CRAFTED_MEAN,
    Answer,
    Groups,
    answers_csv,
    answers_table,
    choices,
    require_comparable,
    shared_differences,
    variant_differences,
)
from peerdg.report.figures import MANY, differences_figure, overview_figure
from peerdg.report.runs import save_runs
from peerdg.report.table import (
    ReportTable,
    Row,
    crafted_table,
    fluctuation_table,
    gradients_table,
    selection_table,
    targets_table,
)
from peerdg.terminal import Table, markdown_environment

if TYPE_CHECKING:
    from peerdg.benches.plan import Published, Study

PAGE, DETAILS, TABLE, ANSWERS_CSV = "report.md", "details.md", "table.csv", "answers.csv"
OVERVIEW, DIFFERENCES, ANSWERS = "overview.png", "differences.png", "answers.png"
_MIN_RANKED = 3  # minimum number of rows in a ranking


def write_report(
    table: ReportTable,
    groups: Groups,
    folder: Path,
    *,
    title: str,
    failures: Mapping[str, str] | None = None,
    study: "Study | None" = None,
) -> Path:
    """Write `report.md`, `details.md`, figures and records, and return the path of `report.md`.

    `groups` has the finished runs of each row, and `failures` why runs failed, by name.
    """
    labeled = table.labeled(groups)
    runs = [run for group in labeled.values() for run in group]
    require_comparable(runs)
    save_runs(folder, runs)
    for name in (OVERVIEW, DIFFERENCES, ANSWERS, ANSWERS_CSV):
        remove(folder / name)  # left by an earlier call
    figures = []
    if runs[0].targets:
        overview_figure(labeled, folder / OVERVIEW, title=title)
        figures.append(OVERVIEW)
    if table.answers or any(row.difference for row in table.rows):
        figures.append(ANSWERS if table.answers else DIFFERENCES)
        differences_figure(table, folder / figures[-1])
    pages = compose_pages(
        table, groups, title=title, failures=failures, study=study, figures=figures
    )
    texts = {TABLE: table.csv(), **pages}
    if table.answers:
        texts[ANSWERS_CSV] = answers_csv(table.answers)
    for name, text in texts.items():
        with replace_atomically(folder / name) as temporary:
            temporary.write_text(text, "utf-8", newline="")
    return folder / PAGE


def compose_pages(
    table: ReportTable,
    groups: Groups,
    *,
    title: str,
    failures: Mapping[str, str] | None = None,
    study: "Study | None" = None,
    figures: Sequence[str] = (),
) -> dict[str, str]:
    """Render `report.md` and `details.md`. Names from run folders are escaped."""
    groups = table.labeled(groups)
    runs = [run for group in groups.values() for run in group]
    notes = [*table.notes(), *table.cautions]
    notes += [f"The run {name} failed: {text}" for name, text in (failures or {}).items()]
    answers: dict[str, list[Answer]] = {}
    for answer in table.answers:
        answers.setdefault(answer.question, []).append(answer)
    has_targets = any(run.targets for run in runs)
    is_crafted = any(domain.startswith(CRAFTED) for run in runs for domain in run.domains)
    used = {rule for run in runs for rule in choices(run)}
    published = study.published if study else None
    templates = markdown_environment("report", trim_blocks=True)
    content = dict(
        title=title,
        run=runs[0],
        config=runs[0].config,
        validation_images=runs[0].size(VALIDATION),
        differ=shared_differences(groups),
        own_options=_own_options(groups),
        seeds=sorted({run.seed for run in runs}),
        batch_statistics=sorted({r.batch_statistics for r in runs if r.batch_statistics}),
        software=sorted({name for run in runs for name in run.software}),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        figures=figures,
        table=table,
        rows=table.table(),
        further=table.further(),
        notes=notes,
        variants=variant_differences(groups),
        min_seeds=MIN_SEEDS,
        burn_in=BURN_IN_PERIODS,
        source=published.source if published else "",
        published=published_table(table, published) if published else None,
        answers={question: answers_table(own) for question, own in answers.items()},
        ranking=ranking_table(table, study.rankings) if study else None,
        targets=targets_table(groups) if has_targets else None,
        fluctuation=fluctuation_table(groups),
        selection=selection_table(groups) if has_targets else None,
        rules={rule: meaning for rule, meaning in RULES.items() if rule in used},
        families=DISJOINT,
        crafted=crafted_table(groups) if is_crafted else None,
        gradients=gradients_table(groups),
    )
    return {
        name: templates.get_template(f"{name}.jinja").render(content) for name in (PAGE, DETAILS)
    }


def _own_options(groups: Groups) -> dict[str, str]:
    """Format the announced options of each row, or of one row per method if there are many."""
    first = {group[0].method: name for name, group in reversed(list(groups.items()))}
    names = groups if len(groups) <= MANY else first.values()
    options = {}
    for name, group in groups.items():
        settings, own = group[0].settings, group[0].config.get(group[0].config["method"], {})
        values = {
            f.name: own.get(f.name)
            for f in (fields(settings) if settings else ())
            if f.metadata["announced"] and own.get(f.metadata["part_of"]) != OFF
        }
        texts = [
            f"{key} {v:g}" if isinstance(v, float) else f"{key} {v}"
            for key, v in values.items()
            if v is not None
        ]
        if texts and name in names:
            options[name] = ", ".join(texts)
    return options


def published_table(table: ReportTable, published: "Published") -> Table | None:
    """Compare rows with published accuracies. Return None if no row was published.

    Means are over the targets that all these rows have, both here and in the publication.
    """
    theirs = published.accuracy
    rows = [r for r in table.rows if r.targets.keys() & theirs.get(r.method, {}).keys()]
    rows.sort(key=lambda row: list(theirs).index(row.method))
    first = rows[0].targets if rows else ()
    targets = [target for target in first if all(target in theirs[row.method] for row in rows)]
    if not targets:
        return None
    lines: list[list[str]] = []
    for row in rows:
        own = theirs[row.method]
        ours = {s: float(np.mean([row.targets[t].by_seed[s] for t in targets])) for s in row.seeds}
        mean = float(np.mean([own[t] for t in targets]))
        if row is rows[0]:
            base, base_mean = ours, mean
        gains = [ours[seed] - base[seed] for seed in ours if seed in base]
        gain = f"{np.mean(gains):+.1f} / {mean - base_mean:+.1f}" if gains else "-"
        cells = [f"{spread(row.targets[t].values)} / {own[t]:.1f}" for t in targets]
        cells += [f"{spread(list(ours.values()))} / {mean:.1f}", "-" if row is rows[0] else gain]
        lines.append([row.label, str(len(row.seeds)), *cells])
    return Table(["method", "seeds", *targets, "mean", f"vs {rows[0].method}"], lines)


def ranking_table(table: ReportTable, rankings: Mapping[str, Sequence[str]]) -> Table | None:
    """Correlate source-only scores with the target mean. Return None if nothing can be ranked."""
    lines = []
    for name, methods in rankings.items():
        rows = [row for row in table.rows if row.method in methods and row.score is not None]
        if len(rows) >= _MIN_RANKED:
            texts = (rank_correlation(rows, score) for score in ("source val", CRAFTED_MEAN))
            lines.append([name, str(len(rows)), *texts])
    if not lines or table.score == CRAFTED_MEAN:  # no targets
        return None
    return Table(["rows", "n", "source val", CRAFTED_MEAN], lines)


def rank_correlation(rows: Sequence[Row], score: str) -> str:
    """Correlate a column with the target mean, formatted as `0.92 (0.45 to 0.83)`."""
    pairs = [(row.values.get(score), row.score) for row in rows]
    known = [spread.by_seed.keys() if spread else set() for pair in pairs for spread in pair]
    common = sorted(set.intersection(*map(set, known)))
    if not common:
        return "-"
    values = np.array([[[s.by_seed[n] for n in common] for s in pair if s] for pair in pairs])
    scores, targets = values[:, 0], values[:, 1]  # (rows, seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant values give NaN
        correlate = scipy_stats().spearmanr
        whole = correlate(scores.mean(1), targets.mean(1)).statistic
        single = [correlate(*pair).statistic for pair in zip(scores.T, targets.T, strict=True)]
    single = [value for value in single if np.isfinite(value)]
    if not np.isfinite(whole):
        return "-"
    within = f" ({min(single):.2f} to {max(single):.2f})" if len(single) > 1 else ""
    return f"{whole:.2f}{within}"
