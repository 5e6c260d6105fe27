"""Write the results of a bench: page, table as LaTeX and CSV, figures, and the records behind."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from peerdg.benches.figures import answers_figure, differences_figure, steadiness_figure
from peerdg.benches.published import published_section
from peerdg.benches.questions import CLEAR, answers_csv, answers_table
from peerdg.benches.ranking import ranking_section
from peerdg.benches.study import Study
from peerdg.benches.table import BenchTable
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.evaluate.statistics import RESAMPLES
from peerdg.files import remove, replace_atomically
from peerdg.report.comparison import PAGE, details, opening, write_records
from peerdg.report.result import RunResult
from peerdg.report.tables import targets_table
from peerdg.terminal import markdown_text

DIFFERENCES, STEADINESS, ANSWERS = "differences.png", "steadiness.png", "answers.png"
LATEX, CSV, ANSWERS_CSV = "table.tex", "table.csv", "answers.csv"


def write_bench(
    table: BenchTable,
    runs: Sequence[RunResult],
    folder: Path,
    *,
    title: str,
    failures: Mapping[str, str] | None = None,
    study: Study | None = None,
) -> Path:
    """Write `report.md` and everything beside it; returns the page.

    Args:
        table: The numbers.
        runs: The run of each method and seed.
        folder: Where to.
        title: Of the page.
        failures: Why runs failed, by their names.
        study: What the page is asked for besides the table; `table` has the answers.

    Raises:
        ConfigError: If the runs cannot stand side by side.
    """
    write_records(runs, folder, title=title)
    figures = {
        DIFFERENCES: differences_figure(table, folder / DIFFERENCES),
        STEADINESS: steadiness_figure(table, folder / STEADINESS),
        ANSWERS: answers_figure(table, folder / ANSWERS),
    }
    for name, is_drawn in figures.items():
        if not is_drawn:
            remove(folder / name)  # of an earlier call that had something to draw
    page = bench_page(
        table,
        runs,
        title=title,
        failures=failures,
        figures=[n for n in figures if figures[n]],
        study=study,
    )
    texts = {LATEX: table.latex(), CSV: table.csv(), PAGE: page}
    if table.answers:
        texts[ANSWERS_CSV] = answers_csv(table.answers)
    else:
        remove(folder / ANSWERS_CSV)
    for name, text in texts.items():
        with replace_atomically(folder / name) as temporary:
            temporary.write_text(text, "utf-8")
    return folder / PAGE


def bench_page(
    table: BenchTable,
    runs: Sequence[RunResult],
    *,
    title: str,
    failures: Mapping[str, str] | None = None,
    figures: Sequence[str] = (),
    study: Study | None = None,
) -> str:
    """Compose the page as Markdown."""
    study = study or Study()
    captions = {
        DIFFERENCES: f"Difference of each method to {table.reference}, with its interval",
        STEADINESS: "Accuracy against fluctuation, a point for each method",
        ANSWERS: "Differences of the pairs that the questions name",
    }
    pictures = {name: f"![{markdown_text(captions[name])}]({name})\n" for name in figures}
    notes = [f"- {markdown_text(note)}" for note in table.notes()]
    failed = [
        f"- {markdown_text(f'The run {name} failed: {failure}')}"
        for name, failure in (failures or {}).items()
    ]
    return "\n".join([
        *opening(runs, title=title),
        *_chosen(pictures, DIFFERENCES),
        table.table().markdown(),
        *([*notes, *failed, ""] if notes or failed else []),
        markdown_text(explanation(table)),
        "",
        *_chosen(pictures, STEADINESS),
        *published_section(table, study.published),
        *_answers(table, pictures),
        *ranking_section(table, study.rankings),
        *([targets_table(runs).markdown()] if any(run.targets for run in runs) else []),
        *details(runs),
    ])  # fmt: skip


def _chosen(pictures: Mapping[str, str], name: str) -> list[str]:
    return [pictures[name]] if name in pictures else []


def _answers(table: BenchTable, pictures: Mapping[str, str]) -> list[str]:
    """Compose the part about pairs of rows; empty if none was asked for."""
    if not table.answers:
        return []
    lines = [
        "## Questions",
        "",
        "Differences of runs with the same seed, with the interval of the table above and "
        f"{CLEAR} where Student's does not hold 0, either. Fluctuation is "
        "compared as a ratio of variances, by logarithms: below 1 is steadier. `trained` is the "
        "network that learns.",
        "",
        *_chosen(pictures, ANSWERS),
    ]
    for question in dict.fromkeys(found.question for found in table.answers):
        asked = [found for found in table.answers if found.question == question]
        lines += [f"**{markdown_text(question)}**", "", answers_table(asked).markdown()]
    return lines


def explanation(table: BenchTable) -> str:
    """Explain the columns of the table."""
    costs = (
        ""
        if table.plain is None
        else f" The columns with × are relative to {table.plain}: time per step, of each method's "
        "quickest seed, and memory."
    )
    return (
        "Accuracy in percent of the deployed network after the last epoch: mean ± standard "
        f"deviation over seeds. The difference to {table.reference} is of runs with the same seed, "
        f"with a 95 % bootstrap interval over seeds (BCa, {RESAMPLES:,} resamples). Fluctuation is "
        "the variance of the deployed network's target accuracy over evaluations every "
        f"{table.period} epochs, the same for all methods, the first {BURN_IN_PERIODS} of them "
        "left out, mean over targets; tables further down go by each method's own k."
        f"{_late(table)} 'by source-val' is the target mean of the epoch that is best on the "
        "source's validation images, and regret how far it "
        "stays behind the best epoch, which only the targets would show. Seconds are those of "
        f"training epochs, MB the peak memory of the run's process.{costs}"
    )


def _late(table: BenchTable) -> str:
    """Explain the late mean, if the table has it."""
    if not table.late_epochs:
        return ""
    epochs = ", or of longer runs ".join(f"{first} to {last}" for first, last in table.late_epochs)
    return (
        f" 'late mean' is the target mean over such evaluations of epochs {epochs}: it depends "
        "less on the moment at which training ends, but where accuracy still rises it is that of "
        "an earlier time, and averages that lag have more to lose by it."
    )
