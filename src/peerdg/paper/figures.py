"""Make the figures of the paper and the distances in its tables with `peerdg.analyze`."""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from peerdg.analyze.cka import CKA, cka, draw_cka
from peerdg.analyze.connectivity import LinearPath, connectivity, draw_paths
from peerdg.analyze.drawing import curves, panels, save
from peerdg.analyze.networks import AnalyzedRun
from peerdg.analyze.otdd import Settings, analyze_otdd, otdd
from peerdg.augment.randaugment import RandAugment
from peerdg.data.benchmarks import BENCHMARKS
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.evaluate.selection import Trajectory
from peerdg.evaluate.statistics import scipy_stats
from peerdg.methods.peer import PEER
from peerdg.methods.registry import settings_of
from peerdg.paper.catalogue import MEAN, Item
from peerdg.paper.cells import variance
from peerdg.report.figures import COLORS, pyplot
from peerdg.run.prepare import load_splits

if TYPE_CHECKING:
    from peerdg.paper.run import Results

IMAGES = 1000  # per domain
DISTANCE = Settings(samples=500, repeats=5)
POLICIES = tuple(product((1, 2, 3, 4), (5, 10, 15, 20, 25, 30)))  # num_ops, magnitude
LATE = 100  # epoch of the paper's late snapshot
Find = Callable[["Results", str], Mapping[int, Any]]  # returns the runs of a row, by seed


def draw(item: Item, results: "Results", path: Path) -> dict[str, Any]:
    """Draw a figure from the runs on one data set, and return its numbers."""
    analyses = {"curves": _curves, "otdd": _grid, "connectivity": _paths, "cka": _similarity}
    return {"data": results.data, **analyses[str(item.analysis)](item, results, path)}


def _curves(item: Item, results: "Results", path: Path) -> dict[str, Any]:
    """Draw the target accuracy of the first seed, because a mean of seeds hides fluctuation."""
    figure, axes = panels(1, 1, side=5)
    lines, variances = {}, {}
    rows = _shared(item, results, lambda _, row: {run.seed: run for run in results.of(row)})
    for row, runs in rows.items():
        run = next(iter(runs.values()))
        first = Trajectory.from_records(run.evaluations, model=run.deployed)
        lines[row] = [first.mean(epoch, first.targets) for epoch in first.accuracy]
        values = {seed: variance(each, each.deployed) for seed, each in runs.items()}
        variances[row] = {seed: each[MEAN] for seed, each in values.items() if each}
    curves(axes[0, 0], list(first.accuracy), lines, f"target mean on {results.data}, %")
    axes[0, 0].set_xlabel(f"epoch, seed {run.seed}")
    save(figure, path)
    return {"variance": variances, "seeds": list(runs)}


def _shared(item: Item, results: "Results", find: Find) -> dict[str, dict[int, Any]]:
    """Find the runs of each row that has any, by seed. Leave out seeds that another row lacks."""
    rows = {row: find(results, row) for row in filter(results.of, item.methods)}
    seeds = sorted(set.intersection(*map(set, rows.values())))
    if not seeds:
        raise ConfigError(f"These rows have no common seed: {', '.join(rows)}.")
    return {row: {seed: runs[seed] for seed in seeds} for row, runs in rows.items()}


@cache
def _domains(results: "Results") -> tuple[Domain, ...]:
    """Load the clean training images and the targets, with the options of the runs."""
    if results.plan is None:
        return ()
    config = next(iter(results.plan.plan.members.values())).config
    splits = load_splits(config)
    return (splits.train, *splits.targets.values())


@cache
def distances(results: "Results") -> dict[str, dict[int, float]]:
    """Return ½ OTDD² between source and targets, by target and repeat."""
    source, *targets = _domains(results)
    values = {target.name: otdd(source, target, DISTANCE).values for target in targets}
    values[MEAN] = tuple(map(fmean, zip(*values.values(), strict=True)))
    return {name: dict(enumerate(each)) for name, each in values.items()}


def _grid(item: Item, results: "Results", path: Path) -> dict[str, Any]:
    """Draw the distance between the source and its augmented images, by policy."""
    policies = [RandAugment(*policy) for policy in POLICIES]
    domains = _domains(results)
    analysis = analyze_otdd(domains, DISTANCE, augmentations=policies)
    analysis.save(path.with_suffix(""))
    for suffix in (".png", ".svg"):
        (path.with_suffix("") / f"otdd{suffix}").replace(path.with_suffix(suffix))
    grid = [[*policy, *each.values] for policy, each in analysis.grid.items()]
    num_ops, magnitude, *repeats = zip(*grid, strict=True)
    spearman = scipy_stats().spearmanr
    strength = {
        name: {number: float(spearman(values, each)[0]) for number, each in enumerate(repeats)}
        for name, values in (("num_ops", num_ops), ("magnitude", magnitude))
    }
    return {"grid": grid, "strength": strength, "seeds": []}  # random samples instead


def _paths(item: Item, results: "Results", path: Path) -> dict[str, Any]:
    """Draw the accuracy between the first and a late snapshot. All seeds count, one is drawn."""
    drawn: dict[str, dict[tuple[str, str], LinearPath]] = {}
    gains: dict[str, dict[int, float]] = {}
    for row, runs in _shared(item, results, _open).items():
        for seed, opened in runs.items():
            late = LATE if LATE in opened.epochs else opened.epochs[-1]
            ends, domains = (opened.network(0), opened.network(late)), opened.domains(IMAGES)
            line = connectivity(*ends, domains, size=opened.size, clean=opened.clean)
            gains.setdefault(row, {})[seed] = line.target_mean["gain"]
            drawn.setdefault(row, {("epoch 0", f"epoch {late}"): line})
    draw_paths(drawn, path)
    return {"gain": gains, "seeds": list(runs)}


def _similarity(item: Item, results: "Results", path: Path) -> dict[str, Any]:
    """Draw the CKA of the proxy during training with its start or with the deployed network."""
    drawn: dict[str, dict[str, CKA]] = {}
    numbers: dict[str, dict[int, dict[int, float]]] = {}
    against = item.settings["against"]
    for row, runs in _shared(item, results, _open).items():
        for number, (seed, opened) in enumerate(runs.items()):
            epochs = opened.spread(4)
            for epoch in (epochs[0], epochs[-1]) if item.settings["panels"] == 2 else epochs:
                result = _cka(opened, epoch, "init" if against == "start" else "task")
                if number == 0:
                    drawn.setdefault(row, {})[f"epoch {epoch}"] = result
                mean = fmean(result.diagonal.values())
                numbers.setdefault(row, {}).setdefault(epoch, {})[seed] = mean
    draw_cka(drawn, path, about=f"CKA: proxy (rows) and {against} network (columns)")
    return {"cka": numbers, "against": against, "seeds": list(runs)}


@cache
def _open(results: "Results", row: str) -> dict[int, AnalyzedRun]:
    """Open the runs of a row, by seed."""
    root = None if results.root is None else str(results.root)
    opened = {s: AnalyzedRun(folder, root=root) for s, folder in results.folders(row).items()}
    found = {seed: run for seed, run in opened.items() if run.epochs}
    if not found:
        raise ConfigError(f"The records of {row} have no run folder with snapshots next to them.")
    ends = {results.of(row)[0].config["train"]["epochs"], *(r.epochs[-1] for r in found.values())}
    if len(ends) > 1:  # then they say nothing about the networks after `until` epochs
        raise ConfigError(f"The folders of {row} end after epochs {', '.join(map(str, ends))}.")
    return found


@cache
def _cka(run: AnalyzedRun, epoch: int, other: str) -> CKA:
    return cka(run.network(epoch), run.network(other), run.source_images(IMAGES))


def draw_schematic(item: Item, path: Path) -> None:
    """Draw circles, boxes and arrows, with names from the code."""
    names: dict[str, Any] = {name: settings_of(name)() for name in ("peer", "teacher")}
    names |= {"task": PEER.own_deployed, "augment": RandAugment.__name__}
    names["digits"] = BENCHMARKS["digits"]
    diagrams, centered = item.settings["diagram"], {"ha": "center", "va": "center", "fontsize": 9}
    figure, axes = pyplot().subplots(1, len(diagrams), figsize=(10, 3.3), layout="constrained")
    for axis, diagram in zip(axes, diagrams, strict=True):
        axis.set(xlim=(-0.5, 11), ylim=(0, 6.3), aspect="equal")
        axis.axis("off")
        axis.set_title(diagram["title"].format(**names), fontsize=9)
        for number, (x, y, radius, name) in enumerate(diagram.get("circles", ())):
            edge = {"ec": COLORS[number], "ls": ("-", "--", ":", "-.")[number], "lw": 2}
            axis.add_patch(pyplot().Circle((x, y), radius, fill=False, **edge))
            top = 0.75 * radius if radius > 1 else 0  # a large circle has others inside
            axis.text(x, y + top, name.format(**names), **centered)
        boxes, frames = diagram.get("boxes", {}), {}
        for number, (key, (x, y, name)) in enumerate(boxes.items()):
            frame = {"boxstyle": "round,pad=0.5", "fc": "white", "ec": COLORS[number], "lw": 2}
            text = axis.text(x, y, name.format(**names), bbox=frame, **centered)
            frames[key] = text.get_bbox_patch()
        for start, end, name in diagram.get("arrows", ()):
            (x, y), (to_x, to_y) = boxes[start][:2], boxes[end][:2]
            ends = {"patchA": frames[start], "patchB": frames[end], "shrinkA": 3, "shrinkB": 3}
            axis.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", **ends})
            place = ((x + to_x) / 2 + 0.15, (y + to_y) / 2)
            axis.text(*place, name.format(**names), fontsize=8, va="center")
    save(figure, path)
