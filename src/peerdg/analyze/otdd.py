"""Compute the optimal transport dataset distance (OTDD) between labeled domains.

Alvarez-Melis and Fusi, "Geometric Dataset Distances via Optimal Transport", NeurIPS 2020,
https://arxiv.org/abs/2002.02923. PEER uses it to compare source, targets and augmented images.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import combinations, cycle, permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from peerdg import __version__
from peerdg.analyze.drawing import save
from peerdg.augment.randaugment import RandAugment
from peerdg.augment.view import resize
from peerdg.data.domain import Domain
from peerdg.evaluate.statistics import import_extra, spread
from peerdg.files import write_json
from peerdg.long_work import iterate
from peerdg.model import Model, load_model
from peerdg.models.backbones import described
from peerdg.models.classifier import images_per_pass
from peerdg.models.names import BACKBONES, check_backbone
from peerdg.options import option, validate
from peerdg.report.figures import COLORS, pyplot
from peerdg.rng import generator_for, seed_for
from peerdg.run.prepare import PUBLISHED, load_input_model
from peerdg.terminal import Table, visible

SIZE = 32  # default side in pixels for comparing pixels
UNIT = "½ OTDD²"
_PIVOTS = 10**8  # maximum number of steps of the exact solver
_ITERATIONS, _TOLERANCE = 10_000, 1e-6  # limits of the Sinkhorn solver


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of the distance."""

    samples: int = option(1000, "images per domain, in proportion to its classes", at_least=1)
    repeats: int = option(3, "random samples, for mean and standard deviation", at_least=1)
    seed: int = option(0, "seed of the samples", at_least=0)
    size: int | None = option(
        None, f"side of the images in pixels (default: {SIZE}, or the network's)", at_least=1
    )
    lambda_y: float = option(1.0, "weight of the distance between classes", at_least=0)
    reg: float = option(0.0, "entropic regularization in units of the cost", at_least=0)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Distance:
    """½ OTDD² between two domains, or between a domain and its augmented images."""

    first: str
    second: str
    values: tuple[float, ...]  # one for each repeat
    policy: tuple[int, int] | None = None  # num_ops and magnitude, if `second` is augmented

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def std(self) -> float:
        """Sample standard deviation, 0 for one repeat."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Analysis:
    """Distances, and the facts needed to compare them with others."""

    distances: tuple[Distance, ...]
    facts: dict[str, Any]

    @property
    def pairs(self) -> list[Distance]:
        """Distances between two domains."""
        return [d for d in self.distances if d.policy is None]

    @property
    def grid(self) -> dict[tuple[int, int], Distance]:
        """Distances between the first domain and its augmented images, by policy."""
        return {d.policy: d for d in self.distances if d.policy is not None}

    @property
    def grid_axes(self) -> tuple[list[int], list[int]]:
        """The values of num_ops and magnitude in the grid."""
        return sorted({k for k, _ in self.grid}), sorted({m for _, m in self.grid})

    def tables(self) -> list[Table]:
        """Format the pairs, and the grid with a row for each magnitude."""
        pairs = [[d.first, d.second, spread(d.values)] for d in self.pairs]
        num_ops, magnitudes = self.grid_axes
        grid = [[f"{m}", *(spread(self.grid[k, m].values) for k in num_ops)] for m in magnitudes]
        pair_table = Table(["domain", "domain", UNIT], pairs)
        grid_table = Table(["magnitude", *(f"num_ops {k}" for k in num_ops)], grid)
        return [table for table in (pair_table, grid_table) if table.rows]

    def save(self, folder: Path) -> None:
        """Write `otdd.json`, `otdd.png` and `otdd.svg`."""
        records = [{**asdict(d), "mean": d.mean, "std": d.std} for d in self.distances]
        write_json(folder / "otdd.json", {**self.facts, "distances": records})
        side = max(4.6, 0.9 * len(self.facts["images"]))
        figure = pyplot().figure(figsize=(side + 2.6, side), layout="constrained")
        (_draw_grid if self.grid else _draw_matrix)(figure.add_subplot(), self)
        save(figure, folder / "otdd.png")


# The distance between two samples.


class Sample(NamedTuple):
    """Features and labels of some images of a domain."""

    x: Float64[Tensor, "n d"]
    y: Int64[Tensor, " n"]


def sample_distance(a: Sample, b: Sample, lambda_y: float = 1.0, reg: float = 0.0) -> float:
    """Compute the cost of the optimal transport from a to b, which is ½ OTDD².

    With `reg` > 0, compute the debiased Sinkhorn divergence S(a, b) - ½ S(a, a) - ½ S(b, b)
    instead. Both are 0 if a and b are equal.
    """
    value = _transport(ground_cost(a, b, lambda_y), reg)
    if reg:
        value -= sum(_transport(ground_cost(each, each, lambda_y), reg) for each in (a, b)) / 2
    return value


def ground_cost(a: Sample, b: Sample, lambda_y: float = 1.0) -> Float64[Tensor, "n m"]:
    """Compute ½ ‖x - x'‖² + λ_y ½ W²(y, y') for all pairs of images.

    W is the Wasserstein distance between the classes y and y', each approximated by a Gaussian.
    Class names are not used.
    """
    squares = a.x.square().sum(1)[:, None] + b.x.square().sum(1) - 2 * a.x @ b.x.T  # (n, m)
    (ids_a, y_a), (ids_b, y_b) = (sample.y.unique(return_inverse=True) for sample in (a, b))
    w = [[wasserstein(a.x[a.y == i], b.x[b.y == j]) for j in ids_b] for i in ids_a]
    return squares.clamp(min=0) / 2 + lambda_y / 2 * a.x.new_tensor(w)[y_a][:, y_b]


def wasserstein(p: Float64[Tensor, "n d"], q: Float64[Tensor, "m d"]) -> float:
    """Compute W² = ‖μ - μ'‖² + tr Σ + tr Σ' - 2 tr (Σ^½ Σ' Σ^½)^½ of two classes.

    With centered images as rows, scaled by 1 / √(n - 1), Σ = AᵀA and Σ' = BᵀB. The last trace is
    then the nuclear norm of ABᵀ, so no d x d matrix is needed. A class of one image has Σ = 0.
    """
    a, b = ((x - x.mean(0)) / max(len(x) - 1, 1) ** 0.5 for x in (p, q))
    means = (p.mean(0) - q.mean(0)).square().sum()
    bures = a.square().sum() + b.square().sum() - 2 * torch.linalg.svdvals(a @ b.T).sum()
    return float(means + bures.clamp(min=0))


def _transport(cost: Float64[Tensor, "n m"], reg: float) -> float:
    """Solve optimal transport with uniform weights, and with KL regularization if `reg` > 0."""
    solve = import_extra("ot", "analyze").solve
    limits = {"max_iter": _ITERATIONS, "tol": _TOLERANCE} if reg else {"max_iter": _PIVOTS}
    return float(solve(cost, reg=reg or None, reg_type="KL", **limits).value)


# Distances between domains.


class View(NamedTuple):
    """Images of a domain, augmented if `augment` is set."""

    domain: Domain
    augment: RandAugment | None = None


def otdd(
    a: Domain, b: Domain, settings: Settings | None = None, *, embedding: Model | None = None
) -> Distance:
    """Compute ½ OTDD² between two domains, see `analyze_otdd`."""
    return analyze_otdd([a, b], settings, embedding=embedding).distances[0]


def analyze_otdd(
    domains: Sequence[Domain],
    settings: Settings | None = None,
    *,
    embedding: Model | None = None,
    augmentations: Sequence[RandAugment] = (),
) -> Analysis:
    """Compute ½ OTDD² between all pairs of domains.

    Example:
        >>> analysis = analyze_otdd([mnist, usps], Settings(samples=500))
        >>> analysis.save(Path("analysis/otdd"))

    Args:
        domains: Labeled images. Their classes may differ in names and number.
        settings: Options of the distance.
        embedding: Network whose features are compared, see `load_embedding`. Default: pixels.
        augmentations: If given, compare only the first domain: with each other domain, and with
            its own images after each augmentation.
    """
    settings = settings or Settings()
    size = settings.size or (SIZE if embedding is None else embedding.image_size)
    views = [View(domain) for domain in domains]
    pairs = list(combinations(views, 2))
    if augmentations:
        pairs = [(views[0], b) for b in (*views[1:], *(View(domains[0], a) for a in augmentations))]
    repeats = []
    is_drawn = augmentations or max(map(len, domains)) > settings.samples  # else always the same
    for repeat in iterate(range(settings.repeats if is_drawn else 1)):

        @lru_cache(maxsize=len(views))
        def sample(view: View, repeat: int = repeat) -> Sample:
            rows = draw(view.domain, settings.samples, settings.seed, repeat)
            images = view.domain.images[rows]
            if view.augment is not None:
                generator = generator_for(settings.seed, "otdd", "augment", repeat)
                images = view.augment(images, generator)
            return Sample(_features(images, size, embedding), view.domain.labels[rows])

        weights = settings.lambda_y, settings.reg
        repeats.append([sample_distance(sample(a), sample(b), *weights) for a, b in iterate(pairs)])
    distances = []
    for (a, (b, augment)), values in zip(pairs, zip(*repeats, strict=True), strict=True):
        policy = None if augment is None else (augment.num_ops, augment.magnitude)
        second = b.name if augment is None else f"{b.name} augmented"
        distances.append(Distance(a.domain.name, second, values, policy))
    facts = {
        "units": UNIT,
        "features": "pixels in [0, 1]" if embedding is None else embedding.description,
        "d": sample(views[0]).x.shape[1],
        "classes": "Gaussian, estimated from the drawn images",
        "images": {domain.name: min(settings.samples, len(domain)) for domain in domains},
        "operations": augmentations[0].operations if augmentations else None,
        **asdict(replace(settings, size=size, repeats=len(repeats))),
        "peerdg": __version__,
    }
    return Analysis(tuple(distances), facts)


def draw(domain: Domain, samples: int, seed: int, repeat: int) -> Int64[Tensor, " n"]:
    """Choose rows of a domain by a hash of their pixels, in proportion to the classes.

    The choice depends neither on the order of the images nor on the numbers of the classes. A
    domain thus has distance 0 to itself, and images are compared with their own augmented copies.
    """
    keys = np.array([seed_for(seed, "otdd", repeat, pixels) for pixels in domain.pixel_hashes])
    labels, position = domain.labels.numpy(), np.empty(len(keys))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        position[rows[keys[rows].argsort()]] = (np.arange(len(rows)) + 0.5) / len(rows)
    return torch.from_numpy(np.lexsort((keys, position))[:samples])


@torch.no_grad()
def _features(images: Tensor, size: int, embedding: Model | None) -> Float64[Tensor, "n d"]:
    if embedding is None:
        return resize(images, size).flatten(1).double() / 255
    batches = (resize(b.to(embedding.device), size) for b in images.split(images_per_pass(size)))
    return torch.cat([embedding.classifier.features(batch).cpu().double() for batch in batches])


def load_embedding(name: str) -> Model:
    """Load the network of a run or model folder, or a backbone with its published weights."""
    if "/" in name or Path(name).exists():
        return load_model(name, device="auto")
    check_backbone(name, PUBLISHED)
    network = load_input_model(name)
    size = (BACKBONES.get(name) or described(network.encoder)).image_size
    return Model(network, size, description={"backbone": name}).to("auto")


# Figures.


def _draw_matrix(axis: Any, analysis: Analysis) -> None:
    """Draw the distances of all pairs as a symmetric heat map."""
    names = list(analysis.facts["images"])
    matrix = np.zeros((len(names), len(names)))
    largest = max(pair.mean for pair in analysis.pairs)
    for pair in analysis.pairs:
        for row, column in permutations(map(names.index, (pair.first, pair.second))):
            matrix[row, column] = pair.mean
            color = "white" if pair.mean > 0.6 * largest else "black"
            place = {"ha": "center", "va": "center", "color": color, "fontsize": 8}
            axis.text(column, row, spread(pair.values).replace(" ", "\n", 1), **place)
    image = axis.imshow(matrix, cmap="Blues", vmin=0)
    labels = [visible(name) for name in names]
    axis.set_xticks(range(len(names)), labels, rotation=30, parse_math=False)
    axis.set_yticks(range(len(names)), labels, parse_math=False)
    used = analysis.facts["features"]
    axis.set_title(used if isinstance(used, str) else f"features of {used['backbone']}", fontsize=9)
    axis.figure.colorbar(image, ax=axis, label=UNIT)


def _draw_grid(axis: Any, analysis: Analysis) -> None:
    """Plot the distance against the magnitude for each num_ops, and other domains as lines."""
    num_ops, magnitudes = analysis.grid_axes
    for k, color, marker in zip(num_ops, cycle(COLORS), cycle("os^Dv"), strict=False):
        row = [analysis.grid[k, m] for m in magnitudes]
        mean, std = np.array([d.mean for d in row]), np.array([d.std for d in row])
        axis.plot(magnitudes, mean, color=color, marker=marker, label=f"num_ops {k}")
        axis.fill_between(magnitudes, mean - std, mean + std, color=color, alpha=0.2, lw=0)
    top, lowest = max(each.mean for each in analysis.distances), -1.0
    place = {"xycoords": ("axes fraction", "data"), "va": "center", "parse_math": False}
    for pair in sorted(analysis.pairs, key=lambda pair: pair.mean):
        axis.axhline(pair.mean, color="#595959", lw=1, ls="--")
        lowest = max(pair.mean, lowest + 0.05 * top)  # labels must not overlap
        axis.annotate(visible(pair.second), (1.01, lowest), **place)
    axis.set(xlabel="magnitude", ylabel=UNIT)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=8)
    name = visible(analysis.distances[0].first)
    title = f"{name} and its augmented images ({analysis.facts['operations']} operations)"
    axis.set_title(title, loc="left", fontsize=10, pad=24, parse_math=False)
