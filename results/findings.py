"""What each part is worth in every study: the table of results/studies.md, and the figures.

    python results/findings.py           # write them, and table and figure of the README
    python results/findings.py --check   # exit code 1 if a table is not that of the records

Reads `answers.csv` of each study, which `peerdg bench` wrote, and the records of the demo.
"""

import csv
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from peerdg.evaluate.fluctuation import accuracy_series
from peerdg.evaluate.statistics import Difference, paired_difference, spread
from peerdg.report.compare import difference_text, other_crafted_images
from peerdg.report.figures import (
    COLORS,
    LEGEND,
    draw_difference,
    name_questions,
    name_rows,
    pyplot,
    save_figure,
    tick_ratios,
)
from peerdg.report.runs import RunResult, load_runs

RESULTS = Path(__file__).parent
PAGE = RESULTS / "studies.md"
FIGURE = RESULTS.parent / "docs/findings.png"
README, README_FIGURE = RESULTS.parent / "README.md", RESULTS.parent / "docs/readme.png"
BEGIN, END = "<!-- python results/findings.py: begin -->\n", "<!-- end -->\n"

STUDIES = {"mini": "small digits", "digits": "real digits", "photos": "photos"}
READINGS = ("readings", "digits-readings")
PARTS = {  # what is added: the rows that are compared
    "augmentation": ("randaugment", "erm"),
    "averaging (P-ENS)": ("p-ens", "randaugment"),
    "averaging (EMA)": ("ema", "randaugment"),
    "regularizer, without averaging": ("peer-latest", "randaugment"),
    "regularizer, on top of averaging": ("peer", "p-ens"),
    "PEER as a whole": ("peer", "randaugment"),
}
ACCURACY, LATE, STEADINESS = "target mean", "late mean", "log steadiness"
MEASURES = {  # as columns of `answers.csv`: as lines of the table
    ACCURACY: "**{part}**: last epoch",
    LATE: "last five evaluations",
    STEADINESS: "steadiness",
}

Answers = Mapping[tuple[str, str], Mapping[str, Difference]]  # by pair and measure


def read_answers(study: str) -> Answers:
    """Read the differences of a study."""
    found: dict[tuple[str, str], dict[str, Difference]] = {}
    with (RESULTS / study / "answers.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            pair = (line["method"], line["partner"])
            seeds = (entry.split(":") for entry in line["by seed"].split())
            found.setdefault(pair, {})[line["measure"]] = Difference(
                {int(seed): float(value) for seed, value in seeds},
                float(line["difference"]),
                float(line["t margin"]) if line["t margin"] else None,
            )
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
    return difference_text(found, is_ratio=measure == STEADINESS)


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
        is_ratio = measure == STEADINESS
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
    axes[2].set_xlabel("steadiness: ratio,\nbelow 1 is steadier")
    tick_ratios(axes[2])
    name_rows(
        axes[0], [_row_name(study, studies.get(study, {}), PARTS[part]) for part, study in lines]
    )
    drawn.suptitle(
        "What each part adds, by study. Blue: better. Orange: worse. "
        "Gray: fewer than five seeds, or the interval includes 0.\n"
        + LEGEND,
        x=0.01, ha="left", fontsize=9.5,
    )  # fmt: skip
    save_figure(drawn, path, dpi=160)


def _row_name(study: str, answers: Answers, pair: tuple[str, str]) -> str:
    """Name a study, and how many seeds a difference is of if others of the study have more."""
    return STUDIES.get(study, "") + _fewer(answers.get(pair, {}).get(ACCURACY), answers)


def _fewer(found: Difference | None, answers: Answers) -> str:
    """Format as ` (one seed)` if a difference is of fewer seeds than others of its study."""
    is_fewer = found is not None and found.n < _most_seeds(answers)
    return f" ({_count(found.n)})" if found is not None and is_fewer else ""


def demo_runs() -> dict[str, list[RunResult]]:
    """Group the runs of both demos, six seeds, by method."""
    groups: dict[str, list[RunResult]] = {}
    for run in (*load_runs(RESULTS / "demo"), *load_runs(RESULTS / "demo-345")):
        groups.setdefault(run.method, []).append(run)
    return groups


def demo_table(groups: Mapping[str, list[RunResult]]) -> str:
    """Tabulate accuracy on unseen domains and steadiness of each method of the demo."""
    lines = ["| method | accuracy | vs. ERM | steadiness |", "|---|--:|--:|--:|"]
    erm = {run.seed: run.score(run.deployed) for run in groups["erm"]}
    for method, runs in groups.items():
        scores = [run.score(run.deployed) for run in runs]
        gains = [run.score(run.deployed) - erm[run.seed] for run in runs]
        steps = [run.fluctuation(run.deployed).mean.detrended_var ** 0.5 for run in runs]
        gain = "" if method == "erm" else f"{np.mean(gains):+.1f}"
        lines.append(f"| `{method}` | {spread(scores)} | {gain} | {np.mean(steps):.1f} |")
    return "\n".join(lines) + "\n"


def demo_figure(groups: Mapping[str, list[RunResult]], path: Path) -> None:
    """Draw accuracy on unseen domains over training: each seed thin, their mean thick."""
    names = {"randaugment": "augmentation only", "peer": "PEER", "erm": "plain training (ERM)"}
    drawn, axis = pyplot().subplots(figsize=(7.6, 3.6), layout="constrained")
    for color, (method, name) in zip((COLORS[1], COLORS[0], COLORS[6]), names.items(), strict=True):
        runs = groups[method]
        epochs = sorted({record["epoch"] for record in runs[0].evaluations})
        curves = np.array([_target_mean(run) for run in runs])
        axis.plot(epochs, curves.T, color=color, lw=0.7, alpha=0.35)
        axis.plot(epochs, curves.mean(0), color=color, lw=2.6)
        axis.annotate(name, (epochs[-1], curves[:, -1].mean()), color=color,
                      xytext=(8, {"peer": 5, "randaugment": -5}.get(method, 0)),
                      textcoords="offset points", va="center", annotation_clip=False)  # fmt: skip
    axis.set_xlabel("epoch")
    axis.set_ylabel("accuracy on unseen domains, %")
    axis.set_xlim(0, epochs[-1])
    axis.set_xticks(range(0, epochs[-1] + 1, 4))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    save_figure(drawn, path, dpi=160)


def _target_mean(run: RunResult) -> np.ndarray:
    series = accuracy_series(run.evaluations, model=run.deployed, every=1, burn_in_periods=-1)
    return np.mean(list(series.values()), axis=0)


def runs_by_row(study: str) -> dict[str, dict[int, RunResult]]:
    """Return the runs of each row of a study, by seed."""
    rows: dict[str, dict[int, RunResult]] = {}
    for run in load_runs(RESULTS / study):
        rows.setdefault(run.row, {})[run.seed] = run
    return rows


def readings_table(study: str, reference: str = "p-ens") -> str:
    """Tabulate each row of a study of readings: averaging gain, and difference to P-ENS."""
    rows = runs_by_row(study)
    targets = next(iter(rows[reference].values())).targets
    others = other_crafted_images(run for runs in rows.values() for run in runs.values())
    names = ["row", "averaging gain", "target mean", f"vs. `{reference}`", *targets, "crafted val"]
    lines = [names, ["---"] + ["--:"] * (len(names) - 1)]
    for name, runs in rows.items():
        partner = rows.get(f"{reference}-torchvision" if "torchvision" in name else reference, {})
        gain = {seed: averaging_gain(run) for seed, run in runs.items()}
        means = [run.score(averaged(run)) for run in runs.values()]
        crafted = [
            run.mean(averaged(run), run.voting) for seed, run in runs.items() if seed not in others
        ]
        cells = [difference_text(paired_difference(gain, dict.fromkeys(gain, 0.0)))]
        cells += [spread(means), difference_text(_against(runs, partner))]
        cells += [f"{_against(runs, partner, (t,)).mean:+.1f}" for t in targets]
        if runs is partner:
            cells[2:] = [""] * (len(cells) - 2)
        copies = (run.config.get("peer", {}).get("reset_proxy") for run in runs.values())
        if all(averaged(run) == run.trained for run in runs.values()) or all(copies):
            cells[0] = ""  # there is no average, or the network is a copy of it
        lines.append([f"`{name}`", *cells, f"{np.mean(crafted):.1f}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def learned_table() -> str:
    """Tabulate rows of study *learned* and their distance from ERM, each beside the paper's.

    The rows with the released schedule of ADA have an ERM of their own, `erm-32`.
    """
    rows = runs_by_row("learned")
    plan = tomllib.loads((RESULTS / "learned/plan.toml").read_text("utf-8"))
    paper = {row: np.mean([*targets.values()]) for row, targets in plan["published"].items()
             if row != "source"}  # fmt: skip
    lines = ["| row | target mean | paper | vs. ERM | paper |", "|---|--:|--:|--:|--:|"]
    for name, runs in rows.items():
        schedule = "-32" if name.endswith("-32") else ""
        marks = " †" * next(iter(runs.values())).is_reconstruction
        marks += " (inert)" * any(run.inert for run in runs.values())
        means = spread([run.score(averaged(run)) for run in runs.values()])
        cells = [f"`{name}`{marks}", means, "", "", ""]
        published = paper.get(name.removesuffix(schedule))
        if published:
            cells[2] = f"{published:.1f}"
        if name != f"erm{schedule}":
            cells[3] = difference_text(_against(runs, rows[f"erm{schedule}"]))
        if published and cells[3]:
            cells[4] = f"{published - paper['erm']:+.1f}"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def averaged(run: RunResult) -> str:
    """Return the name of the averaged network: one that is only evaluated, or the deployed one."""
    return next(iter(run.config["average"].get("also", ())), run.deployed)


def averaging_gain(run: RunResult) -> float:
    """Target mean of the averaged network minus the trained one, in the last quarter."""
    last = [r for r in run.evaluations if r["epoch"] > 0.75 * run.config["train"]["epochs"]]
    deployed, trained = (
        np.mean([r["accuracy"] for r in last if r["model"] == model and r["domain"] in run.targets])
        for model in (averaged(run), run.trained)
    )
    return float(deployed - trained)


def _against(
    runs: Mapping[int, RunResult], partner: Mapping[int, RunResult], targets: tuple[str, ...] = ()
) -> Difference:
    """Compare the last accuracy of two rows, seed by seed."""
    ours, theirs = (
        {seed: run.mean(averaged(run), targets or run.targets) for seed, run in each.items()}
        for each in (runs, partner)
    )
    return paired_difference(ours, theirs)


def main(arguments: list[str]) -> int:
    """Write tables and figures, or check that the tables are those of the records."""
    studies = {name: read_answers(name) for name in STUDIES}
    groups = demo_runs()
    is_current = True
    pages = [(PAGE, table(studies)), (README, demo_table(groups))]
    for study in READINGS:
        if (RESULTS / study / "runs.json").exists():
            pages.append((RESULTS / study / "README.md", readings_table(study)))
    pages.append((RESULTS / "learned/README.md", learned_table()))
    for page, new in pages:
        text = page.read_text("utf-8")
        if text.count(BEGIN) != 1 or text.count(END) != 1:
            sys.exit(f"{page} must hold these two lines once, around the table:\n{BEGIN}{END}")
        before, _, rest = text.partition(BEGIN)
        now, _, after = rest.partition(END)
        is_current &= now == new
        if arguments != ["--check"]:
            page.write_text(before + BEGIN + new + END + after, "utf-8")
    if arguments == ["--check"]:
        return int(not is_current)
    figure(studies, FIGURE)
    demo_figure(groups, README_FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
