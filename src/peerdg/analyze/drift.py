"""Measure the drift of a network in training: distance, similarity, churn and forgetting."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.analyze.cka import cka
from peerdg.analyze.drawing import curves, heat_map, panels, save
from peerdg.analyze.networks import AnalyzedRun, require_alike
from peerdg.augment.augment_options import make_augment
from peerdg.augment.view import resize
from peerdg.evaluate.predictions import predict_batch
from peerdg.long_work import iterate
from peerdg.models.classifier import Classifier, images_per_pass
from peerdg.rng import generator_for
from peerdg.run.config import resolve
from peerdg.terminal import visible

MAX_SNAPSHOTS = 12
RIDGE = 1e-2  # penalty of the linear probe, relative to the mean square of the features


@dataclass(frozen=True)
class Geometry:
    """Distances and angles between snapshots θ_0, θ_1, ... in the space of parameters."""

    layers: dict[str, list[float]]  # ‖θ_t - θ_0‖ / ‖θ_0‖ of each layer
    distance: list[list[float]]  # ‖θ_s - θ_t‖ / ‖θ_0‖
    cosine: list[list[float]]  # cosine of θ_s - θ_0 and θ_t - θ_0, from θ_1 on


@dataclass(frozen=True)
class Drift:
    """Drift of the trained network over its snapshots. The first snapshot is the start."""

    epochs: list[int]
    geometry: Geometry
    cka: dict[str, list[float]]  # similarity of each layer's features with those at the start
    churn: dict[str, list[float]]  # by domain, percent changed since the previous one
    probe: list[list[float]] | None  # accuracy by snapshot and policy, see `forgetting`
    forgetting: list[float] | None  # in points, from the second snapshot on


def drift(run: AnalyzedRun, *, epochs: Sequence[int] = (), max_images: int = 1000) -> Drift:
    """Measure how far the trained network of a run moves from its start.

    A linear probe tests which augmentations a snapshot still handles. No probe is fitted if
    the method does not augment its images, or is a plugin.

    Example: `drift(AnalyzedRun("runs/first")).forgetting`

    Args:
        run: Run with snapshots.
        epochs: Snapshots to compare with the start. By default, up to twelve.
        max_images: Maximum number of images of each domain.
    """
    epochs = [0, *sorted({*(epochs or run.spread(MAX_SNAPSHOTS))} - {0})]
    networks = [run.network(epoch) for epoch in epochs]
    images = run.source_images(max_images)
    alike = [cka(networks[0], network, images).diagonal for network in iterate(networks, "CKA")]
    probe = _probe(run, epochs[1:], networks[1:], max_images)
    domains = run.domains(max_images)
    return Drift(
        epochs,
        geometry(networks),
        cka={layer: [each[layer] for each in alike] for layer in alike[0]},
        churn={
            name: churn([_predict(network, domain.images, run.size) for network in networks])
            for name, domain in iterate(domains.items(), "predictions")
        },
        probe=probe,
        forgetting=None if probe is None else forgetting(probe),
    )


def geometry(networks: Sequence[Classifier]) -> Geometry:
    """Compare the parameters of snapshots. Batch statistics are left out.

    With D the rows θ_t - θ_0, all values follow from the Gram matrix G = DDᵀ.
    """
    require_alike(networks)
    tensors = [dict(network.named_parameters()) for network in networks]
    grams: dict[str, Tensor] = {}  # by layer, that is, by module with parameters
    norms: dict[str, float] = {}  # ‖θ_0‖²
    for name in tensors[0]:
        layer = name.rpartition(".")[0].removeprefix("encoder.")
        thetas = torch.stack([each[name].detach().double().flatten() for each in tensors])
        moved = thetas - thetas[0]
        grams[layer] = grams.get(layer, 0) + (moved @ moved.T).cpu()
        norms[layer] = norms.get(layer, 0.0) + float(thetas[0].square().sum())
    gram = sum(grams.values(), torch.zeros(()))
    squares = gram.diagonal()
    distance = (squares[:, None] + squares - 2 * gram).clamp(min=0).sqrt()
    # A snapshot that did not move has cosine 0, not NaN.
    moved_by = squares[1:].clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
    return Geometry(
        layers={
            layer: (each.diagonal() / norms[layer]).sqrt().tolist() for layer, each in grams.items()
        },
        distance=(distance / sum(norms.values()) ** 0.5).tolist(),
        cosine=(gram[1:, 1:] / moved_by[:, None] / moved_by).tolist(),
    )


def churn(predictions: Sequence[Tensor]) -> list[float]:
    """Return the percentage of predictions that differ from those of the previous snapshot."""
    return [100 * float((a != b).double().mean()) for a, b in pairwise(predictions)]


def forgetting(probe: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean drop below the best accuracy so far, over the policies of each snapshot.

    `probe[t][p]` is the accuracy of snapshot t with the policy that was used before snapshot p ≤ t.
    """
    return [
        float(
            np.mean([max(row[p] for row in probe[p : t + 1]) - probe[t][p] for p in range(t + 1)])
        )
        for t in range(len(probe))
    ]


def fit_probe(features: Tensor, labels: Tensor) -> Tensor:
    """Fit a ridge regression from features `[n, d]` and a constant to one-hot labels."""
    x = F.pad(features.double(), (0, 1), value=1.0)
    gram = x.T @ x
    penalty = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights: Tensor = torch.linalg.solve(gram + penalty, x.T @ F.one_hot(labels).double())
    return weights


def _probe(
    run: AnalyzedRun, epochs: Sequence[int], networks: Sequence[Classifier], max_images: int
) -> list[list[float]] | None:
    """Fit a probe to the clean features of each snapshot, and test it with the policies so far."""
    config = None if run.tables.get("plugin") else resolve(run.tables)
    if config is None or not config.augments:
        return None
    augment = make_augment(config.augment, seed=config.main_seed, size=run.size)
    train = run.splits.train.sample(max_images)
    test = (run.splits.validation or run.splits.train).sample(max_images)
    views = []
    for epoch in epochs:
        augment.redraw((epoch - 1) // config.method_settings.period)  # used until this epoch
        views.append(augment(resize(test.images, run.size), generator_for(0, "probe", epoch)))
    accuracy = []
    for number, network in enumerate(iterate(networks, "probes")):
        weights = fit_probe(_features(network, resize(train.images, run.size)), train.labels)
        scores = [
            _features(network, v).double() @ weights[:-1] + weights[-1] for v in views[: number + 1]
        ]
        accuracy.append([100 * float((s.argmax(1) == test.labels).double().mean()) for s in scores])
    return accuracy


@torch.inference_mode()
def _features(network: Classifier, images: Tensor) -> Tensor:
    """Return H(x) for all images, on the CPU."""
    device, batches = network.head.weight.device, images.split(images_per_pass(images.shape[-1]))
    return torch.cat([network.features(batch.to(device)).cpu() for batch in batches])


def _predict(network: Classifier, images: Tensor, size: int) -> Tensor:
    batches = images.split(images_per_pass(size))
    return torch.cat([predict_batch(network, batch, size=size).labels for batch in batches])


def draw_drift(result: Drift, file: Path, *, title: str) -> None:
    """Draw drift, similarity, churn and forgetting over epochs, and the snapshots' matrices."""
    figure, axes = panels(2, 3)
    epochs, geometry = result.epochs, result.geometry
    curves(axes[0, 0], epochs, geometry.layers, "relative distance from the start")
    curves(axes[0, 1], epochs, result.cka, "CKA with the start")
    curves(axes[1, 0], epochs[1:], result.churn, "prediction churn, %")
    axes[1, 1].set_visible(result.forgetting is not None)
    if result.forgetting is not None:
        curves(axes[1, 1], epochs[1:], {"probe": result.forgetting}, "forgetting, points")
    for axis in axes.flat:
        axis.set_xlabel("epoch", fontsize=9)
        axis.locator_params(axis="x", integer=True)
    limits = (0.0, max(map(max, geometry.distance)))
    heat_map(axes[0, 2], geometry.distance, epochs, "relative distance of snapshots", limits)
    heat_map(axes[1, 2], geometry.cosine, epochs[1:], "cosine of displacements from the start")
    figure.suptitle(visible(title), fontsize=10, parse_math=False)
    save(figure, file)
