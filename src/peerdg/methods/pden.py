"""PDEN, progressive domain expansion (CVPR 2021): add domains one by one with new generators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.losses import in_full_precision
from peerdg.losses.contrastive import adversarial_contrast, supcon
from peerdg.methods.base import (
    Batch,
    EpochResult,
    Loss,
    Method,
    MethodSettings,
    OptimizerPlan,
    OptimizerStep,
    Terms,
    weight_option,
)
from peerdg.methods.views import each_view
from peerdg.models.classifier import Classifier
from peerdg.models.generators import (
    AffineGenerator,
    DomainGenerator,
    ImageGenerator,
    InverseGenerator,
    draw_noise,
)
from peerdg.options import option
from peerdg.stages import stage


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Also train on domains that are added one by one, each made by a new generator."""

    domains: int = option(20, "number of domains, one generator each", at_least=1, at_most=1000)
    k: int = option(30, "epochs per domain", at_least=1)
    generator_epochs: int | None = option(
        None, "first epochs of each domain that train its generator (default: half)", at_least=1
    )
    generator: Literal["cnn", "affine", "translation"] = option(
        "cnn", "kind of generator: convolutions, or a spatial transformer (affine, translation)"
    )
    generator_lr: float = option(1e-4, "learning rate of the generator (Adam)", above=0)
    width: int = option(16, "channels of G's first convolution", at_least=1, at_most=1024)
    w_cls: float = weight_option(1.0, "weight of the cross-entropy in the generator's loss")
    w_div: float = weight_option(2.0, "weight of the diversity of generated images")
    delta: float = option(0.5, "maximum diversity that is rewarded", at_least=0)
    cap: Literal["image", "pixel"] = option(
        "image", "delta limits the mean difference per image (released code), or each pixel's"
    )
    w_cyc: float = weight_option(20.0, "weight of the cycle loss")
    w_info: float = weight_option(0.1, "weight of the adversarial contrast")
    tau: float = option(0.07, "temperature of both contrastive losses", above=0)
    dim: int = option(128, "width of the projection", at_least=1, at_most=2**16)
    gradients: Literal["together", "in-turn"] = option(
        "together", "compute both gradients before either update, or G's after the network's update"
    )

    period_option = "k"
    reconstruction = "on photos"
    augments = False

    @property
    def learning_epochs(self) -> int:
        """Epochs per domain that train its generator. Half by default, as in the released code."""
        return (self.k + 1) // 2 if self.generator_epochs is None else self.generator_epochs

    def inert(self, epochs: Sequence[Mapping[str, Any]]) -> str | None:
        """Report inverse networks that return nearly the same color for all images.

        Averages the last `cycle_share` of each domain over domains.
        """
        last = {e["domain"]: e["cycle_share"] for e in epochs if "cycle_share" in e}
        if not last or (share := fmean(last.values())) <= 0.5:
            return None
        return f"cycle loss {share:.2f} of the variance of the images"


class PDEN(Method):
    """Expand the source with domains made by a sequence of trained generators.

    Li et al., "Progressive domain expansion network for single domain generalization", CVPR 2021,
    https://arxiv.org/abs/2103.16050, as in the released code. Each domain has k epochs and a new
    generator G, which is trained in the first half of them. z is the normalized projection of the
    network's features. Each batch has the views x_t = G(x, n₁) and x_t' = G(x, n₂). From the second
    domain on, it also has x₂ = G_old(x) from a randomly chosen earlier generator, and
    x₃ = r·x + (1 - r)·x₂ with r ~ U(0, 1). Noise and r are drawn for each image.

    With fixed generators, the network minimizes

        CE(x) + CE(x₂) + CE(x₃) + CE(x_t) + Con(z_t, z_x, z₂, z₃)

    where Con is SimCLR's loss with the views of an image as positives. With a fixed network, the
    generator and its inverse minimize

        w_cls·CE(x_t) - w_div·mean min(|x_t - x_t'|, δ)
        + w_cyc·MSE(G⁻¹(x_t), x) + w_info·AdvCon(z_t, z)

    Generated images thus keep their class and can be mapped back to x. They differ from each other
    and, in the embedding, from a randomly chosen other view. AdvCon is -log(1 - p⁺), see
    `adversarial_contrast`. With a spatial transformer (`generator`), the second term compares
    affine maps instead of images, and there is no third term.

    `Settings` has an option for each open detail:

    - `gradients`: the released code backpropagates through weights that were already updated,
      which is an error in current torch. Here both gradients are computed before either update,
      or the generator's with a new pass through the updated network.
    - `cap`: δ limits the mean difference of two images as in the released code, or the difference
      of each pixel.

    Generators take and return images in [0, 1], which the network normalizes. Finished generators
    are frozen. Their list has its full length from the start, so all checkpoints have the same
    shape. G, G⁻¹ and their optimizer are reset for each domain.
    """

    settings: Settings
    divergence_hint = ", or the generator's (--pden.generator-lr)"

    def __init__(self, model: Classifier, settings: Settings | None = None) -> None:
        super().__init__(model, settings or Settings())
        self.projection = nn.Linear(model.feature_dim, self.settings.dim)
        self.generator = make_generator(self.settings)
        self.inverse = make_inverse(self.settings)
        # The last generator is never used as an earlier one, so it needs no entry.
        self.finished = nn.ModuleList(
            make_generator(self.settings).requires_grad_(False)
            for _ in range(self.settings.domains - 1)
        )
        # `start_epoch` sets both attributes for each epoch.
        self.domain = 0  # counted from 0
        self.generator_learns = True

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """Train network and projection with the phase's optimizer, and G and G⁻¹ with Adam."""
        lr = self.settings.generator_lr
        return {
            "main": OptimizerPlan.of(self.model, self.projection),
            "generator": OptimizerPlan.of(self.generator, self.inverse, kind="adam", lr=lr),
        }

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Set the domain of this epoch, and whether its generator is trained."""
        self.domain = min(epoch // self.settings.k, self.settings.domains - 1)
        epoch -= self.domain * self.settings.k
        self.generator_learns = epoch < self.settings.learning_epochs
        return {"domain": self.domain + 1, "generator_learns": self.generator_learns}

    def end_epoch(self, epoch: int) -> EpochResult:
        """Freeze the generator at the end of its domain, and reset G and G⁻¹ for the next one."""
        domain, later = divmod(epoch + 1, self.settings.k)
        if later or domain >= self.settings.domains:
            return EpochResult()
        self.finished[domain - 1].load_state_dict(self.generator.state_dict())
        # Load in place, because the optimizer refers to these parameters.
        self.generator.load_state_dict(make_generator(self.settings).state_dict())
        self.inverse.load_state_dict(make_inverse(self.settings).state_dict())
        return EpochResult(reset_optimizers=("generator",))

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Update the network, and the generator in the first epochs of a domain."""
        views = self.views(batch, batch.generator())
        terms, z = self.network_loss(views, batch.labels)
        together = self.settings.gradients == "together"
        if self.generator_learns and together:
            # The graph of the network's loss does not include G, so G may be updated first.
            terms |= self._update_generator(views, z, batch.labels, update)
        update("main", terms["loss"], terms)
        if self.generator_learns and not together:
            terms |= self._update_generator(views, z, batch.labels, update)
        return terms

    @stage("generator")
    def views(self, batch: Batch, generator: torch.Generator | None = None) -> "Views":
        """Make all views of a batch, with an earlier and the current generator."""
        x = batch.images.float() / 255
        source = [x]
        if self.domain:
            chosen = int(torch.randint(self.domain, (), generator=generator))
            old = self.finished[chosen]
            assert isinstance(old, DomainGenerator)  # noqa: S101  (narrows the type)
            with torch.no_grad():
                code = old.code(x, draw_noise(x, generator))
                r = torch.rand(len(x), generator=generator).to(x)
                source += [old.render(x, code), old.mixed(x, code, r)]
        with torch.set_grad_enabled(self.generator_learns):
            code = self.generator.code(x, draw_noise(x, generator))
            # Only the generator's loss needs the code of a second image.
            noise = draw_noise(x, generator)
            other = self.generator.code(x, noise) if self.generator_learns else code
        contrasted = int(torch.randint(len(source), (), generator=generator))
        return Views(source, self.generator.render(x, code), code, other, contrasted)

    def network_loss(self, views: "Views", y: Tensor) -> tuple[Loss, list[Tensor]]:
        """Compute the network's loss, and the detached z of all views except x_t."""
        every = [*views.source, views.x_t.detach()]
        features, logits = each_view(self.model, every, joint=False)
        ce = [F.cross_entropy(each, y) for each in logits]
        z = [self.projection(each) for each in features]
        image = torch.arange(len(y), device=y.device).repeat(len(every))
        contrast = supcon(torch.cat(z), image, tau=self.settings.tau)
        names = ("ce_clean", "ce_old", "ce_mixed") if self.domain else ("ce_clean",)
        named = dict(zip(names, ce, strict=False))
        loss = torch.stack(ce).sum() + contrast
        terms = Loss(loss, **named, ce_new=ce[-1], contrast=contrast)
        return terms, [each.detach() for each in z[:-1]]

    def generator_loss(self, views: "Views", z: list[Tensor], y: Tensor) -> Terms:
        """Compute the loss of G and G⁻¹ as `"generator_loss"`, and its named terms."""
        settings, x = self.settings, views.source[0]
        features = self.model.features(views.x_t)
        ce = F.cross_entropy(self.model.head(features), y)
        z_t = self.projection(features)
        information = adversarial_contrast(z_t, z[views.contrasted], tau=settings.tau)
        diversity = capped_difference(
            views.code, views.other, delta=settings.delta, cap=settings.cap
        )
        cycle = x.new_zeros(())  # a spatial transformer has no inverse network
        share: Terms = {}
        if isinstance(self.inverse, InverseGenerator):
            cycle = F.mse_loss(self.inverse(views.x_t), x)
            # Equals 1 if the inverse returns the mean color for every image.
            share = {"cycle_share": cycle / x.var().clamp(min=1e-6)}
        loss = settings.w_cls * ce - settings.w_div * diversity
        loss = loss + settings.w_cyc * cycle + settings.w_info * information
        return {
            "generator_loss": loss,
            "generator_ce": ce,
            "diversity": diversity,
            "cycle": cycle,
            "adversarial_contrast": information,
            **share,
        }

    def _update_generator(
        self, views: "Views", z: list[Tensor], y: Tensor, update: OptimizerStep
    ) -> Terms:
        terms = self.generator_loss(views, z, y)
        update("generator", terms["generator_loss"], terms)
        return terms


class Views(NamedTuple):
    """Views of a batch, made by `PDEN.views`."""

    source: list[Tensor]  # x, and from the second domain on x₂ and x₃
    x_t: Tensor  # images from the current generator
    code: Tensor  # code of x_t, see `DomainGenerator` (x_t itself for `ImageGenerator`)
    other: Tensor  # code of x_t', with different noise
    contrasted: int  # index in `source` of the view from which x_t must differ in the embedding


@in_full_precision
def capped_difference(a: Tensor, b: Tensor, *, delta: float, cap: str) -> Tensor:
    """Compute the mean of |a - b|, capped at δ per image or per pixel (`cap`)."""
    difference = (a - b).abs().flatten(1)  # (batch, values)
    if cap == "image":
        difference = difference.mean(1)
    return difference.clamp(max=delta).mean()


def make_generator(settings: Settings) -> DomainGenerator:
    """Make a new generator G."""
    if settings.generator == "cnn":
        return ImageGenerator(settings.width)
    return AffineGenerator(settings.generator)


def make_inverse(settings: Settings) -> nn.Module:
    """Make a new inverse network G⁻¹. It is empty for a spatial transformer."""
    if settings.generator == "cnn":
        return InverseGenerator(settings.width)
    return nn.Sequential()
