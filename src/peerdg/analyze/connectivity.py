"""Evaluate networks on the straight line between two networks (linear mode connectivity).

Frankle et al., "Linear Mode Connectivity and the Lottery Ticket Hypothesis", ICML 2020,
https://arxiv.org/abs/1912.05671.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from peerdg.analyze.drawing import curves, heat_map, panels, save
from peerdg.analyze.networks import TRAIN, require_alike
from peerdg.averages.base import blend
from peerdg.data import is_target
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError
from peerdg.evaluate.accuracy import evaluate_models
from peerdg.long_work import iterate
from peerdg.models.classifier import Classifier
from peerdg.models.statistics import recompute_statistics
from peerdg.report.figures import COLORS
from peerdg.terminal import visible


@dataclass(frozen=True)
class LinearPath:
    """Accuracy and loss of the networks θ(α) = α θ_a + (1 - α) θ_b, by domain."""

    alphas: tuple[float, ...]  # from 0 (b) to 1 (a)
    accuracy: Mapping[str, tuple[float, ...]]  # percent
    loss: Mapping[str, tuple[float, ...]]  # mean cross-entropy
    distance: float  # ‖θ_a - θ_b‖

    def barrier(self, domain: str, *, of: str = "error", linear: bool = False) -> float:
        """Return max_α E(θ(α)) - [E(θ_a) + E(θ_b)] / 2, with E the error in percent or the loss.

        With `linear`, return max_α [E(θ(α)) - α E(θ_a) - (1 - α) E(θ_b)].
        """
        alphas = np.array(self.alphas)
        e = 100 - np.array(self.accuracy[domain]) if of == "error" else np.array(self.loss[domain])
        baseline = alphas * e[-1] + (1 - alphas) * e[0] if linear else (e[0] + e[-1]) / 2
        return float((e - baseline).max())

    def gain(self, domain: str) -> float:
        """Return the accuracy at α = ½ minus the mean accuracy of the two ends, in points."""
        accuracy = self.accuracy[domain]
        return accuracy[len(accuracy) // 2] - (accuracy[0] + accuracy[-1]) / 2

    def summary(self, domain: str) -> dict[str, float]:
        """Return the gain and all barriers."""
        return {
            "gain": self.gain(domain),
            "error_barrier": self.barrier(domain),
            "error_barrier_linear": self.barrier(domain, linear=True),
            "loss_barrier": self.barrier(domain, of="loss"),
            "loss_barrier_linear": self.barrier(domain, of="loss", linear=True),
        }

    @property
    def target_mean(self) -> dict[str, float]:
        """Mean `summary` of the targets, or of all domains if there are none."""
        targets = [d for d in self.accuracy if is_target(d) and d != TRAIN] or list(self.accuracy)
        rows = [self.summary(domain) for domain in targets]
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def connectivity(
    a: Classifier,
    b: Classifier,
    domains: Mapping[str, Domain],
    *,
    points: int = 21,
    size: int | None = None,
    clean: Iterable[Tensor] | None = None,
) -> LinearPath:
    """Evaluate networks on the line between two networks, on each domain.

    Example: `connectivity(run.network("init"), run.network("last"), run.domains()).gain("svhn")`

    Args:
        a: Network at α = 1.
        b: Network at α = 0, with the same layers.
        domains: Images with labels in the networks' class order.
        points: Number of networks, odd, so that α = ½ is one of them.
        size: Side in pixels to resize images to. None keeps their size.
        clean: Batches of clean source images, to recompute batch statistics at every point. The
            statistics of the ends do not fit the networks between them.
    """
    require_alike([a, b])
    if points < 3 or points % 2 == 0:
        raise ConfigError(
            f"A path of {points} points has no middle.", hint="Use an odd number, at least 3."
        )
    alphas = tuple(number / (points - 1) for number in range(points))
    point = copy.deepcopy(b)
    records = []
    for alpha in iterate(alphas, "path"):
        point.load_state_dict(b.state_dict())
        blend(point, a, alpha)
        if clean is not None:
            recompute_statistics(point, clean)
        records.append(evaluate_models({"": point}, domains, size=size))
    by_domain = {
        measure: {
            name: tuple(float(r[measure]) for r in column)
            for name, column in zip(domains, zip(*records, strict=True), strict=True)
        }
        for measure in ("accuracy", "loss")
    }
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    distance = sum(float((p - q).detach().double().square().sum()) for p, q in pairs) ** 0.5
    return LinearPath(alphas, **by_domain, distance=distance)


def pairwise(
    networks: Mapping[str, Classifier], domains: Mapping[str, Domain], **options: Any
) -> dict[tuple[str, str], LinearPath]:
    """Compute `connectivity` for each pair of networks. `options` are its keyword arguments."""
    pairs = list(combinations(networks, 2))
    if not pairs:
        raise ConfigError("A path needs two different networks.", hint="Use --between init,last.")
    return {
        (a, b): connectivity(networks[a], networks[b], domains, **options)
        for a, b in iterate(pairs, "pairs")
    }


Pairs = Mapping[tuple[str, str], LinearPath]
"""Paths by the names of their ends, a and b."""


def draw_paths(runs: Mapping[str, Pairs], file: Path) -> None:
    """Draw accuracy (top) and loss (bottom) over α, with one column for the path of each run."""
    figure, axes = panels(2, len(runs))
    for (above, below), (run, pairs) in zip(axes.T, runs.items(), strict=True):
        (((a, b), path),) = pairs.items()
        curves(above, path.alphas, path.accuracy, "accuracy %")
        curves(below, path.alphas, path.loss, "loss")
        ends = f"from {visible(b)[-12:]} (0) to {visible(a)[-12:]} (1)"
        for axis in (above, below):
            axis.set_xlabel(f"{visible(run)[-20:]}: α, {ends}", fontsize=9, parse_math=False)
    save(figure, file)


def draw_pairs(runs: Mapping[str, Pairs], file: Path) -> None:
    """Draw the barrier (top) and mid-path gain (bottom) of all pairs, averaged over the targets.

    Each run has a column of matrices. The last column plots both values against the
    distance between the networks.
    """
    figure, axes = panels(2, len(runs) + 1)
    for row, measure in zip(axes, ("error_barrier_linear", "gain"), strict=True):
        means = {r: {pair: p.target_mean[measure] for pair, p in runs[r].items()} for r in runs}
        limit = max(abs(value) for pairs in means.values() for value in pairs.values()) or 1.0
        label = measure.replace("_", " ")
        for number, (run, pairs) in enumerate(means.items()):
            names = list(dict.fromkeys(name for pair in pairs for name in pair))
            matrix = [[pairs.get((a, b), pairs.get((b, a), 0.0)) for a in names] for b in names]
            limits, title = (-limit, limit), f"{run}: {label}"
            heat_map(row[number], matrix, names, title, limits, cmap="PuOr")
            distances, marker = [path.distance for path in runs[run].values()], "os^Dv"[number % 5]
            color, name = COLORS[number % len(COLORS)], visible(run)
            row[-1].scatter(distances, pairs.values(), marker=marker, color=color, label=name)
        row[-1].set_xlabel("distance between the weights", fontsize=9)
        row[-1].set_ylabel(f"{label}, points, mean of targets", fontsize=9)
        row[-1].grid(alpha=0.25)
        row[-1].legend(fontsize=8)
    save(figure, file)
