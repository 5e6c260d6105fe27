"""MixStyle: domain generalization with mixed feature statistics (ICLR 2021)."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.methods.base import MethodSettings
from peerdg.methods.erm import ERM
from peerdg.models.added import AddedLayer
from peerdg.models.classifier import Classifier
from peerdg.models.stages import choose_places
from peerdg.models.style_mixing import StyleMixing
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

    @property
    def augments(self) -> bool:
        """Styles are mixed inside the network; the images are clean."""
        return False

    @property
    def adapts_before(self) -> Literal["train"]:
        """Pre-training is that of every method: the layers have no weights."""
        return "train"


class MixStyle(ERM):
    """L = CE(F(x), y), where layers inside F mix the styles of the images of a batch.

    Zhou et al., "Domain generalization with MixStyle", ICLR 2021,
    https://arxiv.org/abs/2104.02008; `peerdg.models.style_mixing.StyleMixing` has the equations.
    With probability p, independently at each place and in each pass, the mean and standard
    deviation of each channel become a mixture of an image's own and those of another image of the
    batch. The layers have no weights and do nothing outside of training mode, so a deployed network
    computes what it would without them.

    With one source there are no domain labels to choose the other image by: it is random, as in the
    paper's variant without them. Places are `Settings.stages`, the paper's ends of the first
    residual stages, as `models.stages.stage_places` finds them in any network; its docstring lists
    them. `Settings.layers` names others.

    Args:
        model: F with its layers, see `adapt`.

    Raises:
        ConfigError: If the network has no layer that mixes styles.
    """

    def __init__(self, model: Classifier) -> None:
        if not any(isinstance(layer, StyleMixing) for layer in model.modules()):
            raise ConfigError(
                "MixStyle needs layers that mix styles inside the network.",
                hint="Give it the network MixStyle.adapt(model, settings, size).",
            )
        super().__init__(model)

    @classmethod
    def adapt(cls, model: Classifier, settings: Settings, size: int) -> Classifier:
        """Put a layer behind each of the chosen stages or modules."""
        places = choose_places(
            model,
            size,
            names=settings.layers,
            stages=range(1, settings.stages + 1),
            option="--mixstyle.layers",
        )
        layers = [
            AddedLayer(
                kind="style-mixing",
                place=place,
                inputs=each.channels,
                outputs=each.channels,
                channel=each.channel + 1,
                p=settings.p,
                alpha=settings.alpha,
            )
            for place, each in places.items()
        ]
        return model.with_layers(layers)
