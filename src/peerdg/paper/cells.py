"""Compute the numbers of one run for the cells of a table, by column."""

from collections.abc import Callable, Mapping
from statistics import fmean

from peerdg.evaluate.fluctuation import MINIMUM, accuracy_series, fluctuation
from peerdg.evaluate.selection import select
from peerdg.paper.catalogue import COLUMNS, MEAN
from peerdg.report.runs import RunResult

Values = Mapping[str, float]  # by column


def accuracy(run: RunResult, model: str) -> Values:
    """Return the final accuracy on each target, and the mean."""
    final = run.final(model)
    return _with_mean({target: final[target] for target in run.targets})


def variance(run: RunResult, model: str) -> Values:
    """Compute the variance of accuracy over evaluations, without the first five."""
    every = int(run.config["evaluate_every"])
    series = accuracy_series(run.evaluations, model=model, every=every)
    if not series or min(map(len, series.values())) < MINIMUM:
        return {}
    return _with_mean({target: fluctuation(values).var for target, values in series.items()})


def selected(run: RunResult, model: str) -> Values:
    """Return the target mean in the epoch chosen by source and by crafted validation."""
    chosen = select(run.evaluations, model=model).items()
    targets = {f"by {rule}": choice.target for rule, choice in chosen}
    return {name: value for name in COLUMNS["selected"] if (value := targets.get(name)) is not None}


def crafted(run: RunResult, model: str) -> Values:
    """Return the final accuracy on crafted validation images, and the target mean."""
    scores = (run.mean(model, run.voting), run.mean(model, run.targets))
    names = zip(COLUMNS["crafted"], scores, strict=True)
    return {name: score for name, score in names if score is not None}


MEASURES: dict[str, Callable[[RunResult, str], Values]] = {
    "accuracy": accuracy,
    "variance": variance,
    "selected": selected,
    "crafted": crafted,
}


def _with_mean(values: Values) -> Values:
    return {**values, MEAN: fmean(values.values())} if values else {}
