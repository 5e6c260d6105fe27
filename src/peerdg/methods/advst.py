"""AdvST: adversarial learning with semantics transformations (AAAI 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from peerdg.augment.semantic import Chain, Chains, semantic_transformations
from peerdg.errors import ConfigError, NumericalError
from peerdg.long_work import iterate
from peerdg.losses.contrastive import supcon
from peerdg.losses.entropy import entropy
from peerdg.methods.ascent import PoolMethod
from peerdg.methods.base import Batch, EpochResult, Loss, MethodSettings, weight_option
from peerdg.methods.pool import PoolImages, TrainingPool
from peerdg.models.classifier import Classifier, has_batch_statistics, in_eval_mode
from peerdg.models.layers import projection_head
from peerdg.options import option

HOLE = 16  # side of a cutout hole in the released code, in pixels
MIN_STEPS = 3  # a run is inert if its searches have fewer steps on average
WIDE = 4096  # features of AlexNet and CaffeNet, which end in fully connected layers


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Also train on domains made by image operations with adversarial parameters."""

    k: int = option(5, "number of newest domains to train on", at_least=1, announced=True)
    every: int = option(1, "epochs between new domains", at_least=1)
    steps: int = option(20, "maximum number of maximization steps", at_least=1)
    rate: float = option(0.2, "RMSprop learning rate of the maximization", above=0)
    tolerance: float = option(0.1, "stop once the objective changes by at most this", at_least=0)
    batch_size: int = option(256, "number of images that share a chain of operations", at_least=1)
    lam: float = weight_option(100.0, "weight of the feature distance penalty")
    eta: float = option(0.0, "weight of the entropy in the maximization (AdvST-ME: 10)", at_least=0)
    eta_min: float = weight_option(10.0, "weight of the entropy in training")
    beta: float = weight_option(1.0, "weight of the supervised contrastive loss")
    tau: float = option(0.07, "temperature of the contrastive loss", above=0)
    head_layers: int | None = option(
        None,
        "projection layers for the contrastive loss (default: 2 with 4096 features, as in "
        "AlexNet, otherwise 1)",
        at_least=1,
    )
    head_dim: int = option(128, "width of the projection", at_least=1, at_most=65536)
    length: int = option(3, "maximum number of operations in a chain", at_least=1, at_most=4)
    cutout: Literal["scaled", "absolute"] = option(
        "scaled", "side of cutout holes: a fifth of the image, or 16 pixels (released code)"
    )
    contrast: Literal["factor", "mean"] = option(
        "factor", "scale pixels (released code), or their distance from the mean gray (PIL)"
    )
    frozen_statistics: bool = option(True, "keep the batch statistics from pre-training")

    period_option = "every"
    grows_pool = True
    augments = False

    def check_images(self, side: int) -> None:
        """Reject holes that cover the whole image."""
        if self.cutout == "absolute" and side <= HOLE:
            raise ConfigError(
                f"Cutout holes of {HOLE} pixels are too large for images of {side} pixels.",
                hint="Use --advst.cutout scaled.",
            )

    def makes_images(self, epoch: int) -> bool:
        """Return whether a domain is made after epoch `epoch`, counted from 0."""
        return (epoch + 1) % self.every == 0

    def inert(self, epochs: Sequence[Mapping[str, Any]]) -> str | None:
        """Report a run whose searches mostly end after two steps, the minimum."""
        steps = [e["ascent_steps"] for e in epochs if "ascent_steps" in e]
        if not steps or fmean(steps) >= MIN_STEPS:
            return None
        return f"search of {fmean(steps):.1f} steps"


class AdvST(PoolMethod):
    """Train F on the source and on domains made by image operations with adversarial parameters.

    Zheng et al., "AdvST: revisiting data augmentations for single domain generalization", AAAI
    2024, https://arxiv.org/abs/2312.12720, as in the released code. F = C∘H. A chain A_ω applies
    one to three of twelve differentiable operations (`peerdg.augment.semantic`), with parameters ω
    for each image. After each epoch, a chain is drawn for each mini-batch of the source. Starting
    from random ω, with F in eval mode, RMSprop maximizes

        CE(F(A_ω(x)), y) - λ · mean[(H(A_ω(x)) - H(x))²] + η · Entropy(F(A_ω(x)))

    until a step changes it by at most `tolerance`. All A_ω(x) form one new domain. F and a
    projection R are trained on shuffled images of the source and the k newest domains to minimize

        CE(F(x), y) + β · SupCon(R(H(x)), y) - η_min · Entropy(F(x))

    AdvST-ME has η > 0. Differences from the released code:

    - Its ring buffer of domains eventually overwrites the source. Here the source is kept.
    - It does not shuffle digits, so each batch has one domain. Here all batches are mixed.
    - Its cutout holes are 16 pixels wide. Here they are a fifth of the image's side (`cutout`).
    - Its digit images may leave [0, 1]. Here images are clipped after each operation, as in its
      code for photos.
    - It draws posterize bits and cutout holes again in every step, and uses the same holes for a
      whole batch. Here they are drawn once for each image, so the stored image is the one whose
      objective was maximized.
    - It compares the first objective with 0. Here the first comparison follows the second step.
    - Its contrastive loss divides by the number of all anchors. Here it divides by the number of
      anchors that have a positive. If no two images of a batch share a class, the loss is 0.
    """

    settings: Settings
    divergence_hint = ", or the weight of the entropy (--advst.eta-min)"

    def __init__(self, model: Classifier, settings: Settings, *, pool: TrainingPool) -> None:
        super().__init__(model, settings, pool=pool)
        self.projection = projection_head(
            model.feature_dim,
            settings.head_dim,
            layers=settings.head_layers or (2 if model.feature_dim == WIDE else 1),
            hidden_dim=settings.head_dim,
            norm="none",
        )
        transformations = semantic_transformations(
            hole_pixels=HOLE if settings.cutout == "absolute" else None,
            mean_contrast=settings.contrast == "mean",
        )
        self.chains = Chains(transformations, settings.length)

    def loss(self, batch: Batch) -> Loss:
        """Compute the training loss, which rewards high entropy."""
        h = self.model.features(batch.images)
        logits = self.model.head(h)
        ce = F.cross_entropy(logits, batch.labels)
        contrast = h.new_zeros(())
        if len(batch.labels.unique()) < len(batch.labels):
            contrast = supcon(self.projection(h), batch.labels, tau=self.settings.tau)
        undecided = entropy(logits)
        loss = ce + self.settings.beta * contrast - self.settings.eta_min * undecided
        return Loss(loss, ce=ce, contrast=contrast, entropy=undecided)

    def end_epoch(self, epoch: int) -> EpochResult:
        """Make a new domain every `every` epochs. Drop the oldest if there are more than k."""
        if not self.settings.makes_images(epoch):
            return EpochResult()
        # Shuffle, because images may be stored by class. Each chain should see all classes.
        rows = torch.randperm(len(self.pool.images)).to(self.pool.device)
        made, labels, ascents = [], [], []
        with in_eval_mode(self.model):
            for part in iterate(rows.split(self.settings.batch_size), "maximizing"):
                x, y = self.pool.clean(part.sort().values)
                z, ascent = self.maximize(x, y)
                made.append(z)
                labels.append(y)
                ascents.append(ascent)
        add = PoolImages(torch.cat(made), torch.cat(labels))
        drop = max(0, len(self.pool.additions) + 1 - self.settings.k)
        size = len(self.pool) + len(add) - sum(map(len, self.pool.additions[:drop]))
        ascents = [ascent for ascent in ascents if ascent.steps]  # chains with learnable parameters
        records = {
            "pool_images": size,
            "ascent_steps": sum(ascent.steps for ascent in ascents) / max(1, len(ascents)),
            "objective_rise": sum(ascent.rise for ascent in ascents) / max(1, len(ascents)),
        }
        return EpochResult(records, new_images=add, drop_oldest=drop)

    def maximize(
        self, images: UInt8[Tensor, "n 3 h w"], labels: Int64[Tensor, " n"]
    ) -> tuple[UInt8[Tensor, "n 3 h w"], "AscentRecord"]:
        """Draw a chain, maximize the objective over its parameters, and return its images."""
        x = images.float() / 255
        chain = self.chains.draw(len(x), device=x.device)
        ascent = self.ascend(chain, x, labels)
        with torch.no_grad():
            made = chain(x)
        if not torch.isfinite(made).all():
            raise self._diverged()
        return made.mul(255).round().to(torch.uint8), ascent

    def ascend(
        self, chain: Chain, x: Float[Tensor, "n 3 h w"], labels: Int64[Tensor, " n"]
    ) -> "AscentRecord":
        """Maximize the objective over the parameters of `chain`, in place."""
        learnable = [parameters.requires_grad_() for parameters in chain.learnable]
        if not learnable:
            return AscentRecord(0, 0.0)
        with torch.no_grad():
            features = self.model.features(x)
        optimizer = torch.optim.RMSprop(learnable, lr=self.settings.rate, maximize=True)
        values: list[float] = []
        for _ in iterate(range(self.settings.steps), "ascending"):
            with torch.enable_grad():
                objective = self.objective(chain(x), features, labels)
                gradients = torch.autograd.grad(objective, learnable)
            if not torch.isfinite(objective):
                raise self._diverged()
            for parameters, gradient in zip(learnable, gradients, strict=True):
                parameters.grad = gradient
            optimizer.step()
            values.append(float(objective.detach()))
            if len(values) > 1 and abs(values[-1] - values[-2]) <= self.settings.tolerance:
                break
        return AscentRecord(len(values), values[-1] - values[0])

    def objective(
        self,
        images: Float[Tensor, "n 3 h w"],
        features: Float[Tensor, "n dim"],
        labels: Int64[Tensor, " n"],
    ) -> Float[Tensor, ""]:
        """Compute the objective of the maximization.

        Args:
            images: Transformed images.
            features: Features H(x) of the original images.
            labels: Class indices.
        """
        h = self.model.features(images)
        logits = self.model.head(h)
        ce, distance = F.cross_entropy(logits, labels), F.mse_loss(h, features)
        return ce - self.settings.lam * distance + self.settings.eta * entropy(logits)

    def train(self, mode: bool = True) -> Self:
        """Set the mode. With `frozen_statistics`, keep batch normalization in eval mode."""
        super().train(mode)
        if self.settings.frozen_statistics:
            for part in self.model.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()
        return self

    @property
    def frozen_statistics(self) -> bool:
        """Whether training keeps batch statistics frozen. Evaluation then needs the same ones."""
        return self.settings.frozen_statistics and has_batch_statistics(self.model)

    def _diverged(self) -> NumericalError:
        return NumericalError(
            "The maximization that makes new images diverged: some values are not finite.",
            hint="Lower its rate (--advst.rate), or the learning rate (--train.lr).",
            details={"rate": self.settings.rate, "lam": self.settings.lam},
        )


class AscentRecord(NamedTuple):
    """Number of steps and gain of the maximization for one mini-batch."""

    steps: int
    rise: float  # change of the objective from the first step to the last
