"""Helpers for tests of methods that make images."""

import json
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.long_work import iterate
from peerdg.methods import advst, ascent, m_ada
from peerdg.methods.ascent import Ascent
from peerdg.methods.pool import TrainingPool
from peerdg.models.classifier import Classifier
from peerdg.train import loop
from tests.conftest import tiny_domain

STRONG = 20.0  # a step at which the tiny network's small gradients move 8-bit pixels
N = 24


def tiny_pool(n: int = N) -> TrainingPool:
    domain = tiny_domain(n=n)
    return TrainingPool(domain.images, domain.labels)


def perturbed(ascent: Ascent, pool: TrainingPool) -> tuple[Tensor, Tensor, Tensor]:
    """Return clean images, perturbed images and labels, made in eval mode."""
    x, y = pool.clean(torch.arange(len(pool)))
    ascent.model.eval()
    return x, ascent.perturb(x, y), y


def cross_entropy(model: Classifier, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model.eval()(x), y))


def feature_distance(model: Classifier, x: Tensor, z: Tensor) -> float:
    with torch.no_grad():
        return float((model.eval().features(x) - model.features(z)).square().mean())


def plain_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of each row with torch's distribution."""
    return torch.distributions.Categorical(logits=logits).entropy()


def mean_entropy(model: Classifier, images: Tensor) -> float:
    with torch.no_grad():
        return float(plain_entropy(model.eval()(images)).mean())


def interrupt_part(patch: pytest.MonkeyPatch, count: int, *, of: tuple[str, ...]) -> None:
    """Send a stop signal during part `count` of the work with these labels."""
    counter = iter(range(1, 10**6))

    def interrupted(items: Collection[Any], label: str = "") -> Iterator[Any]:
        for item in iterate(items, label):
            if label in of and next(counter) == count:
                signal.raise_signal(signal.SIGTERM)
            yield item

    for module in (advst, ascent, m_ada):
        patch.setattr(module, "iterate", interrupted)


def interrupt_step(patch: pytest.MonkeyPatch, count: int) -> None:
    """Send a stop signal during step `count` of both phases."""
    counter, step = iter(range(1, 10**6)), loop.train_step

    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(counter) == count:
            signal.raise_signal(signal.SIGTERM)
        return step(*args, **kwargs)

    patch.setattr(loop, "train_step", counted)


def epochs_of(out: Path) -> list[dict[str, Any]]:
    """Return the epoch records of the main phase."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [r for r in records if r["kind"] == "epoch" and r["phase"] == "train"]


def assert_equal(out: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
