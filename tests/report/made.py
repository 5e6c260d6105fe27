"""Finished runs with known accuracies."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peerdg.methods.registry import settings_of
from peerdg.options import merge
from peerdg.report.runs import RunResult
from peerdg.run.config import resolve

# Epochs 1, 2 and 3 of two seeds.
SERIES = {
    "validation": [[90, 95, 94], [90, 91, 92]],
    "crafted:blur": [[50, 40, 30], [50, 60, 40]],
    "crafted:edges": [[50, 40, 30], [50, 60, 44]],
    "crafted:color": [[0, 0, 90], [0, 0, 90]],
    "art": [[60, 50, 70], [66, 70, 64]],
    "sketch": [[40, 50, 60], [54, 60, 56]],
}
FINGERPRINTS = {"train": "t1", "validation": "v1", "target:art": "a1", "target:sketch": "s1"}


def peer(
    seed: int = 0,
    domains: Sequence[str] = tuple(SERIES),
    *,
    method: str = "peer",
    shift: float = 0.0,
    n: int = 500,
    images: dict[str, str] | None = None,
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> RunResult:
    """A run with the accuracies of `SERIES`, to which `shift` is added."""
    config = {
        "method": method, "seed": seed, "benchmark": "own-data", "backbone": "tiny",
        "budget": "quick", "evaluate_every": 1, "pretrain": {"epochs": 1},
        "augment": {"kind": "randaugment"},
        "train": {"epochs": 3, "batch_size": 8, "optimizer": "adam", "lr": 0.01},
        **({"peer": {"regularizer": "barlow-twins", "w": 2.0, "k": 1}} if method == "peer" else {}),
    }  # fmt: skip
    models = {"proxy": None, "task": shift} if method == "peer" else {"model": shift}
    evaluations = [
        {"kind": "evaluation", "epoch": epoch + 1, "model": model, "domain": domain, "n": n,
         "accuracy": 1.0 if change is None else SERIES[domain][seed % 2][epoch] + change}
        for epoch in range(3) for model, change in models.items() for domain in domains
    ]  # fmt: skip
    roles = {"trained": next(iter(models)), "deployed": list(models)[-1]}
    return RunResult(
        path=Path(f"{method}-{seed}"),
        config=merge(config, options),
        evaluations=evaluations,
        fingerprints={**FINGERPRINTS, **(images or {})},
        **{**roles, **(fields or {})},
    )


EPOCHS = 8


def level(
    method: str,
    seed: int,
    *,
    level: float = 60.0,
    epochs: int = EPOCHS,
    step: float = 0.01,
    memory: int = 400,
    shared: Sequence[str] = (),
    targets: tuple[str, ...] = ("syn", "uci"),
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> RunResult:
    """A run whose accuracy on each target is known in every epoch, see `accuracy`."""
    given = {"benchmark": "digits-mini", "budget": "quick", "method": method, "seed": seed,
             "train": {"epochs": epochs}, "evaluate_every": 1}  # fmt: skip
    config = resolve(merge(given, options or {}))
    if settings_of(config.method).period_option:
        config = resolve(merge(given, {config.method: {"k": 1}}, options or {}))
    models = ("model", config.average.kind[0]) if config.average.kind else ("model",)
    evaluations = [
        {"kind": "evaluation", "epoch": epoch, "model": model, "n": 1000, "domain": domain,
         "accuracy": accuracy(model, domain, epoch, seed, level)}
        for epoch in range(epochs + 1) for model in models for domain in ("validation", *targets)
    ]  # fmt: skip
    times = [
        {"phase": "train", "epoch": n + 1, "steps": 10, "seconds": 10 * step} for n in range(epochs)
    ]
    return RunResult(
        path=Path(f"{method}-{seed}"),
        config=config.tables(),
        evaluations=evaluations,
        epochs=times,
        deployed=models[-1],
        peak_memory=memory * 10**6,
        shared_with=tuple(shared),
        **fields,
    )


def accuracy(model: str, domain: str, epoch: int, seed: int, level: float) -> float:
    """Validation peaks in epoch 7. The targets move up and down, and most in epoch 6."""
    if domain == "validation":
        return 90.0 + (epoch == 7)
    swing = 1.0 if model == "model" else 0.5
    moved = swing * (epoch % 2) + 4 * (epoch == 6)
    return level + seed + moved + (10.0 if domain == "uci" else 0.0)


GROUPS = {
    "erm": [level("erm", seed) for seed in range(3)],
    "randaugment": [
        level("randaugment", s, level=63 + s * s, step=0.02, shared=["p-ens"], memory=500)
        for s in range(3)
    ],
    "p-ens": [
        level("p-ens", s, level=59, step=0.02, shared=["randaugment"], memory=500) for s in range(3)
    ],
    "l2d": [level("l2d", seed, level=50) for seed in range(2)],
}
