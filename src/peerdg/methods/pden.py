"""PDEN: progressive domain expansion (CVPR 2021): one generator after the other makes a domain."""

from dataclasses import dataclass
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
    """One generator of images after the other learns a new domain for the network."""

    domains: int = option(20, "domains, each with a generator", at_least=1, at_most=1000)
    k: int = option(30, "epochs of a domain", at_least=1)
    generator_epochs: int | None = option(
        None, "first epochs of a domain in which its generator learns; default: half", at_least=1
    )
    generator: Literal["cnn", "affine", "translation"] = option(
        "cnn", "what makes a domain: convolutions, or a map of coordinates (spatial transformer)"
    )
    generator_lr: float = option(1e-4, "learning rate of the generator, by Adam", above=0)
    width: int = option(16, "channels of the first convolution", at_least=1, at_most=1024)
    w_cls: float = weight_option(1.0, "weight of the class in the generator's loss")
    w_div: float = weight_option(2.0, "weight of the diversity of its images")
    delta: float = option(0.5, "diversity that is enough", at_least=0)
    cap: Literal["image", "pixel"] = option(
        "image", "delta caps the mean difference of two images, as the code; or each pixel's"
    )
    w_cyc: float = weight_option(20.0, "weight of the reconstruction from its images")
    w_info: float = weight_option(0.1, "weight of the adversarial contrast")
    tau: float = option(0.07, "temperature of both contrasts", above=0)
    dim: int = option(128, "width of the projection that is contrasted", at_least=1, at_most=2**16)
    gradients: Literal["together", "in-turn"] = option(
        "together", "both gradients before either update, or the generator's by the updated network"
    )

    period_option = "k"
    reconstruction = "on photos"
    augments = False

    @property
    def learning_epochs(self) -> int:
        """Epochs of a domain in which its generator learns: half of them in the paper's run."""
        return (self.k + 1) // 2 if self.generator_epochs is None else self.generator_epochs


class PDEN(Method):
    """Make domains one after the other, each by a new generator that strays from those before.

    Li et al., "Progressive domain expansion network for single domain generalization", CVPR 2021,
    https://arxiv.org/abs/2103.16050, as in the released code. Each domain has k epochs and a new
    generator G, which learns in the first half of them. With z the normalised projection of the
    network's features, each batch has the views x_t = G(x, n₁) and x_t' = G(x, n₂), and from the
    second domain on x₂ = G_old(x) of an earlier generator chosen at random, and
    x₃ = r·x + (1 - r)·x₂ with r ~ U(0, 1). Noise and r are drawn for each image.

    The network minimises, with the images of its generators given,

        CE(x) + CE(x₂) + CE(x₃) + CE(x_t) + Con(z_t, z_x, z₂, z₃)

    where Con is SimCLR's loss: the views of an image are positives. The generator minimises

        w_cls·CE(x_t) - w_div·mean min(|x_t - x_t'|, δ)
        + w_cyc·MSE(G⁻¹(x_t), x) + w_info·AdvCon(z_t, z)

    with the network given: its images keep their class and can be traced back to x, but differ
    among each other, and in the embedding from one of the other views, chosen at random. AdvCon is
    -log(1 - p⁺), see `adversarial_contrast`. A spatial transformer (`generator`) has maps of
    coordinates in place of images in the second term and no third term.

    What is open is a field of `Settings`. The released code takes the generator's gradient through
    weights that were already updated, an error in today's torch; here both gradients are taken
    first, or the generator's by a new pass through the updated network (`gradients`). δ caps the
    mean difference of two images as in the released code, or that of each pixel (`cap`).

    Generators see and make images in [0, 1], which the network normalises. Finished generators are
    frozen, in one list with a place for each of them from the start; one pair of G and G⁻¹ learns
    and is initialised anew for each domain, with its optimizer.
    """

    settings: Settings
    divergence_hint = ", or the generator's (--pden.generator-lr)"

    def __init__(self, model: Classifier, settings: Settings | None = None) -> None:
        super().__init__(model, settings or Settings())
        self.projection = nn.Linear(model.feature_dim, self.settings.dim)
        self.generator = make_generator(self.settings)
        self.inverse = make_inverse(self.settings)
        # The last generator is never an earlier one.
        self.finished = nn.ModuleList(
            make_generator(self.settings).requires_grad_(False)
            for _ in range(self.settings.domains - 1)
        )
        self.domain = 0  # counted from 0; a function of the epoch, as is the next
        self.generator_learns = True

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """The phase's for network and projection; Adam for the current generator and inverse."""
        lr = self.settings.generator_lr
        return {
            "main": OptimizerPlan.of(self.model, self.projection),
            "generator": OptimizerPlan.of(self.generator, self.inverse, kind="adam", lr=lr),
        }

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Find the domain of this epoch, and whether its generator still learns."""
        self.domain = min(epoch // self.settings.k, self.settings.domains - 1)
        epoch -= self.domain * self.settings.k
        self.generator_learns = epoch < self.settings.learning_epochs
        return {"domain": self.domain + 1, "generator_learns": self.generator_learns}

    def end_epoch(self, epoch: int) -> EpochResult:
        """At the end of a domain, freeze its generator and begin a new one."""
        domain, later = divmod(epoch + 1, self.settings.k)
        if later or domain >= self.settings.domains:
            return EpochResult()
        self.finished[domain - 1].load_state_dict(self.generator.state_dict())
        # In place: the optimizer holds these very parameters.
        self.generator.load_state_dict(make_generator(self.settings).state_dict())
        self.inverse.load_state_dict(make_inverse(self.settings).state_dict())
        return EpochResult(reset_optimizers=("generator",))

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Update network and generator; only the network after the first epochs of a domain."""
        views = self.views(batch, batch.generator())
        terms, z = self.network_loss(views, batch.labels)
        together = self.settings.gradients == "together"
        if self.generator_learns and together:
            # The network's loss does not know of G, so G's update does not spoil its graph.
            terms |= self._update_generator(views, z, batch.labels, update)
        update("main", terms["loss"], terms)
        if self.generator_learns and not together:
            terms |= self._update_generator(views, z, batch.labels, update)
        return terms

    @stage("generator")
    def views(self, batch: Batch, generator: torch.Generator | None = None) -> "Views":
        """The images of a batch: the source's, an earlier generator's, and the current one's."""
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
            # Only the generator's loss asks how different another image would be.
            noise = draw_noise(x, generator)
            other = self.generator.code(x, noise) if self.generator_learns else code
        contrasted = int(torch.randint(len(source), (), generator=generator))
        return Views(source, self.generator.render(x, code), code, other, contrasted)

    def network_loss(self, views: "Views", y: Tensor) -> tuple[Loss, list[Tensor]]:
        """`"loss"`, which the network minimises, with its terms; and z of the source's views."""
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
        """`"generator_loss"`, which the generator and its inverse minimise, with its terms."""
        settings, x = self.settings, views.source[0]
        features = self.model.features(views.x_t)
        ce = F.cross_entropy(self.model.head(features), y)
        z_t = self.projection(features)
        information = adversarial_contrast(z_t, z[views.contrasted], tau=settings.tau)
        diversity = capped_difference(
            views.code, views.other, delta=settings.delta, cap=settings.cap
        )
        cycle = x.new_zeros(())  # a map of coordinates has no inverse network
        if isinstance(self.inverse, InverseGenerator):
            cycle = F.mse_loss(self.inverse(views.x_t), x)
        loss = settings.w_cls * ce - settings.w_div * diversity
        loss = loss + settings.w_cyc * cycle + settings.w_info * information
        return {
            "generator_loss": loss,
            "generator_ce": ce,
            "diversity": diversity,
            "cycle": cycle,
            "adversarial_contrast": information,
        }

    def _update_generator(
        self, views: "Views", z: list[Tensor], y: Tensor, update: OptimizerStep
    ) -> Terms:
        terms = self.generator_loss(views, z, y)
        update("generator", terms["generator_loss"], terms)
        return terms


class Views(NamedTuple):
    """The images that a batch gives: each list entry and tensor has the batch as its length."""

    source: list[Tensor]  # x; from the second domain on also x₂ and x₃
    x_t: Tensor  # of the current generator
    code: Tensor  # what it decided about x_t: for `ImageGenerator` x_t itself
    other: Tensor  # the code of x_t', with other noise
    contrasted: int  # the one of `source` from which x_t is to differ in the embedding


@in_full_precision
def capped_difference(a: Tensor, b: Tensor, *, delta: float, cap: str) -> Tensor:
    """Mean of |a - b|, with at most δ for each row of the batch, or for each value of it."""
    difference = (a - b).abs().flatten(1)  # (batch, values)
    if cap == "image":
        difference = difference.mean(1)
    return difference.clamp(max=delta).mean()


def make_generator(settings: Settings) -> DomainGenerator:
    """G."""
    if settings.generator == "cnn":
        return ImageGenerator(settings.width)
    return AffineGenerator(settings.generator)


def make_inverse(settings: Settings) -> nn.Module:
    """G⁻¹; nothing where the generator makes no images of its own."""
    if settings.generator == "cnn":
        return InverseGenerator(settings.width)
    return nn.Sequential()
