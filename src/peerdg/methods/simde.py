"""SimDE: simple domain expansion (CVPR workshops 2023), reconstructed from its abstract."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.losses.entropy import entropy
from peerdg.methods.base import (
    Batch,
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
from peerdg.models.ensemble import ensemble
from peerdg.models.generators import ImageGenerator
from peerdg.options import option
from peerdg.stages import stage


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Train two classifiers on images from generators that they guide. A reconstruction."""

    beta: float = weight_option(0.5, "weight of the entropy in the generators' loss")
    w_contrast: float = weight_option(
        10.0, "weight of the penalty on lost image contrast (our addition)"
    )
    guidance: Literal["switched", "alternating", "own"] = option(
        "switched", "a generator is guided by the other classifier, by each in turn, or by its own"
    )
    generator_lr: float = option(1e-4, "learning rate of the generators (Adam)", above=0)
    width: int = option(16, "channels of a generator's first convolution", at_least=1, at_most=1024)

    reconstruction = "everywhere"
    deploys = "the ensemble of two networks that were trained together"
    augments = False

    def inert(self, epochs: Sequence[Mapping[str, Any]]) -> str | None:
        """Report generators that fade their images, or whose images leave no uncertainty."""
        known = [epoch for epoch in epochs if "entropy_share" in epoch]
        if not known:
            return None
        mean = {n: fmean(e[n] for e in known) for n in ("image_contrast", "entropy_share")}
        if mean["image_contrast"] < 0.5:
            return f"images with {mean['image_contrast']:.2f} of the contrast of the source"
        return (
            f"entropy {share:.2f} of its optimum"
            if (share := mean["entropy_share"]) < 0.25
            else None
        )


class SimDE(Method):
    """Train two classifiers on images from two generators. Each classifier guides one generator.

    A reconstruction from the abstract of Xu et al., "SimDE: a simple domain expansion approach for
    single-source domain generalization", CVPR workshops 2023,
    https://doi.org/10.1109/CVPRW59228.2023.00508. There is no public code. A generator G_i makes
    images that its guide F_j classifies correctly but with high uncertainty. It minimizes

        CE(F_j(G_i(x, n)), y) - β · H(F_j(G_i(x, n)))
        + w_contrast · mean[max(0, 1 - s(G_i(x, n)) / s(x))²]

    where H is the entropy of the predictions and s the standard deviation of an image's pixels. The
    last term is our addition. Without it, generators minimize their loss by fading images to gray.
    Guidance is switched: F₂ guides G₁ and F₁ guides G₂, so that the generators expand the source
    from different views. With fixed generators, both classifiers minimize

        CE(F(x), y) + CE(F(G₁(x, n₁)), y) + CE(F(G₂(x, n₂)), y)

    on the same images. The deployed model is the ensemble of both, the mean of their probabilities.
    There is no cycle loss, no contrastive loss and no sequence of generators.

    Assumptions:

    - The generators follow Li et al., see `ImageGenerator`. Noise is drawn for each image.
    - Both gradients are computed before either update.
    - F₁ is the pre-trained network. F₂ is a copy of it with a new head, because two equal
      classifiers would stay equal.
    - Guidance is switched for the whole run. `guidance="alternating"` reads "switching" as a change
      in time: the guides change places after each epoch.
    """

    settings: Settings
    divergence_hint = ", or the generators' (--simde.generator-lr)"

    def __init__(self, model: Classifier, settings: Settings | None = None) -> None:
        super().__init__(settings=settings or Settings())
        self.first, self.second = model, copy.deepcopy(model)
        self.second.head.reset_parameters()
        self.first_generator, self.second_generator = (
            ImageGenerator(self.settings.width) for _ in range(2)
        )
        self.switched = self.settings.guidance != "own"
        self.best_entropy = best_entropy(self.settings.beta, len(model.classes))

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """Train both classifiers with the phase's optimizer, and both generators with Adam."""
        lr = self.settings.generator_lr
        return {
            "main": OptimizerPlan.of(*self.classifiers),
            "generators": OptimizerPlan.of(*self.generators, kind="adam", lr=lr),
        }

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Set which classifier guides which generator in this epoch."""
        if self.settings.guidance == "alternating":
            self.switched = epoch % 2 == 0
        return {"switched": self.switched}

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Update generators and classifiers. Compute the losses of both before either update."""
        x, y = batch.images.float() / 255, batch.labels
        made = self.generate(x, batch.generator())
        terms = self.classifier_loss(x, made, y)
        # The graph of the classifiers' loss does not include the generators, so they may be updated
        # first.
        own = self.generator_loss(x, made, y)
        update("generators", own["generator_loss"], own)
        update("main", terms["loss"], terms)
        return {**terms, **own}

    @stage("generator")
    def generate(self, x: Tensor, generator: torch.Generator | None = None) -> list[Tensor]:
        """Generate G₁(x, n₁) and G₂(x, n₂)."""
        return [each.generate(x, generator) for each in self.generators]

    def classifier_loss(self, x: Tensor, made: list[Tensor], y: Tensor) -> Loss:
        """Compute the summed loss of both classifiers, with each loss as a named term."""
        views = [x, *(images.detach() for images in made)]
        losses = []
        for model in self.classifiers:
            _, logits = each_view(model, views, joint=False)
            losses.append(torch.stack([F.cross_entropy(each, y) for each in logits]).sum())
        first, second = losses
        return Loss(first + second, ce_first=first, ce_second=second)

    def generator_loss(self, x: Tensor, made: list[Tensor], y: Tensor) -> Terms:
        """Compute the generators' summed loss as `"generator_loss"`, and its named terms."""
        logits = [guide(images) for guide, images in zip(self.guides, made, strict=True)]
        ce = torch.stack([F.cross_entropy(each, y) for each in logits]).sum()
        uncertainty = torch.stack([entropy(each) for each in logits]).sum()
        s = [images.flatten(1).float().std(1) for images in (x, *made)]  # contrast of each image
        shares = torch.stack(s[1:]) / s[0].clamp(min=1e-3)  # (generators, batch)
        faded = (1 - shares).clamp(min=0).square().mean(1).sum()
        loss = ce - self.settings.beta * uncertainty + self.settings.w_contrast * faded
        return {
            "generator_loss": loss,
            "generator_ce": ce,
            "entropy": uncertainty,
            "entropy_share": uncertainty / (2 * self.best_entropy),
            "image_contrast": shares.mean(),
        }

    @property
    def classifiers(self) -> tuple[Classifier, Classifier]:
        """F₁ and F₂."""
        return self.first, self.second

    @property
    def generators(self) -> tuple[ImageGenerator, ImageGenerator]:
        """G₁ and G₂."""
        return self.first_generator, self.second_generator

    @property
    def guides(self) -> tuple[Classifier, Classifier]:
        """Classifiers that guide G₁ and G₂."""
        return (self.second, self.first) if self.switched else self.classifiers

    @property
    def deployed_name(self) -> str:
        """Key of the ensemble, or of the first attached average, which averages F₁."""
        return next(iter(self.averages), "ensemble")

    @property
    def networks(self) -> dict[str, Classifier]:
        mean = ensemble(self.classifiers)
        return {"first": self.first, "second": self.second, "ensemble": mean}


def best_entropy(beta: float, classes: int) -> float:
    """Compute the entropy H at the minimum of CE - β·H, if all wrong classes are equally likely."""
    p = torch.linspace(1 / classes, 1, 10_000, dtype=torch.float64)[:-1]  # for the true class
    rest = (1 - p) / (classes - 1)
    h = -p * p.log() - (1 - p) * rest.log()
    return float(h[(-p.log() - beta * h).argmin()])
