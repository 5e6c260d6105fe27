"""M-ADA: meta-learning based adversarial domain augmentation (CVPR 2020)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from peerdg.distributed import whole_gradient
from peerdg.errors import ConfigError, NumericalError
from peerdg.long_work import iterate
from peerdg.losses.wasserstein import autoencoder_loss, critic_loss, log_unit_gaussian
from peerdg.methods.ascent import Ascent, AscentSettings, ExtraObjective, PoolMethod
from peerdg.methods.base import Batch, EpochResult, Loss, weight_option
from peerdg.methods.pool import TrainingPool
from peerdg.models.classifier import Classifier
from peerdg.models.generators import LatentCritic, WassersteinAutoEncoder
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class Settings(AscentSettings):
    """ADA with images far from the source, and meta-learning. A reconstruction on photos."""

    steps: int = option(25, "gradient ascent steps per image", at_least=1)
    clip: Literal["off", "end", "steps"] = option(
        "off", "when to clip pixels to [0, 1]: never, at the end, or after every step"
    )
    beta: float = weight_option(2000.0, "weight of the distance between reconstructions")
    meta_rate: float = option(1e-4, "step size of the inner update on the source", at_least=0)
    domain_size: Literal["share", "source"] = option(
        "share", "size of the n-th domain: 1/n of the source, or as large as the source"
    )
    autoencoder: Literal["mlp", "conv"] = option(
        "mlp", "auto-encoder: fully connected (released code), or convolutional for photos"
    )
    thumbnail: int = option(32, "largest side of the auto-encoder's input", at_least=4, at_most=256)
    wae_epochs: int = option(20, "training epochs of each auto-encoder", at_least=1)
    wae_lr: float = option(1e-3, "learning rate of auto-encoder and critic", above=0)
    wae_batch: int = option(32, "batch size of the auto-encoder", at_least=1)
    wae_weight: float = option(100.0, "weight of the critic's term", at_least=0)
    wae_shift: Literal["sample", "code"] = option(
        "sample", "log-density added to the critic's logit for a code: of the Gaussian sample "
        "(released code), or of the code itself",
    )  # fmt: skip

    batches_from = "source"
    reconstruction = "on photos"

    def autoencoder_side(self, side: int) -> int:
        """Return the side of the auto-encoder's input for images of this side."""
        return min(side, self.thumbnail)

    def check_images(self, side: int) -> None:
        """Reject a side that two stride-2 convolutions cannot halve evenly."""
        seen = self.autoencoder_side(side)
        if self.autoencoder == "conv" and seen % 4:
            raise ConfigError(
                f"The side of the auto-encoder's input must be a multiple of 4, got {seen}.",
                hint=f"Use --m-ada.thumbnail {seen - seen % 4}, or --m-ada.autoencoder mlp.",
            )


class MADA(PoolMethod):
    """Make domains far from the source, and meta-learn to generalize from the source to them.

    Qiao et al., "Learning to learn single domain generalization", CVPR 2020,
    https://arxiv.org/abs/2003.13216, as in the released code, which is for digits. Every T_min
    steps, k times in total, a domain is made by gradient ascent from z = x on

        CE(F(z), y) - γ · mean[(H(z) - H(x))²] + β · mean[(V(z) - V(x))²]

    where V is a Wasserstein auto-encoder trained on the newest domain (initially the source). So z
    keeps its features but leaves the distribution that V was trained on. A fraction 1/(n + 1) of
    the images x comes from the source, the rest from the n domains so far. F with weights θ
    minimizes

        (L_s(θ) + L_a(θ')) / 2    with    θ' = θ - α ∇L_s(θ)

    with gradients through the inner step (second order). L_s is the cross-entropy on a source
    batch, L_a on a batch from all new domains. Before the first domain exists, F minimizes L_s.

    The released code trains an auto-encoder right after a domain is made. Here it is trained right
    before it is used. The result is the same, because it depends only on the images of the domain.
    `Settings` has an option for each open question:

    - `rate`: step size per image, as in ADA. The released 1.0 on the mean of 32 images is 1/32.
    - `domain_size`: in the released code, domain n has 1/n as many images as the source.
    - `clip`: the released code does not clip. Unclipped domains are stored as float16.
    - `wae_shift`: the released critic adds the log-density of a prior sample to the logit of a
      code. Tolstikhin et al. add the log-density of the code itself.
    - `autoencoder`, `thumbnail`: there is no released code or published value for photos. Our
      reconstruction uses a convolutional auto-encoder on 32 x 32 thumbnails.

    The pool contains the source and the new domains. Batches are drawn from the source only.

    Raises:
        ConfigError: If the network is compiled. Compiled networks cannot be differentiated twice.
    """

    settings: Settings
    divergence_hint = ", or the inner step (--m-ada.meta-rate)"

    def __init__(self, model: Classifier, settings: Settings, *, pool: TrainingPool) -> None:
        if any(module._compiled_call_impl is not None for module in model.modules()):
            raise ConfigError(
                "M-ADA cannot train a compiled network, because it needs second derivatives.",
                hint="Leave --compile out.",
            )
        super().__init__(model, settings, pool=pool)

    def loss(self, batch: Batch) -> Loss:
        """Compute (L_s + L_a) / 2, or L_s before the first domain."""
        if not self.pool.additions:
            loss = F.cross_entropy(self.model(batch.images), batch.labels)
            return Loss(loss, ce=loss)
        generator = batch.generator()
        rows = self._drawn_from_domains(len(batch.images), generator)
        made = self.pool.view(rows.to(self.pool.device), generator)
        source, meta = meta_losses(
            self.model, (batch.images, batch.labels), made, step_size=self.settings.meta_rate
        )
        return Loss((source + meta) / 2, ce=source, meta=meta)

    def end_epoch(self, epoch: int) -> EpochResult:
        if not self.settings.makes_images(epoch):
            return EpochResult()
        settings, pool = self.settings, self.pool
        side = settings.autoencoder_side(pool.size or max(pool.images.shape[-2:]))
        autoencoder = WassersteinAutoEncoder(side, settings.autoencoder).to(pool.device)
        newest = len(pool.additions[-1]) if pool.additions else len(pool)
        rows = torch.arange(len(pool) - newest, len(pool), device=pool.device)
        loss = train_autoencoder(autoencoder, pool, rows, settings)
        extra = partial(relaxation, autoencoder, beta=settings.beta)
        result = Ascent(self.model, settings, extra).make(pool, self._rows())
        result.records["autoencoder_loss"] = loss
        return result

    def _rows(self) -> Int64[Tensor, " n"]:
        """Choose the images x for the next domain, from the source and earlier domains."""
        source, before = len(self.pool.images), len(self.pool.additions)
        share = max(1, source // (before + 1))
        count = source if self.settings.domain_size == "source" else share
        kept = count // (before + 1)
        rows = torch.cat(
            (torch.randperm(source)[:kept], self._drawn_from_domains(count - kept, None))
        )
        return rows.sort().values.to(self.pool.device)

    def _drawn_from_domains(
        self, count: int, generator: torch.Generator | None
    ) -> Int64[Tensor, " n"]:
        """Draw `count` distinct rows from the new domains."""
        first = len(self.pool.images)
        return first + torch.randperm(len(self.pool) - first, generator=generator)[:count]


def relaxation(
    autoencoder: WassersteinAutoEncoder, x: Float[Tensor, "n 3 h w"], *, beta: float
) -> ExtraObjective:
    """Return β · mean[(V(z) - V(x))²] as a function of z, summed over images."""
    with torch.no_grad():
        start = autoencoder.reconstruct(x)

    def distance(z: Tensor, logits: Tensor) -> Tensor:
        return beta * (autoencoder.reconstruct(z) - start).square().mean((1, 2, 3)).sum()

    return distance


def meta_losses(
    model: Classifier,
    source: tuple[Tensor, Tensor],
    made: tuple[Tensor, Tensor],
    *,
    step_size: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute L_s(θ), and L_a(θ') after the differentiable step θ' = θ - step_size · ∇L_s(θ).

    `source` contains images and labels for L_s, and `made` for L_a.
    """
    theta = {name: p for name, p in model.named_parameters() if p.requires_grad}
    # Only this attention kernel has a second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        source_loss = F.cross_entropy(model(source[0]), source[1])
        with torch.autocast(source_loss.device.type, enabled=False):
            gradients = torch.autograd.grad(
                source_loss, list(theta.values()), create_graph=True, materialize_grads=True
            )
            moved = {}
            for (name, p), gradient in zip(theta.items(), gradients, strict=True):
                whole = whole_gradient(gradient) if name.startswith("encoder.") else gradient
                moved[name] = p - step_size * whole
        made_loss = F.cross_entropy(functional_call(model, moved, (made[0],)), made[1])
    return source_loss, made_loss


def train_autoencoder(
    model: WassersteinAutoEncoder, pool: TrainingPool, rows: Int64[Tensor, " n"], settings: Settings
) -> float:
    """Train `model` on pool images against a new critic.

    Each step updates the critic, then the auto-encoder, as in Algorithm 1 of Tolstikhin et al.
    The result is the mean loss per image over the last epoch.
    """
    critic = LatentCritic(model.dim).to(rows.device)
    critic_optimizer, optimizer = (
        torch.optim.Adam(each.parameters(), lr=settings.wae_lr, fused=True)
        for each in (critic, model)
    )
    mean = math.nan
    for epoch in iterate(range(settings.wae_epochs), "training the auto-encoder"):
        total = torch.zeros((), dtype=torch.float64, device=rows.device)
        order = rows[torch.randperm(len(rows)).to(rows.device)]
        for part in iterate(order.split(settings.wae_batch), "a pass"):
            images = model.thumbnails(pool.clean(part)[0])
            total += _step(model, critic, images, (critic_optimizer, optimizer), settings)
        mean = float(total) / len(rows)
        if not math.isfinite(mean):
            raise NumericalError(
                "The auto-encoder's loss is not finite.",
                hint="Lower its learning rate (--m-ada.wae-lr).",
                details={"wae_epoch": epoch, "wae_lr": settings.wae_lr},
            )
    return mean


def _step(
    model: WassersteinAutoEncoder,
    critic: LatentCritic,
    images: Float[Tensor, "n 3 side side"],
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    settings: Settings,
) -> Float[Tensor, ""]:
    """Update the critic, then the auto-encoder, and return the auto-encoder's loss."""
    critic_optimizer, optimizer = optimizers
    with torch.enable_grad():
        logits, codes = model(images)
        samples = torch.randn(codes.shape).to(codes)  # prior samples, drawn on the CPU
        prior_shift = log_unit_gaussian(samples)
        shift = prior_shift if settings.wae_shift == "sample" else log_unit_gaussian(codes)
        of_samples, of_codes = critic(samples) + prior_shift, critic(codes.detach())
        loss = critic_loss(of_samples, of_codes + shift.detach(), weight=settings.wae_weight)
        _minimize(loss, critic_optimizer)
        judged = critic(codes) + shift
        # Cross-entropy is unbounded below for targets outside [0, 1].
        loss = autoencoder_loss(logits, images.clamp(0, 1), judged, weight=settings.wae_weight)
        _minimize(loss, optimizer)
    return loss.detach()


def _minimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=[p for group in optimizer.param_groups for p in group["params"]])
    optimizer.step()
