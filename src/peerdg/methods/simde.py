"""SimDE: simple domain expansion (CVPR workshops 2023), reconstructed from its abstract."""

import copy
from dataclasses import dataclass
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
    """Two classifiers, each learning from generators that the other guides; a reconstruction."""

    beta: float = weight_option(0.5, "how much a generator seeks uncertain predictions")
    guidance: Literal["switched", "alternating", "own"] = option(
        "switched", "whether a generator is guided by the other classifier, by both, or by its own"
    )
    generator_lr: float = option(1e-4, "learning rate of the generators, by Adam", above=0)
    width: int = option(16, "channels of a generator's first convolution", at_least=1, at_most=1024)

    reconstruction = "everywhere"
    deploys = "the ensemble of two networks that were trained together"
    augments = False


class SimDE(Method):
    """Two classifiers learn from two generators, each guided by the classifier of the other.

    A reconstruction from the abstract of Xu et al., "SimDE: a simple domain expansion approach for
    single-source domain generalization", CVPR workshops 2023,
    https://doi.org/10.1109/CVPRW59228.2023.00508; there is no public code. A generator makes images
    that its guide F_j still gets right but is unsure of:

        CE(F_j(G_i(x, n)), y) - β · H(F_j(G_i(x, n)))

    with the entropy H of the predictions. Guidance is switched: G₁ is guided by F₂ and G₂ by F₁, so
    that both expand the source from different views. Both classifiers minimise

        CE(F(x), y) + CE(F(G₁(x, n₁)), y) + CE(F(G₂(x, n₂)), y)

    on the same images, with the generators given. The deployed model is the ensemble of both: the
    mean of their probabilities. There is no cycle loss, contrastive loss or sequence of generators.

    What is assumed: the generator is that of Li et al., see `ImageGenerator`; noise is drawn for
    each image; both gradients are taken before either update; F₁ is the pre-trained network and
    F₂ a copy of it with a new head, since two equal classifiers would stay equal. Where "switching"
    is read as a change in time (`guidance="alternating"`), guides change places after each epoch.
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

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """The phase's for both classifiers, Adam for both generators."""
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
        """Update the generators and both classifiers, by gradients before either update."""
        x, y = batch.images.float() / 255, batch.labels
        made = self.generate(x, batch.generator())
        terms = self.classifier_loss(x, made, y)
        # The classifiers' loss does not know of the generators, whose update may come first.
        own = self.generator_loss(made, y)
        update("generators", own["generator_loss"], own)
        update("main", terms["loss"], terms)
        return {**terms, **own}

    @stage("generator")
    def generate(self, x: Tensor, generator: torch.Generator | None = None) -> list[Tensor]:
        """G₁(x, n₁) and G₂(x, n₂)."""
        return [each.generate(x, generator) for each in self.generators]

    def classifier_loss(self, x: Tensor, made: list[Tensor], y: Tensor) -> Loss:
        """`"loss"`, which both classifiers minimise, each for itself, and that of each."""
        views = [x, *(images.detach() for images in made)]
        losses = []
        for model in self.classifiers:
            _, logits = each_view(model, views, joint=False)
            losses.append(torch.stack([F.cross_entropy(each, y) for each in logits]).sum())
        first, second = losses
        return Loss(first + second, ce_first=first, ce_second=second)

    def generator_loss(self, made: list[Tensor], y: Tensor) -> Terms:
        """`"generator_loss"`, which both generators minimise, each for itself, with its terms."""
        logits = [guide(images) for guide, images in zip(self.guides, made, strict=True)]
        ce = torch.stack([F.cross_entropy(each, y) for each in logits]).sum()
        uncertainty = torch.stack([entropy(each) for each in logits]).sum()
        return {
            "generator_loss": ce - self.settings.beta * uncertainty,
            "generator_ce": ce,
            "entropy": uncertainty,
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
        """The classifiers that guide G₁ and G₂."""
        return (self.second, self.first) if self.switched else self.classifiers

    @property
    def deployed_name(self) -> str:
        """The ensemble, unless the run asks for an average, which is that of F₁."""
        return next(iter(self.averages), "ensemble")

    @property
    def networks(self) -> dict[str, Classifier]:
        mean = ensemble(self.classifiers)
        return {"first": self.first, "second": self.second, "ensemble": mean}
