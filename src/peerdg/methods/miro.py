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

SMALLEST_VARIANCE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Features stay informative about those of the network that training begins with."""

    lam: float = weight_option(0.1, "weight of the regularizer")
    views: Literal["clean", "both"] = option(
        "clean", "train on clean images, as the paper; both: on augmented images too"
    )
    k: int = option(10, "with both views: re-draw the policy every k epochs", at_least=1)
    layers: tuple[str, ...] | None = option(
        None, "modules whose outputs are compared; default: stem and every stage"
    )
    oracle: str | None = option(
        None,
        "run or model folder of the frozen network; default: what the main phase starts from",
        names_model=True,
    )
    rate: float = option(10.0, "learning rate of the variances, times the network's", above=0)
    variance: float = option(0.1, "where each variance starts", above=1e-5)

    period_option = "k"

    @property
    def is_oracle(self) -> bool:
        return self.oracle is not None

    @property
    def augments(self) -> bool:
        return self.views == "both"


class MIRO(AugmentedMethod):
    """Train F to keep, in each of its stages, what a frozen oracle F⁰ knows about an image.

    Cha et al., "Domain generalization by mutual-information regularization with pre-trained
    models", ECCV 2022, https://arxiv.org/abs/2203.10789. Minimise over F and the variances v

        L = CE(F(x), y) + λ Σ_l ½ mean[ (f_l - f⁰_l)² / v_l + log v_l ]

    where f_l and f⁰_l are the outputs of stage l of F and F⁰ for the same image. The sum is, up to
    constants, the negative log-likelihood of f⁰ under a Gaussian around f, and so a variational
    bound of their mutual information: the mean encoder is the identity, the variance encoder one
    v per channel that does not depend on the image. The variances learn at ten times F's rate.

    What the paper leaves open for a single source is a field of `Settings`:

    - `views`: F learns clean images only; `"both"` adds the cross-entropy and the regularizer of
      x̄ = G(x) to those of x, which with λ = 0 is the RandAugment baseline.
    - `layers`: stem and every stage, as `models.stages.find_stages` finds them in any
      network; its docstring lists them for each backbone. If layers with parameters follow the
      last map, fully connected ones, the features H(x) are compared too, unless dropout makes them
      random (AlexNet, CaffeNet): F⁰ has none, and F would differ from it where it is the same.
    - `oracle`: F as the main phase starts, that is after pre-training on the source. The paper's
      oracle has seen other data only: use `--pretrain.epochs 0` with published weights.

    F⁰ runs in eval mode. The batch normalisation of F is trained as for every other method; the
    released code freezes it.

    Args:
        model: F; a frozen copy of it becomes the oracle.
        size: Side of the images; the network is shown one to find its stages.
        augment: G; only for `views="both"`.
        oracle: F⁰, in place of the copy; the outputs of its layers must have the same shapes.
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
                "The layers of the oracle are not those of the network.",
                hint="Give a model with the same --backbone, trained at the same image size.",
            )
        self.layers = [each.name for each in maps]
        self.variances = nn.ModuleList(Variance(each, self.settings.variance) for each in maps)

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        oracle = context.load_model(settings.oracle) if settings.oracle else None
        return cls(model, settings, size=context.image_size, augment=context.augment, oracle=oracle)

    def optimizers(self) -> dict[str, OptimizerPlan]:
        """F at the phase's rate, the variances at a multiple of it."""
        (network,) = OptimizerPlan.of(self.model).groups
        variances = ParamGroup(list(self.variances.parameters()), lr_scale=self.settings.rate)
        return {"main": OptimizerPlan([network, variances])}

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy and weighted regularizer, summed over the trained views."""
        x, y = batch.images, batch.labels
        views = [x, augmented_view(batch, self.augment)] if self.settings.augments else [x]
        with recorded(self.model, self.layers) as maps:
            _, logits = each_view(self.model, views, joint=False)
        ce = [F.cross_entropy(each, y) for each in logits]
        regularizer = self._regularizer(maps, views)
        if self.settings.lam == 0:  # a gradient of zeros could change the last bits of the others
            regularizer = regularizer.detach()
        terms = dict(zip(("ce_clean", "ce_augmented"), ce, strict=False))
        loss = torch.stack(ce).sum() + self.settings.lam * regularizer
        return Loss(loss, **terms, regularizer=regularizer)

    def train(self, mode: bool = True) -> Self:
        """The oracle stays in eval mode: its features must not depend on the batch."""
        super().train(mode)
        self.oracle.eval()
        return self

    @stage("regularizer")
    def _regularizer(self, maps: dict[str, list[Tensor]], views: list[Tensor]) -> Tensor:
        """Sum over layers and views of the Gaussian term."""
        with torch.no_grad(), recorded(self.oracle, self.layers) as targets:
            self.oracle.features(joined(views))
        terms = [
            # One pass or two have the same images; the mean over both views is half their sum.
            len(views) * gaussian_term(torch.cat(maps[name]), targets[name][0], variance())
            for name, variance in zip(self.layers, self.variances, strict=True)
        ]
        return torch.stack(terms).sum()

    def _maps_of(self, model: Classifier, size: int) -> list[FeatureMap]:
        named = self.settings.layers
        return find_stages(model, size) if named is None else named_maps(model, size, named)


class Variance(nn.Module):
    """v = softplus(b) + 1e-5 with one learnt b per channel, the same for every image."""

    def __init__(self, of: FeatureMap, initial: float) -> None:
        super().__init__()
        b = math.log(math.expm1(initial - SMALLEST_VARIANCE))  # the inverse of softplus
        self.b = nn.Parameter(torch.full(of.broadcast_shape, b))

    def forward(self) -> Tensor:
        return F.softplus(self.b) + SMALLEST_VARIANCE


@in_full_precision
def gaussian_term(f: Tensor, target: Tensor, variance: Tensor) -> Tensor:
    """½ mean[ (f - f⁰)² / v + log v ]: the negative log-likelihood of f⁰, less a constant."""
    return ((f - target).square() / variance + variance.log()).mean() / 2
