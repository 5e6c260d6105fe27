"""MIRO: mutual-information regularization with a frozen copy of the initial network."""

import copy
import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.augment.protocol import Augment
from peerdg.errors import ConfigError
from peerdg.losses import in_full_precision
from peerdg.methods.base import (
    Batch,
    Loss,
    MethodSettings,
    OptimizerPlan,
    ParamGroup,
    RunContext,
    weight_option,
)
from peerdg.methods.views import AugmentedMethod, augmented_view, each_view, joined
from peerdg.models.classifier import Classifier
from peerdg.models.stages import FeatureMap, find_stages, named_maps, recorded
from peerdg.options import option
from peerdg.stages import stage

MIN_VARIANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Keep features informative about the features of the initial network."""

    lam: float = weight_option(0.1, "weight of the regularizer")
    views: Literal["clean", "both"] = option(
        "clean", "train on clean images (paper), or on clean and augmented images (both)"
    )
    k: int = option(10, "with both views: re-draw the policy every k epochs", at_least=1)
    layers: tuple[str, ...] | None = option(
        None, "modules whose outputs are compared (default: stem and every stage)"
    )
    oracle: str | None = option(
        None,
        "run or model folder of the frozen network (default: copy of the pre-trained network)",
        names_model=True,
    )
    rate: float = option(10.0, "learning rate of the variances relative to the network", above=0)
    variance: float = option(0.1, "initial variance", above=1e-5)

    period_option = "k"

    @property
    def is_oracle(self) -> bool:
        return self.oracle is not None

    @property
    def augments(self) -> bool:
        return self.views == "both"


class MIRO(AugmentedMethod):
    """Train F so that its features stay informative about the features of a frozen oracle F⁰.

    Cha et al., "Domain generalization by mutual-information regularization with pre-trained
    models", ECCV 2022, https://arxiv.org/abs/2203.10789. Minimize over F and the variances v

        L = CE(F(x), y) + λ Σ_l ½ mean[ (f_l - f⁰_l)² / v_l + log v_l ]

    where f_l and f⁰_l are the outputs of stage l of F and F⁰ for the same image. Up to
    constants, the sum is the negative log-likelihood of f⁰ under a Gaussian centered at f, and thus
    a variational bound on their mutual information. The mean encoder is the identity. The variance
    encoder is one v per channel, the same for all images, with ten times F's learning rate.

    `Settings` has an option for each detail that the paper leaves open for a single source:

    - `views`: by default, F is trained on clean images only. `"both"` adds the cross-entropy and
      the regularizer on x̄ = G(x). With λ = 0 this is the RandAugment baseline.
    - `layers`: by default, the stem and every stage, see `models.stages.find_stages`. If fully
      connected layers follow the last map, H(x) is compared too, except with dropout (AlexNet,
      CaffeNet). F⁰ has no dropout, so F would differ from F⁰ even with equal weights.
    - `oracle`: by default, F at the start of the main phase, after pre-training on the source. The
      paper's oracle never saw the source. For that, use `--pretrain.epochs 0` and published
      weights.

    F⁰ runs in eval mode. Batch normalization in F is trained as in every other method, while the
    released code freezes it.

    Args:
        model: Network F. A frozen copy of it becomes the oracle.
        size: Side of the images, for the forward pass that finds the stages.
        augment: Augmentation G, only for `views="both"`.
        oracle: Network F⁰ to use instead of the copy. Its layers must have the same output shapes.
    """

    settings: Settings
    divergence_hint = ", or the regularizer's weight (--miro.lam)"

    def __init__(
        self,
        model: Classifier,
        settings: Settings | None = None,
        *,
        size: int,
        augment: Augment | None = None,
        oracle: Classifier | None = None,
    ) -> None:
        super().__init__(model, settings or Settings(), augment=augment)
        self.oracle = (oracle or copy.deepcopy(model)).requires_grad_(False).eval()
        maps = self._maps_of(model, size)
        if oracle is not None and maps != self._maps_of(oracle, size):
            raise ConfigError(
                "The layers of the oracle do not match the network.",
                hint="Use a model with the same --backbone, trained at the same image size.",
            )
        self.layers = [each.name for each in maps]
        self.variances = nn.ModuleList(Variance(each, self.settings.variance) for each in maps)

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        oracle = context.load_model(settings.oracle) if settings.oracle else None
        return cls(model, settings, size=context.image_size, augment=context.augment, oracle=oracle)

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """Train F at the phase's learning rate, and the variances at a multiple of it."""
        (network,) = OptimizerPlan.of(self.model).groups
        variances = ParamGroup(list(self.variances.parameters()), lr_scale=self.settings.rate)
        return {"main": OptimizerPlan([network, variances])}

    def loss(self, batch: Batch) -> Loss:
        """Compute the cross-entropy and the weighted regularizer, summed over the views."""
        x, y = batch.images, batch.labels
        views = [x, augmented_view(batch, self.augment)] if self.settings.augments else [x]
        with recorded(self.model, self.layers) as maps:
            _, logits = each_view(self.model, views, joint=False)
        ce = [F.cross_entropy(each, y) for each in logits]
        regularizer = self._regularizer(maps, views)
        if self.settings.lam == 0:  # adding zero gradients could still change the last bits
            regularizer = regularizer.detach()
        terms = dict(zip(("ce_clean", "ce_augmented"), ce, strict=False))
        loss = torch.stack(ce).sum() + self.settings.lam * regularizer
        return Loss(loss, **terms, regularizer=regularizer)

    def train(self, mode: bool = True) -> Self:
        """Keep the oracle in eval mode: its features must not depend on the batch."""
        super().train(mode)
        self.oracle.eval()
        return self

    @stage("regularizer")
    def _regularizer(self, maps: dict[str, list[Tensor]], views: list[Tensor]) -> Tensor:
        """Sum the Gaussian term over layers and views."""
        with torch.no_grad(), recorded(self.oracle, self.layers) as targets:
            self.oracle.features(joined(views))
        terms = [
            # `gaussian_term` is a mean over the views, and the loss is their sum.
            len(views) * gaussian_term(torch.cat(maps[name]), targets[name][0], variance())
            for name, variance in zip(self.layers, self.variances, strict=True)
        ]
        return torch.stack(terms).sum()

    def _maps_of(self, model: Classifier, size: int) -> list[FeatureMap]:
        named = self.settings.layers
        return find_stages(model, size) if named is None else named_maps(model, size, named)


class Variance(nn.Module):
    """Variance v = softplus(b) + 1e-5 with one learned b per channel, the same for every image."""

    def __init__(self, of: FeatureMap, initial: float) -> None:
        super().__init__()
        b = math.log(math.expm1(initial - MIN_VARIANCE))  # inverse of softplus
        self.b = nn.Parameter(torch.full(of.broadcast_shape, b))

    def forward(self) -> Tensor:
        return F.softplus(self.b) + MIN_VARIANCE


@in_full_precision
def gaussian_term(f: Tensor, target: Tensor, variance: Tensor) -> Tensor:
    """Compute ½ mean[ (f - f⁰)² / v + log v ], the Gaussian NLL of f⁰ up to a constant."""
    return ((f - target).square() / variance + variance.log()).mean() / 2
