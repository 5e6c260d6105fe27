"""What each part is worth in every study: the table and the figure of docs/findings.md.

    python results/findings.py           # writes both
    python results/findings.py --check   # exit code 1 if the table is not what the studies say

Reads `answers.csv` of each study, which `peerdg bench` wrote; nothing is computed anew.
"""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path

from peerdg.evaluate.statistics import Difference
from peerdg.report.compare import difference_text
from peerdg.report.figures import (
    LEGEND,
    draw_difference,
    name_questions,
    name_rows,
    pyplot,
    save_figure,
    tick_ratios,
)

RESULTS = Path(__file__).parent
PAGE = RESULTS.parent / "docs/findings.md"
FIGURE = RESULTS.parent / "docs/findings.png"
BEGIN, END = "<!-- python results/findings.py: begin -->\n", "<!-- end -->\n"

STUDIES = ("mini", "digits", "photos")
PARTS = {  # what is added: the rows that are compared
    "augmentation": ("randaugment", "erm"),
    "averaging (P-ENS)": ("p-ens", "randaugment"),
    "averaging (EMA)": ("ema", "randaugment"),
    "regulariser, without averaging": ("peer-latest", "randaugment"),
    "regulariser, on top of averaging": ("peer", "p-ens"),
    "PEER as a whole": ("peer", "randaugment"),
}
ACCURACY, LATE, FLUCTUATION = "target mean", "late mean", "log fluctuation"
MEASURES = {  # as columns of `answers.csv`: as lines of the table
    ACCURACY: "**{part}**: last epoch",
    LATE: "last five evaluations",
    FLUCTUATION: "variance",
}

Answers = Mapping[tuple[str, str], Mapping[str, Difference]]  # by pair and measure


def read_answers(study: str) -> Answers:
    """Read the differences of a study."""
    found: dict[tuple[str, str], dict[str, Difference]] = {}
    with (RESULTS / study / "answers.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            std, low, high, margin = (
                float(line[name]) if line[name] else None
                for name in ("std", "low", "high", "t margin")
            )
            pair, pairs = (line["method"], line["partner"]), int(line["pairs"])
            found.setdefault(pair, {})[line["measure"]] = Difference(
                pairs, float(line["difference"]), std, low, high, margin=margin,
                reason="equal in all seeds" if low is None and pairs > 1 else "",
            )  # fmt: skip
    return found


def table(studies: Mapping[str, Answers]) -> str:
    """Tabulate what each part is worth in points, last and late, and as a ratio of variances."""
    rows = []
    for part, pair in PARTS.items():
        for measure, label in MEASURES.items():
            cells = [_cell(answers, pair, measure) for answers in studies.values()]
            rows.append([label.format(part=part), *cells])
    columns = [f"{name} ({_seeds(answers)})" for name, answers in studies.items()]
    lines = [["", *columns], ["---"] + ["--:"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(answers: Answers, pair: tuple[str, str], measure: str) -> str:
    """Format a difference; it says so if it is of fewer seeds than others of the study."""
    found = answers.get(pair, {}).get(measure)
    text = difference_text(found, is_ratio=measure == FLUCTUATION, one_seed="")
    return text + _fewer(found, answers)


def _seeds(answers: Answers) -> str:
    return _count(_most_seeds(answers))


def _most_seeds(answers: Answers) -> int:
    return max(answers[pair][ACCURACY].n for pair in PARTS.values() if pair in answers)


def _count(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def figure(studies: Mapping[str, Answers], path: Path) -> None:
    """Draw the table: for each part a heading and a row for each study."""
    lines = [(part, study) for part in PARTS for study in ("", *studies)]
    plot = pyplot()
    drawn, axes = plot.subplots(ncols=3, sharey=True, figsize=(12.4, 7.6), layout="constrained")
    axes[0].set_ylim(len(lines) - 0.4, -0.6)
    for axis, measure in zip(axes, MEASURES, strict=True):
        is_ratio = measure == FLUCTUATION
        axis.axvline(0, color="#000000", lw=1)
        for place, (part, study) in enumerate(lines):
            found = studies.get(study, {}).get(PARTS[part], {}).get(measure)
            draw_difference(axis, place, found, is_ratio=is_ratio)
    name_questions(axes[0], ["" if study else part for part, study in lines])
    for axis, when in zip(axes, ("last epoch", "mean of the last five evaluations"), strict=False):
        axis.set_xscale("symlog", linthresh=3)
        axis.set_xlim(-30, 45)
        ticks = (-20, -5, -2, 0, 2, 5, 20)
        axis.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel(f"accuracy on unseen domains, points:\n{when}")
    axes[2].set_xlabel("fluctuation: ratio of variances,\nbelow 1 is steadier")
    tick_ratios(axes[2])
    name_rows(
        axes[0], [_row_name(study, studies.get(study, {}), PARTS[part]) for part, study in lines]
    )
    drawn.suptitle(
        "What each part is worth, by study; blue is better, orange worse, gray unclear\n"
        + LEGEND.partition("; dots")[0],
        x=0.01, ha="left", fontsize=9.5,
    )  # fmt: skip
    save_figure(drawn, path, dpi=160)


def _row_name(study: str, answers: Answers, pair: tuple[str, str]) -> str:
    """Name a study, and how many seeds a difference is of if others of the study have more."""
    return study + _fewer(answers.get(pair, {}).get(ACCURACY), answers)


def _fewer(found: Difference | None, answers: Answers) -> str:
    """Format as ` (one seed)` if a difference is of fewer seeds than others of its study."""
    is_fewer = found is not None and found.n < _most_seeds(answers)
    return f" ({_count(found.n)})" if found is not None and is_fewer else ""


def main(arguments: list[str]) -> int:
    """Write table and figure, or compare the table."""
    studies = {name: read_answers(name) for name in STUDIES}
    page = PAGE.read_text("utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        sys.exit(f"{PAGE} must hold these two lines once, around the table:\n{BEGIN}{END}")
    before, _, rest = page.partition(BEGIN)
    now, _, after = rest.partition(END)
    new = table(studies)
    if arguments == ["--check"]:
        return int(now != new)
    PAGE.write_text(before + BEGIN + new + END + after, "utf-8")
    figure(studies, FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
