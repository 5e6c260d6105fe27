"""Collect the accuracies of runs over their epochs, for the charts of a page."""

from typing import Any

from peerdg.data import VALIDATION
from peerdg.report.compare import CRAFTED_MEAN, Groups, choices
from peerdg.report.runs import RunResult
from peerdg.terminal import visible

POINTS = 200  # epochs per chart
_RULES = {"source-val": "best on validation", "crafted-val": "best on distorted copies"}
_TITLES = {VALIDATION: "Validation images", CRAFTED_MEAN: "Distorted validation images"}


def curves(groups: Groups) -> dict[str, Any]:
    """Return charts of the deployed and trained networks: one per target, and two of the source.

    All charts share the epochs `x`. If a run has more than `POINTS`, some are left out evenly.
    """
    runs = [run for group in groups.values() for run in group]
    known = {id(run): sorted({record["epoch"] for record in run.evaluations}) for run in runs}
    # The last epoch of each run is always shown.
    x = sorted({epoch for own in known.values() for epoch in own[:: -_step(own)]})
    targets = list(dict.fromkeys(target for run in runs for target in run.targets))
    charts: list[dict[str, Any]] = []
    for domain in (*targets, CRAFTED_MEAN, VALIDATION):
        series: list[dict[str, Any]] = [
            {"row": visible(name), "color": color, "seed": run.seed, "network": visible(network),
             "deployed": network == run.deployed, "y": _values(run, network, domain, x)}
            for color, (name, group) in enumerate(groups.items())
            for run in group
            for network in dict.fromkeys((run.deployed, run.trained))
        ]  # fmt: skip
        series = [each for each in series if any(value is not None for value in each["y"])]
        if series:
            charts.append({"title": visible(_TITLES.get(domain, domain)), "series": series})
    single = runs[0] if len(runs) == 1 else None
    return {
        "x": x,
        "thinned": any(_step(own) > 1 for own in known.values()),
        "charts": charts,
        "policies": policies(single) if single else [],
        "chosen": _chosen(single) if single else [],
    }


def _step(epochs: list[int]) -> int:
    return max(1, -(-len(epochs) // POINTS))


def _values(run: RunResult, network: str, domain: str, x: list[int]) -> list[float | None]:
    names = run.voting if domain == CRAFTED_MEAN else [domain]
    found: dict[int, list[float]] = {}
    for record in run.evaluations:
        if record["model"] == network and record["domain"] in names:
            found.setdefault(record["epoch"], []).append(record["accuracy"])
    return [round(sum(own) / len(own), 2) if (own := found.get(epoch)) else None for epoch in x]


def policies(run: RunResult) -> list[dict[str, Any]]:
    """List the epochs at which the augmentation policy changed."""
    found: list[dict[str, Any]] = []
    for epoch in run.epochs:
        if epoch["phase"] == "train" and epoch.get("policy"):
            text = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in epoch["policy"].items())
            if not found or found[-1]["text"] != text:
                found.append({"epoch": epoch["epoch"] - 1, "text": visible(text)})
    return found


def _chosen(run: RunResult) -> list[dict[str, Any]]:
    """Mark the deployed epoch if it was selected, else the epochs that source-only rules choose."""
    if run.config.get("select", "last") != "last":
        return [{"epoch": run.deployed_epoch, "text": "deployed"}]
    return [
        {"epoch": choice.epoch, "text": _RULES[rule]}
        for rule, choice in choices(run).items()
        if rule in _RULES
    ]
