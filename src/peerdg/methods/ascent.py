"""Methods that make images: gradient ascent turns images into harder ones of the same meaning."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from peerdg.errors import NumericalError
from peerdg.long_work import iterate
from peerdg.methods.base import EpochResult, Method, MethodSettings, RunContext, weight_option
from peerdg.methods.pool import PoolImages, TrainingPool
from peerdg.models.classifier import Classifier, images_per_pass, in_eval_mode
from peerdg.options import option

ExtraObjective = Callable[[Float[Tensor, "n 3 h w"], Float[Tensor, "n classes"]], Float[Tensor, ""]]
"""What else images z ascend, given z and their logits; summed over images."""


class PoolMethod(Method):
    """Train one network F; make images for its training pool in `end_epoch`.

    Args:
        model: F.
        settings: The method's `Settings`.
        pool: The training images. The caller adds and drops what `end_epoch` returns
            (`TrainingPool.change`).
    """

    def __init__(self, model: Classifier, settings: Any, *, pool: TrainingPool) -> None:
        super().__init__(model, settings)
        self.pool = pool

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        return cls(model, settings, pool=context.pool)


@dataclass(frozen=True, kw_only=True)
class AscentSettings(MethodSettings):
    """When images are made, and the steps that make them."""

    k: int = weight_option(3, "how often images are made; Volpi et al.: 6")
    every: int = option(1, "epochs between two of these times", at_least=1)
    steps: int = option(15, "steps of gradient ascent for each image", at_least=1)
    rate: float = option(1 / 32, "size of a step, for each image, pixels in [0, 1]", above=0)
    gamma: float = weight_option(1.0, "weight of the penalty that keeps features near")
    clip: Literal["end", "steps"] = option(
        "end", "keep pixels in [0, 1] when an image is stored, or after every step"
    )

    period_option = "every"
    grows_pool = True
    augments = False

    def makes_images(self, epoch: int) -> bool:
        """Whether images are made after epoch `epoch`, counted from 0."""
        return (epoch + 1) % self.every == 0 and (epoch + 1) // self.every <= self.k


@dataclass(frozen=True, eq=False)
class Ascent:
    """Make each image harder for the network while its features stay near.

    Gradient ascent from z = x, for each image by itself, on

        CE(F(z), y) - γ · mean[(H(z) - H(x))²] + extra(z)

    Volpi et al., "Generalizing to unseen domains via adversarial data augmentation", NeurIPS 2018,
    https://arxiv.org/abs/1805.12018; without an extra objective this is ADA's.

    Args:
        model: F, with the features H before its last layer.
        settings: Number and size of the steps, γ, and when pixels are clipped.
        make_extra_objective: Gives the extra objective of images that start from x.
    """

    model: Classifier
    settings: AscentSettings
    make_extra_objective: Callable[[Float[Tensor, "n 3 h w"]], ExtraObjective | None]

    def make(self, pool: TrainingPool, rows: Int64[Tensor, " n"]) -> EpochResult:
        """Perturb images of the pool, in eval mode.

        The new images have the labels of the old ones. Recorded are the size of the pool with them,
        and the mean change of a pixel in grey levels.
        """
        side = pool.size or max(pool.images.shape[-2:])
        made, labels, moved = [], [], 0.0
        with in_eval_mode(self.model):
            for part in iterate(rows.split(images_per_pass(side)), "perturbing"):
                x, y = pool.clean(part)
                z = self.perturb(x, y)
                moved += float((z.float() - x.float()).abs().mean()) * len(part) / len(rows)
                made.append(z)
                labels.append(y)
        add = PoolImages(torch.cat(made), torch.cat(labels))
        records = {"pool_images": len(pool) + len(add), "perturbation": moved}
        return EpochResult(records, new_images=add)

    def perturb(
        self, images: UInt8[Tensor, "n 3 h w"], labels: Int64[Tensor, " n"]
    ) -> UInt8[Tensor, "n 3 h w"]:
        """The images after the ascent, clipped and rounded to 8 bits."""
        z = self.ascend(images.float() / 255, labels)
        if not torch.isfinite(z).all():
            raise NumericalError(
                "The gradient ascent that makes new images is not finite.",
                hint="Lower the option 'rate' of the method, or the learning rate (--train.lr).",
                details={"rate": self.settings.rate, "gamma": self.settings.gamma},
            )
        return z.clamp(0, 1).mul(255).round().to(torch.uint8)

    def ascend(
        self, x: Float[Tensor, "n 3 h w"], labels: Int64[Tensor, " n"]
    ) -> Float[Tensor, "n 3 h w"]:
        """All steps of the ascent from images in [0, 1]."""
        extra = self.make_extra_objective(x)
        with torch.no_grad():
            features = self.model.features(x)
        z = x.detach()
        for _ in iterate(range(self.settings.steps), "ascending"):
            z.requires_grad_()
            with torch.enable_grad():
                h = self.model.features(z)
                logits = self.model.head(h)
                # Summed, so that the gradient of an image does not depend on the batch size.
                ce = F.cross_entropy(logits, labels, reduction="sum")
                distance = (h - features).square().mean(dim=1).sum()
                objective = ce - self.settings.gamma * distance
                if extra is not None:
                    objective = objective + extra(z, logits)
                (gradient,) = torch.autograd.grad(objective, z)
            z = z.detach() + self.settings.rate * gradient
            if self.settings.clip == "steps":
                z = z.clamp(0, 1)
        return z
