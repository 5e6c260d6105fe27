"""RandConv: predictions for three random convolutions of an image should agree."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.augment.randconv import RandConv
from peerdg.errors import ConfigError
from peerdg.methods.base import Batch, Loss, Method, MethodSettings, RunContext
from peerdg.methods.clean import as_view
from peerdg.methods.views import augmented_views, consistency_loss, each_view
from peerdg.models.classifier import Classifier
from peerdg.options import option

VIEWS = 3
LAM = {"img": 5.0, "mix": 10.0}  # of the released code, by variant


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Predictions for random convolutions of an image agree."""

    lam: float | None = option(
        None,
        "weight of the divergence; default 5, or 10 with --augment.variant mix",
        at_least=0,
        announced=True,
    )
    views: Literal["independent", "nested"] = option(
        "independent",
        "three views of the image, as the paper; nested: the released loop's views of a view",
    )

    own_augment = "randconv"


class RandConvConsistency(Method):
    """L = CE(F(x₁), y) + λ · JSD(F(x₁), F(x₂), F(x₃)) with views x_i = G_i(x).

    Xu et al., "Robust and generalizable visual representation learning via random convolutions",
    ICLR 2021, https://arxiv.org/abs/2007.13003. G is `peerdg.augment.randconv.RandConv`, drawn anew
    for each view; another augmentation may stand in its place.

    The paper describes three independent views of x, the default. In the released loop the second
    and third view are convolutions of the first one, which is convolved already:
    `views="nested"`. As there, the views go through the network one by one, so that batch
    normalisation sees one convolution at a time.

    Args:
        model: F.
        settings: λ and the views.
        augment: G.

    Raises:
        ConfigError: For nested views of another augmentation, which takes uint8 images only.
    """

    divergence_hint = ", or the divergence's weight (--randconv.lam)"

    def __init__(
        self, model: Classifier, settings: Settings | None = None, *, augment: Augment | None = None
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.model = model
        self.augment = RandConv() if augment is None else augment
        variant = self.augment.variant if isinstance(self.augment, RandConv) else "img"
        self.lam = LAM[variant] if self.settings.lam is None else self.settings.lam
        if self.settings.views == "nested" and not isinstance(self.augment, RandConv):
            raise ConfigError(
                "Views of views (--randconv.views nested) are there for RandConv only.",
                hint="Leave --augment.kind out, or use --randconv.views independent.",
            )

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        """Build the method with the run's augmentation."""
        return cls(model, settings, augment=context.augment)

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Re-draw what an augmentation other than RandConv draws for a period: every epoch."""
        return {"policy": self.augment.redraw(epoch)}

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy of the first view and the weighted divergence of all."""
        _, logits = each_view(self.model, self._views(batch), joint=False)
        return consistency_loss(logits, batch.labels, lam=self.lam, ce="ce_augmented")

    def _views(self, batch: Batch) -> list[Tensor]:
        if self.settings.views == "independent":
            return augmented_views(batch, self.augment, VIEWS)
        generator = batch.generator()
        first = self.augment(batch.images, generator)
        again = [self.augment(first, generator) for _ in range(VIEWS - 1)]
        return [as_view(view) for view in (first, *again)]
