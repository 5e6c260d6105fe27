"""MixStyle: domain generalization with mixed feature statistics (ICLR 2021)."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from peerdg.methods.base import Batch, Loss, MethodSettings, RunContext
from peerdg.methods.erm import ERM
from peerdg.models.classifier import Classifier
from peerdg.models.layers import StyleMixing, inserted
from peerdg.models.stages import choose_places
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on clean images whose feature statistics are mixed between images."""

    p: float = option(
        0.5, "probability that a training pass mixes styles", at_least=0, at_most=1, announced=True
    )
    alpha: float = option(
        0.1, "Beta distribution parameter of mixing weights", above=0, at_most=100, announced=True
    )
    stages: int = option(
        2, "mix styles after each of the first N stages (paper: 1 to 3)", at_least=1
    )
    layers: tuple[str, ...] | None = option(
        None, "mix styles after these modules instead of the first stages"
    )

    augments = False


class MixStyle(ERM):
    """L = CE(F(x), y), where layers inside F mix styles between the images of a batch.

    Zhou et al., "Domain generalization with MixStyle", ICLR 2021,
    https://arxiv.org/abs/2104.02008. `peerdg.models.layers.StyleMixing` has the equations.
    With probability p, independently at each place and in each pass, the mean and standard
    deviation of each channel are mixed with another image's. The layers have no weights and are
    active in training steps only. The network is evaluated and stored without them.

    A single source has no domain labels, so the other image is chosen at random, as in the paper's
    variant without domain labels. Styles are mixed after the first `Settings.stages` stages (in the
    paper, residual stages), see `models.stages.stage_places`, or after the modules in
    `Settings.layers`.
    """

    def __init__(self, model: Classifier, settings: Settings | None = None, *, size: int) -> None:
        settings = settings or Settings()
        super().__init__(model, settings)
        places = choose_places(
            model,
            size,
            names=settings.layers,
            stages=range(1, settings.stages + 1),
            option="--mixstyle.layers",
        )
        self.places = tuple(places)
        self.mixing = nn.ModuleList(
            StyleMixing(channel=each.channel + 1, p=settings.p, alpha=settings.alpha)
            for each in places.values()
        )

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        return cls(model, settings, size=context.image_size)

    def loss(self, batch: Batch | Tensor, labels: Tensor | None = None) -> Loss:
        with inserted(self.model.encoder, zip(self.places, self.mixing, strict=True)):
            return super().loss(batch, labels)
