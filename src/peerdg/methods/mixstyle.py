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
        0.1, "of the Beta distribution of the shares", above=0, at_most=100, announced=True
    )
    stages: int = option(
        2, "styles are mixed behind this many of the first stages; 1 to 3 in the paper", at_least=1
    )
    layers: tuple[str, ...] | None = option(
        None, "modules behind which styles are mixed, in place of the stages"
    )

    augments = False


class MixStyle(ERM):
    """L = CE(F(x), y), where layers inside F mix the styles of the images of a batch.

    Zhou et al., "Domain generalization with MixStyle", ICLR 2021,
    https://arxiv.org/abs/2104.02008; `peerdg.models.layers.StyleMixing` has the equations.
    With probability p, independently at each place and in each pass, the mean and standard
    deviation of each channel become a mixture of an image's own and those of another image of the
    batch. The layers have no weights and are called in the steps of the training only, so they are
    not part of the network: it is evaluated and stored without them.

    With one source there are no domain labels to choose the other image by: it is random, as in the
    paper's variant without them. Places are `Settings.stages`, the paper's ends of the first
    residual stages, see `models.stages.stage_places`. `Settings.layers` names others.
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
