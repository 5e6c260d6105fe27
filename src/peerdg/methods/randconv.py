"""RandConv: consistent predictions for three random convolutions of an image."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.augment.randconv import RandConv
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch, Loss, MethodSettings, weight_option
from peerdg.methods.clean import as_view
from peerdg.methods.views import AugmentedMethod, augmented_views, consistency_loss, each_view
from peerdg.models.classifier import Classifier
from peerdg.options import option

VIEWS = 3
LAM = {"img": 5.0, "mix": 10.0}  # values of the released code, by variant


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Train for consistent predictions on random convolutions of an image."""

    lam: float | None = weight_option(
        None, "weight of the divergence (default: 5, or 10 with --augment.variant mix)"
    )
    views: Literal["independent", "nested"] = option(
        "independent",
        "three views of the image (paper), or views of the first view (nested: released code)",
    )

    own_augment = "randconv"


class RandConvConsistency(AugmentedMethod):
    """L = CE(F(x₁), y) + λ · JSD(F(x₁), F(x₂), F(x₃)) with views x_i = G_i(x).

    Xu et al., "Robust and generalizable visual representation learning via random convolutions",
    ICLR 2021, https://arxiv.org/abs/2007.13003. G is `peerdg.augment.randconv.RandConv`, drawn for
    each view, or another augmentation.

    By default, the three views of x are independent, as in the paper. In the released code, the
    second and third views are convolutions of the first (`views="nested"`). As in that code, views
    go through the network one by one, so batch normalization treats each as its own batch.
    """

    settings: Settings
    divergence_hint = ", or the divergence's weight (--randconv.lam)"

    def __init__(
        self, model: Classifier, settings: Settings | None = None, *, augment: Augment | None = None
    ) -> None:
        super().__init__(model, settings or Settings(), augment=augment or RandConv())
        variant = self.augment.variant if isinstance(self.augment, RandConv) else "img"
        self.lam = LAM[variant] if self.settings.lam is None else self.settings.lam
        if self.settings.views == "nested" and not isinstance(self.augment, RandConv):
            raise ConfigError(  # other augmentations accept only uint8 images
                "--randconv.views nested works only with --augment.kind randconv."
            )

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        return batches  # nothing to precompute: the loss makes three views itself

    def loss(self, batch: Batch) -> Loss:
        _, logits = each_view(self.model, self._views(batch), joint=False)
        return consistency_loss(logits, batch.labels, lam=self.lam, ce="ce_augmented")

    def _views(self, batch: Batch) -> list[Tensor]:
        if self.settings.views == "independent":
            return augmented_views(batch, self.augment, VIEWS)
        generator = batch.generator()
        first = self.augment(batch.images, generator)
        nested = [self.augment(first, generator) for _ in range(VIEWS - 1)]
        return [as_view(view) for view in (first, *nested)]
