"""Build the optimizers of a training phase, and set their learning rates."""

import torch

from peerdg.methods.base import Method, OptimizerPlan
from peerdg.train.settings import PhaseSettings

Optimizers = dict[str, torch.optim.Optimizer]
LR_SCALE = "rate"  # key in a torch parameter group, also stored in checkpoints


def make_optimizers(method: Method, settings: PhaseSettings) -> Optimizers:
    """Build the optimizers of `method`. Plans without a kind use the phase's settings."""
    return {name: _make(plan, settings) for name, plan in method.optimizers().items()}


def _make(plan: OptimizerPlan, settings: PhaseSettings) -> torch.optim.Optimizer:
    options = plan if plan.kind is not None else settings
    groups = [
        {"params": group.parameters, "lr": options.lr * group.lr_scale, LR_SCALE: group.lr_scale}
        for group in plan.groups
    ]
    kind = plan.kind or settings.optimizer
    if kind == "adam":
        return torch.optim.Adam(groups, weight_decay=options.weight_decay, fused=True)
    return torch.optim.SGD(
        groups,
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        fused=True,
    )


def learning_rate(settings: PhaseSettings, epoch: int) -> float:
    """Compute the learning rate for an epoch: constant, or a step schedule."""
    if settings.lr_step is None:
        return settings.lr
    return settings.lr * settings.lr_gamma ** (epoch // settings.lr_step)


def set_learning_rate(method: Method, optimizers: Optimizers, lr: float) -> None:
    """Set `lr` in every optimizer that follows the phase's schedule."""
    for name, plan in method.optimizers().items():
        if plan.kind is None:
            for group in optimizers[name].param_groups:
                group["lr"] = lr * group[LR_SCALE]
