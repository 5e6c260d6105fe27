"""What the tables of runs and comparisons show."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from peerdg.data import VALIDATION
from peerdg.evaluate.fluctuation import BURN_IN_PERIODS
from peerdg.evaluate.statistics import accuracy_spread, accuracy_text, few_images, spread
from peerdg.report.result import RunResult
from peerdg.report.runs import read_run
from peerdg.report.variants import by_variant
from peerdg.terminal import Table

CROSS_ENTROPY = "cross_entropy"  # the term with which others are compared
CRAFTED_MEAN = "crafted val"  # mean over the families that RandAugment does not train on


def final_table(path: Path) -> Table:
    """Tabulate the final accuracy of each observed model of one run on each domain.

    Without a target, the mean over the crafted families that have a vote stands in its place.
    """
    return final_accuracies(read_run(path))


def final_accuracies(run: RunResult) -> Table:
    """Return the rows of `final_table`."""
    domains = [VALIDATION, *run.targets] if VALIDATION in run.final(run.deployed) else run.targets
    summary = ["target mean"] if run.targets else [CRAFTED_MEAN] if run.voting else []
    rows = []
    for model in run.models:
        final = run.final(model)
        name = f"{run.marked_method} {model}" + (" (deployed)" if model == run.deployed else "")
        cells = [accuracy_text(final[d], run.images(d)) for d in domains]
        rows.append([name, *cells, *(_summary(run, model) for _ in summary)])
    return Table(["accuracy %", *domains, *summary], rows)


def _summary(run: RunResult, model: str) -> str:
    """Format the target mean, or without targets the crafted score; `-` if there is neither."""
    score = run.score(model)
    images = run.images(*(run.targets or run.voting))
    return "-" if score is None else f"{score:.1f}{few_images(images)}"


def runs_table(runs: Sequence[RunResult]) -> Table:
    """Make a table with one row per run folder."""
    table = listed_runs(runs)
    return Table(table.columns, table.rows, is_text=True)


def listed_runs(runs: Sequence[RunResult]) -> Table:
    """Return the rows of `runs_table`; target mean and crafted score where a run has them."""
    without = any(run.evaluations and not run.targets for run in runs)
    targets = not without or any(run.targets for run in runs)
    accuracies = {VALIDATION: True, "target mean": targets, CRAFTED_MEAN: without}
    shown = [number for number, name in enumerate(accuracies) if accuracies[name]]
    rows = []
    for run in runs:
        epochs = max((r["epoch"] for r in run.records if r.get("phase") == "train"), default=0)
        done = f"{epochs}/{run.config['train']['epochs']}"
        found = _last_accuracies(run)
        rows.append([str(run.path), run.data, run.marked_method, str(run.seed), run.status, done,
                     *(found[number] for number in shown)])  # fmt: skip
    columns = ["run", "data", "method", "seed", "status", "epochs"]
    return Table([*columns, *(name for name in accuracies if accuracies[name])], rows)


def _last_accuracies(run: RunResult) -> list[str]:
    """Format validation, target mean and crafted score of the deployed model; `-` for none."""
    if not run.evaluations or run.status == "running":  # may be half written
        return ["-", "-", "-"]
    accuracy = run.final(run.deployed).get(VALIDATION)
    images = run.images(VALIDATION)
    validation = "-" if accuracy is None else accuracy_text(accuracy, images, with_n=False)
    score = _summary(run, run.deployed)
    return [validation, *([score, "-"] if run.targets else ["-", score])]


def comparison(runs: Sequence[RunResult]) -> Table:
    """Compare methods, one row each: accuracy of the deployed model, fluctuation, seconds.

    Without targets, the mean over the crafted families that have a vote is in their place.
    Networks with batch normalisation name the rule by which their statistics were made.
    Mean ± sample standard deviation over seeds. Fluctuation is the variance of the accuracy over
    evaluations every k epochs, the first five left out, mean over targets.
    """
    rows = []
    groups = by_variant(runs)
    targets = any(run.targets for group in groups.values() for run in group)
    for name, group in groups.items():
        means = [run.score(run.deployed) for run in group]
        source = [final[VALIDATION] for final in _finals(group) if VALIDATION in final]
        images = group[0].images(VALIDATION)
        rows.append(
            [
                name,
                str(len(group)),
                spread([mean for mean in means if mean is not None]),
                accuracy_spread(source, images),
                _fluctuation(group, "trained"),
                _fluctuation(group, "deployed"),
                spread([run.seconds for run in group], digits=0),
            ]
        )
    summary = "target mean" if targets else CRAFTED_MEAN
    columns = ["method", "seeds", summary, "source val", "var trained", "var deployed", "seconds"]
    rules = [group[0].batch_statistics for group in groups.values()]
    if any(rules):
        columns.append("batch statistics")
        rows = [[*row, rule or "-"] for row, rule in zip(rows, rules, strict=True)]
    return Table(columns, rows)


def targets_table(runs: Sequence[RunResult]) -> Table:
    """Tabulate the deployed model's accuracy, methods against targets."""
    groups = by_variant(runs)
    targets = list(dict.fromkeys(t for group in groups.values() for t in group[0].targets))
    rows = [
        [name, *(_accuracies(group, target) for target in targets)]
        for name, group in groups.items()
    ]
    return Table(["accuracy %", *targets], rows)


def fluctuation_table(runs: Sequence[RunResult], *, burn_in_periods: int) -> Table:
    """Tabulate fluctuation statistics of each observed model, mean over targets and seeds."""
    shown = ("var", "std", "range", "max_drawdown", "mean_abs_step", "detrended_var", "gap")
    rows = []
    for name, group in by_variant(runs).items():
        for model in group[0].models:
            found = [run.fluctuation(model, burn_in_periods=burn_in_periods) for run in group]
            stats = [f.mean for f in found if f is not None]
            whole = [f.of_mean.var for f in found if f is not None]
            cells = [spread([getattr(s, field) for s in stats], digits=2) for field in shown]
            rows.append([f"{name} {model}", *cells, spread(whole, digits=2)])
    return Table(["model", *(s.replace("_", " ") for s in shown), "var of mean"], rows)


def _accuracies(group: Sequence[RunResult], domain: str) -> str:
    """Collect the final accuracy of each run's deployed model on one domain."""
    values = [final[domain] for final in _finals(group) if domain in final]
    return accuracy_spread(values, group[0].images(domain))


def _finals(group: Sequence[RunResult]) -> list[dict[str, float]]:
    return [run.final(run.deployed) for run in group]


def _fluctuation(group: Sequence[RunResult], which: str) -> str:
    """Format the variance of the trained or deployed model; `-` for one that is both."""
    if which == "deployed" and group[0].deployed == group[0].trained:
        return "-"
    found = [run.fluctuation(getattr(run, which), burn_in_periods=BURN_IN_PERIODS) for run in group]
    return spread([f.mean.var for f in found if f is not None], digits=2)


def gradients_table(runs: Sequence[RunResult]) -> Table | None:
    """Tabulate how strongly each loss term pulls at the encoder, against cross-entropy.

    Norms of gradients on a fixed batch at the start of each period, as a method records them, with
    the weight of the term; means over seeds. None if no run has any.
    """
    rows = []
    for name, group in by_variant(runs).items():
        for term in _gradient_terms(group):
            shares = [_shares(run, term) for run in group]
            shown = [(s[0], median(s), s[-1]) for s in shares if s]
            if shown:
                rows.append([name, term, *(f"{fmean(v):.3g}" for v in zip(*shown, strict=True))])
    columns = ["method", "term", "first period", "median", "last period"]
    return Table(columns, rows) if rows else None


def _gradient_terms(group: Sequence[RunResult]) -> list[str]:
    found = (r.get("gradients") or {} for run in group for r in run.records)
    return sorted({term for norms in found for term in norms} - {CROSS_ENTROPY})


def _shares(run: RunResult, term: str) -> list[float]:
    """Divide the norm of the term's gradient by that of cross-entropy, in each period."""
    found = [r["gradients"] for r in run.records if r.get("gradients")]
    return [n[term] / n[CROSS_ENTROPY] for n in found if n.get(CROSS_ENTROPY) and term in n]


def profile_table(run: RunResult) -> Table:
    """Tabulate seconds and share of each stage of one profiled run, the longest first."""
    profile = run.profile or {"seconds": 0.0, "stages": {}}
    whole = profile["seconds"]
    longest_first = sorted(profile["stages"].items(), key=lambda item: -item[1]["seconds"])
    rows = [
        [name, f"{spent['seconds']:.2f}", _share(spent["seconds"], whole), _each(spent)]
        for name, spent in longest_first
    ]
    total = ["all", f"{whole:.2f}", _share(whole, whole), ""]
    return Table(["stage", "seconds", "share", "ms per call"], [*rows, total])


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _each(spent: dict[str, float]) -> str:
    return f"{1e3 * spent['seconds'] / spent['calls']:.2f}" if spent["calls"] else "-"
