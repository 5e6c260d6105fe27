"""L2D, learning to diversify (ICCV 2021): alternate between a network and a style module."""

from dataclasses import dataclass
from typing import Literal, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.distributed import encode
from peerdg.errors import ConfigError
from peerdg.losses.contrastive import supcon
from peerdg.losses.gaussian import club, gaussian_nll
from peerdg.losses.mmd import class_mmd
from peerdg.methods.base import (
    Batch,
    Loss,
    Method,
    MethodSettings,
    OptimizerPlan,
    OptimizerStep,
    RunContext,
    Terms,
    weight_option,
)
from peerdg.models.classifier import Classifier
from peerdg.models.generators import StyleComplement
from peerdg.models.layers import GaussianBottleneck
from peerdg.options import option
from peerdg.stages import stage


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Alternate between training a network and a module that restyles its images."""

    alpha1: float = weight_option(1.0, "weight of the supervised contrastive loss")
    alpha2: float = weight_option(1.0, "weight of the likelihood of restyled images")
    beta: float = option(0.1, "weight of the mutual information in the style loss", at_least=0)
    tau: float = option(0.07, "temperature of the contrastive loss", above=0)
    mix: float = option(0.6, "fraction of the restyled image in the mix", at_least=0, at_most=1)
    style_lr: float = option(
        0.005, "learning rate of the style module (default of the released flag: 10)", above=0
    )
    kernels: tuple[int, ...] = option(
        (5, 9, 13, 17), "kernel sizes of the style module's spatial branches, e.g. 3,5", at_least=1
    )
    shift_std: float = option(0.1, "standard deviation of the initial shifts", at_least=0)
    dim: int = option(512, "width of the Gaussian bottleneck", at_least=1, at_most=2**16)
    noise: float = option(0.2, "scale of the bottleneck's noise", at_least=0, at_most=100)
    bottleneck: Literal["pretrain", "train"] = option(
        "pretrain", "first phase with the bottleneck (train: pre-train without it)"
    )

    reconstruction = "on digits"
    augments = False

    @property
    def adapts_before(self) -> Literal["pretrain", "train"]:
        return self.bottleneck

    def check_images(self, side: int) -> None:
        """Reject kernels that leave only one pixel, which cannot be normalized."""
        if self.kernels and max(self.kernels) >= side:
            raise ConfigError(
                f"A kernel of {max(self.kernels)} pixels is too large for images of {side} pixels.",
                hint="Use smaller kernels, e.g. --l2d.kernels 3,5 for images of 32 pixels.",
            )


class L2D(Method):
    """Restyle images to lower their mutual information with the originals, and train on both.

    Wang et al., "Learning to diversify for single domain generalization", ICCV 2021,
    https://arxiv.org/abs/2108.11726, as in the released code. The network embeds an image as a
    Gaussian with mean μ and variance σ², and z is sampled from it. T is the style-complement module
    and x̂ = m·norm(sigmoid(T(x))) + (1 - m)·x for normalized x. Each step has two stages:

    1. The network minimizes, with fresh convolutions in T and over both views,

           CE({x̂, x}) + α₂ · NLL(z_x̂ | μ_x, σ²_x) + α₁ · SupCon({z_x̂, z_x}, y)

    2. T minimizes, through the updated network and with fixed convolutions,

           classMMD(z_x̂, z_x) + β · CLUB(z_x̂; μ_x, σ²_x)

    The likelihood term is a lower bound on the mutual information between both views, which the
    network raises. CLUB is an upper bound, which T lowers, while the MMD keeps each class in place.
    In both stages the two views form one batch, so batch normalization uses both.

    `Settings` has an option for each open detail: `bottleneck` (the released code does not
    pre-train on the source, while here pre-training includes the bottleneck by default), `style_lr`
    (0.005 in the released script, 10 as the default of its flag), and the kernels and shifts of T
    for small images. The random weights of T's branches are divided by their sum, which is kept
    away from zero (`StyleComplement.forward`). The MMD skips classes with only one image in the
    batch (`class_mmd`).

    Args:
        model: Network with its bottleneck, see `adapt`.
        size: Side of the images. T's styles are maps of this size.
    """

    settings: Settings
    divergence_hint = ", or the style module's (--l2d.style-lr)"

    def __init__(self, model: Classifier, settings: Settings | None = None, *, size: int) -> None:
        super().__init__(model, settings or Settings())
        self.settings.check_images(size)
        if model.neck is None:
            raise ConfigError(
                "L2D needs a Gaussian bottleneck between encoder and head.",
                hint="Pass L2D.adapt(model, settings, size) as the network.",
            )
        self.style = StyleComplement(
            size, kernels=self.settings.kernels, shift_std=self.settings.shift_std
        )

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        return cls(model, settings, size=context.image_size)

    @classmethod
    def adapt(cls, model: Classifier, settings: Settings, size: int) -> Classifier:
        """Insert the Gaussian bottleneck between encoder and head."""
        layer = {
            "kind": "gaussian-bottleneck",
            "place": "features",
            "inputs": model.encoder_dim,
            "outputs": settings.dim,
            "noise": settings.noise,
        }
        return model.with_layers([layer])

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """Train the network with the phase's optimizer, and the styles of T with plain SGD."""
        return {
            "main": OptimizerPlan.of(self.model),
            "style": OptimizerPlan.of(self.style, kind="sgd", lr=self.settings.style_lr),
        }

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Update the network, then T through the updated network."""
        generator = batch.generator()
        terms = self.network_loss(batch, generator)
        update("main", terms["loss"], terms)
        style_terms = self.style_loss(batch, generator)
        update("style", style_terms["style_loss"], style_terms)
        return {**terms, **style_terms}

    def network_loss(self, batch: Batch, generator: torch.Generator | None = None) -> Loss:
        """Compute the network's loss (stage 1) and its named terms."""
        x, y = self.model.prepare(batch.images), batch.labels
        with torch.no_grad():  # T is trained in the second stage only
            x_hat = self._mixed(self.style(x, generator), x)
        z_hat, z, mu, log_variance = self._embed(x_hat, x)
        z, both = torch.cat((z_hat, z)), y.repeat(2)  # (2 batch, dim)
        ce = F.cross_entropy(self.model.head(z), both)
        nll = gaussian_nll(mu, log_variance, z_hat)
        contrast = supcon(z, both, tau=self.settings.tau)
        loss = ce + self.settings.alpha2 * nll + self.settings.alpha1 * contrast
        return Loss(loss, ce=ce, likelihood=nll, contrast=contrast)

    def style_loss(self, batch: Batch, generator: torch.Generator | None = None) -> Terms:
        """Compute T's loss (stage 2) as `"style_loss"`, and its named terms."""
        x, y = self.model.prepare(batch.images), batch.labels
        x_hat = self._mixed(self.style.styled(x, generator), x)
        z_hat, z, mu, log_variance = self._embed(x_hat, x)
        permutation = torch.randperm(len(x), generator=generator).to(x.device)
        information = club(mu, log_variance, z_hat, permutation)
        distance = class_mmd(z_hat, z, y, y)
        return {
            "style_loss": distance + self.settings.beta * information,
            "mmd": distance,
            "mutual_information": information,
        }

    def _mixed(self, styled: Tensor, x: Tensor) -> Tensor:
        """Compute x̂ = m·norm(sigmoid(T(x))) + (1 - m)·x."""
        mix = self.settings.mix
        return mix * self.model.prepare(styled.sigmoid()) + (1 - mix) * x

    @stage("forward")
    def _embed(self, x_hat: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute z_x̂, z_x, μ_x and log σ²_x, with both views in one batch."""
        bottleneck = cast(GaussianBottleneck, self.model.neck)
        mu, log_variance = bottleneck.gaussian(encode(self.model.encoder, torch.cat((x_hat, x))))
        z_hat, z = bottleneck.sample(mu, log_variance).chunk(2)
        return z_hat, z, mu[len(x) :], log_variance[len(x) :]
