"""MetaCNN, a reconstruction: local features composed of a learnt dictionary of meta-features."""

from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.errors import ConfigError, NumericalError
from peerdg.methods.base import (
    Batch,
    EpochResult,
    Loss,
    MethodSettings,
    OptimizerStep,
    RunContext,
    Terms,
)
from peerdg.methods.views import AugmentedMethod, forward_both
from peerdg.models.classifier import Classifier, in_eval_mode
from peerdg.models.meta_features import CodeSums, MetaFeatures, OnlineDictionary, draw
from peerdg.models.stages import choose_places
from peerdg.options import option
from peerdg.rng import seeded
from peerdg.stages import stage

FIRST_CHUNKS = 8  # of the clean images, that the dictionary starts from


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Reconstruction: local features are composed of a dictionary; the rest is dropped."""

    k: int = option(10, "re-draw the augmentation policy every k epochs", at_least=1)
    atoms: int = option(256, "atoms of the dictionary", at_least=1, at_most=4096, announced=True)
    addressed: int = option(32, "atoms for each feature", at_least=1, at_most=256, announced=True)
    threshold: float = option(
        -1.0, "smallest cosine of an addressed atom; -1 sets no limit", at_least=-1, at_most=1
    )
    ridge: float = option(1e-2, "ridge of the composition", above=0, at_most=1e6)
    gradient: Literal["closed-form", "straight-through"] = option(
        "closed-form", "through the composition, or past it"
    )
    decay: float = option(0.99, "share of earlier batches in the dictionary", at_least=0, at_most=1)
    stage: int = option(1, "stage of the network that the layer stands behind", at_least=1)
    layer: str | None = option(None, "module that it stands behind, in place of a stage")

    period_option = "k"
    reconstruction = "everywhere"
    adapts_before = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.addressed > self.atoms:
            raise ConfigError(
                f"--metacnn.addressed is {self.addressed}; there are {self.atoms} atoms."
            )


class MetaCNN(AugmentedMethod):
    """Compose local features of a learnt dictionary, so that what is foreign to it is dropped.

    A reconstruction of Wan et al., "Meta convolutional neural networks for single domain
    generalization", CVPR 2022, from its abstract: there is no public code, and this is no faithful
    reproduction. Behind an early stage of F stands a layer which replaces the feature at each place
    of the map by a ridge regression on the atoms that are most like it
    (`peerdg.models.meta_features.MetaFeatures`, with the equations). Each step

    1. minimises CE(F(x), y) + CE(F(x̄), y) with x̄ = G(x) over the weights of F;
    2. updates the dictionary by the codes of both views (`peerdg.models.meta_features`).

    At the end of an epoch, atoms that no feature addressed are replaced by features that the
    dictionary composes badly. It starts from features of the pre-trained network on clean images.

    What the abstract leaves open is a field of `Settings`: how atoms are addressed (`addressed`,
    `threshold`), how the gradient passes (`gradient`), where the layer stands (`stage`, `layer`).

    F is given with its layer, see `adapt`.
    """

    settings: Settings
    divergence_hint = ", or raise the ridge (--metacnn.ridge)"

    def __init__(
        self, model: Classifier, settings: Settings | None = None, *, augment: Augment | None = None
    ) -> None:
        super().__init__(model, settings or Settings(), augment=augment)
        count, dim = self.layer.atoms.shape
        self.dictionary = OnlineDictionary(count, dim, decay=self.settings.decay)
        self.dictionary.to(self.layer.atoms)

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        """Build MetaCNN and learn its first dictionary from clean images."""
        method = super().build(model, settings, context)
        chunks = (images for _, images in zip(range(FIRST_CHUNKS), context.clean, strict=False))
        # Not by the seed of the main phase: runs that share their start, to be averaged, must not
        # begin with other atoms or the same ones in another order.
        with seeded(0, "dictionary"):
            for number, images in enumerate(chunks):
                method.start_from(images, afresh=number == 0)
        return method

    @classmethod
    def adapt(cls, model: Classifier, settings: Settings, size: int) -> Classifier:
        """Put the layer behind the chosen stage or module."""
        names = None if settings.layer is None else (settings.layer,)
        places = choose_places(
            model, size, names=names, stages=(settings.stage,), option="--metacnn.layer"
        )
        ((place, each),) = places.items()
        layer = {
            "kind": "meta-features",
            "place": place,
            "channels": each.channels,
            "channel": each.channel + 1,
            "atoms": settings.atoms,
            "addressed": settings.addressed,
            "ridge": settings.ridge,
            "threshold": settings.threshold,
            "gradient": settings.gradient,
        }
        return model.with_layers([layer])

    @property
    def layer(self) -> MetaFeatures:
        found = [part for part in self.model.modules() if isinstance(part, MetaFeatures)]
        if len(found) != 1:
            raise ConfigError(
                "MetaCNN needs one layer of meta-features inside the network.",
                hint="Give it the network MetaCNN.adapt(model, settings, size).",
            )
        return found[0]

    @torch.no_grad()
    def start_from(self, images: Tensor, *, afresh: bool = True) -> None:
        """Learn the dictionary from clean images, before the first step.

        With `afresh`, features of these images become the atoms first.
        """
        layer = self.layer
        with in_eval_mode(self.model):
            if afresh:
                f = _features(self.model, layer, images)
                layer.atoms.copy_(F.normalize(draw(f, f.square().sum(1), len(layer.atoms)), dim=1))
            with layer.collecting() as sums:
                self.model.features(images)
        self._learn(sums)

    def step(self, batch: Batch, update: OptimizerStep) -> Terms:
        """Update the network, then the dictionary by the codes of the batch."""
        with self.layer.collecting() as sums:
            terms = self.loss(batch)
        update("main", terms["loss"], terms)
        self._learn(sums)
        return terms

    def loss(self, batch: Batch) -> Loss:
        return forward_both(self.model, batch, self.augment).loss()

    def end_epoch(self, epoch: int) -> EpochResult:
        """Replace atoms that were not addressed in this epoch."""
        # Not checked in each step, where it would wait for the device: the next loss is NaN, then.
        if not torch.isfinite(self.layer.atoms).all():
            raise NumericalError(
                "The dictionary is not finite.",
                hint="Lower the learning rate, or raise the ridge (--metacnn.ridge).",
            )
        return EpochResult({"reseeded": self.dictionary.reseed(self.layer.atoms)})

    @stage("dictionary")
    def _learn(self, sums: CodeSums) -> None:
        self.dictionary.learn(self.layer.atoms, sums)


def _features(model: Classifier, layer: MetaFeatures, images: Tensor) -> Tensor:
    """What the layer is given at every place, one row each."""
    given: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    try:
        model.features(images)
    finally:
        hook.remove()
    maps = given[0].movedim(layer.channel, -1)
    return maps.reshape(-1, maps.shape[-1])
