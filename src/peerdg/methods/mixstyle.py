"""MixStyle: domain generalization with mixed feature statistics (ICLR 2021)."""

from peerdg.errors import ConfigError
from peerdg.methods.erm import ERM
from peerdg.methods.settings.mixstyle import Settings
from peerdg.models.added import AddedLayer
from peerdg.models.classifier import Classifier
from peerdg.models.stages import choose_places
from peerdg.models.style_mixing import StyleMixing


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
