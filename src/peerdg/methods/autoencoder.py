"""Train a Wasserstein auto-encoder on images of the training pool, part by part."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.errors import NumericalError
from peerdg.losses.wasserstein import autoencoder_loss, critic_loss, log_unit_gaussian
from peerdg.methods.pool import TrainingPool
from peerdg.methods.work import Chunks
from peerdg.models.autoencoder import LatentCritic, WassersteinAutoEncoder


@dataclass(frozen=True, kw_only=True)
class WAETraining:
    """How an auto-encoder is trained.

    Args:
        epochs: Passes over the images.
        lr: Learning rate of Adam, for the auto-encoder and for the critic.
        batch_size: Images of a step.
        weight: Of the critic's term.
        shift: Of which log-density the critic's logit of a code is shifted: that of the prior's
            sample beside it, or that of the code itself; a sample's logit always by its own.
    """

    epochs: int
    lr: float
    batch_size: int
    weight: float
    shift: Literal["sample", "code"]


def train_autoencoder(
    model: WassersteinAutoEncoder,
    pool: TrainingPool,
    rows: Int64[Tensor, " n"],
    training: WAETraining,
    chunks: Chunks,
) -> float:
    """Train `model` on images of the pool, against a critic that is thrown away.

    In each step the critic learns first, then the auto-encoder by what the critic says now, as in
    Algorithm 1 of Tolstikhin et al.

    Returns:
        Mean loss of the auto-encoder over the last epoch, for an image.

    Raises:
        NumericalError: If it is not finite after an epoch.
    """
    critic = LatentCritic(model.dim).to(rows.device)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=training.lr, fused=True)
    optimizers = critic_optimizer, torch.optim.Adam(model.parameters(), lr=training.lr, fused=True)
    mean = math.nan
    for epoch in chunks(range(training.epochs), "training the auto-encoder"):
        total = torch.zeros((), dtype=torch.float64, device=rows.device)
        order = rows[torch.randperm(len(rows)).to(rows.device)]
        for part in chunks(order.split(training.batch_size), "a pass"):
            images = model.thumbnails(pool.clean(part)[0])
            total += _step(model, critic, images, optimizers, training)
        mean = float(total) / len(rows)
        if not math.isfinite(mean):
            raise NumericalError(
                "The loss of the auto-encoder is not finite.",
                hint="Lower its learning rate (--m-ada.wae-lr).",
                details={"wae_epoch": epoch, "wae_lr": training.lr},
            )
    return mean


def _step(
    model: WassersteinAutoEncoder,
    critic: LatentCritic,
    images: Float[Tensor, "n 3 side side"],
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    training: WAETraining,
) -> Float[Tensor, ""]:
    """The critic learns, then the auto-encoder; returns the latter's loss."""
    critic_optimizer, optimizer = optimizers
    with torch.enable_grad():
        logits, codes = model(images)
        samples = torch.randn(codes.shape).to(codes)  # of the prior, from the CPU's generator
        prior_shift = log_unit_gaussian(samples)
        shift = prior_shift if training.shift == "sample" else log_unit_gaussian(codes)
        of_samples, of_codes = critic(samples) + prior_shift, critic(codes.detach())
        loss = critic_loss(of_samples, of_codes + shift.detach(), weight=training.weight)
        _minimise(loss, critic_optimizer)
        judged = critic(codes) + shift
        loss = autoencoder_loss(logits, images, judged, weight=training.weight)
        _minimise(loss, optimizer)
    return loss.detach()


def _minimise(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=[p for group in optimizer.param_groups for p in group["params"]])
    optimizer.step()
