"""Gradient ascent on images, and the base class of methods that add images to the pool."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.augment.protocol import unit
from peerdg.errors import NumericalError
from peerdg.long_work import iterate
from peerdg.methods.base import EpochResult, Method, MethodSettings, RunContext, weight_option
from peerdg.methods.pool import PoolImages, TrainingPool
from peerdg.models.classifier import Classifier, images_per_pass, in_eval_mode
from peerdg.options import option

# Mean change in gray levels below which a run is inert. Only images that the network is not sure of
# change, so the mean is small: in study *learned*, ADA with 0.11 is ahead of ADA with plain copies.
MIN_PERTURBATION = 0.1

ExtraObjective = Callable[[Float[Tensor, "n 3 h w"], Float[Tensor, "n classes"]], Float[Tensor, ""]]
"""Extra ascent objective for images z and their logits, summed over images."""


class PoolMethod(Method):
    """Base class of methods that add images to the training pool in `end_epoch`.

    Args:
        model: Network F.
        settings: The method's `Settings`.
        pool: Training images. The caller of `end_epoch` applies its result to the pool with
            `TrainingPool.change`.
    """

    def __init__(self, model: Classifier, settings: Any, *, pool: TrainingPool) -> None:
        super().__init__(model, settings)
        self.pool = pool

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        return cls(model, settings, pool=context.pool)


@dataclass(frozen=True, kw_only=True)
class AscentSettings(MethodSettings):
    """Schedule and options of the gradient ascent."""

    k: int = weight_option(3, "how many times to make images (Volpi et al.: 6)")
    every: int = option(1, "epochs between rounds of new images", at_least=1)
    steps: int = option(15, "gradient ascent steps per image", at_least=1)
    rate: float = option(1 / 32, "step size per image, with pixels in [0, 1]", above=0)
    gamma: float = weight_option(1.0, "weight of the feature distance penalty")
    clip: Literal["off", "end", "steps"] = "end"

    period_option = "every"
    grows_pool = True
    augments = False

    def makes_images(self, epoch: int) -> bool:
        """Return whether images are made after epoch `epoch`, counted from 0."""
        return (epoch + 1) % self.every == 0 and (epoch + 1) // self.every <= self.k

    def inert(self, epochs: Sequence[Mapping[str, Any]]) -> str | None:
        """Report perturbations of less than `MIN_PERTURBATION` gray levels."""
        moved = max((e["perturbation"] for e in epochs if "perturbation" in e), default=None)
        if moved is None or moved >= MIN_PERTURBATION:
            return None
        return f"perturbation {moved:.2f} gray levels"


@dataclass(frozen=True, eq=False)
class Ascent:
    """Perturb images to raise the network's loss while keeping their features close.

    The ascent starts from z = x, separately for each image, and maximizes

        CE(F(z), y) - γ · mean[(H(z) - H(x))²] + extra(z)

    Volpi et al., "Generalizing to unseen domains via adversarial data augmentation", NeurIPS 2018,
    https://arxiv.org/abs/1805.12018. Without the extra objective this is ADA's ascent.

    Args:
        model: Network F, with the features H before its last layer.
        settings: Number and size of the steps, γ, and when to clip pixels.
        make_extra_objective: Returns the extra objective for images that start from x.
    """

    model: Classifier
    settings: AscentSettings
    make_extra_objective: Callable[[Float[Tensor, "n 3 h w"]], ExtraObjective | None]

    def make(self, pool: TrainingPool, rows: Int64[Tensor, " n"]) -> EpochResult:
        """Perturb pool images, with the network in eval mode. Labels stay the same.

        The new size of the pool and the mean change of a pixel in gray levels are recorded.
        """
        side = pool.size or max(pool.images.shape[-2:])
        images, labels, change = [], [], 0.0
        with in_eval_mode(self.model):
            for part in iterate(rows.split(images_per_pass(side)), "perturbing"):
                x, y = pool.clean(part)
                z = self.perturb(x, y)
                change += 255 * float((unit(z) - unit(x)).abs().mean()) * len(part) / len(rows)
                images.append(z)
                labels.append(y)
        new_images = PoolImages(torch.cat(images), torch.cat(labels))
        records = {"pool_images": len(pool) + len(new_images), "perturbation": change}
        return EpochResult(records, new_images=new_images)

    def perturb(self, images: Tensor, labels: Int64[Tensor, " n"]) -> Tensor:
        """Return the perturbed images as uint8, or as float16 if they are not clipped."""
        z = self.ascend(unit(images), labels)
        is_clipped = self.settings.clip != "off"
        z = z if is_clipped else z.half()
        if not torch.isfinite(z).all():
            raise NumericalError(
                "The gradient ascent that makes new images diverged: pixels are not finite.",
                hint="Lower the method's option 'rate' or the learning rate (--train.lr).",
                details={"rate": self.settings.rate, "gamma": self.settings.gamma},
            )
        return z.clamp(0, 1).mul(255).round().to(torch.uint8) if is_clipped else z

    def ascend(
        self, x: Float[Tensor, "n 3 h w"], labels: Int64[Tensor, " n"]
    ) -> Float[Tensor, "n 3 h w"]:
        """Run all ascent steps on floating-point images, where 1.0 is white."""
        extra = self.make_extra_objective(x)
        with torch.no_grad():
            features = self.model.features(x)
        z = x.detach()
        for _ in iterate(range(self.settings.steps), "ascending"):
            z.requires_grad_()
            with torch.enable_grad():
                h = self.model.features(z)
                logits = self.model.head(h)
                # Sum instead of mean: an image's gradient must not depend on the batch size.
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
