"""MetaCNN, a reconstruction: compose local features from a learned dictionary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.distributed import gather
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

FIRST_CHUNKS = 8  # number of chunks of clean images for the initial dictionary
MIN_DROPPED = 0.05  # fraction of feature energy below which the layer is inert


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Compose local features from a dictionary and drop the rest. A reconstruction."""

    k: int = option(10, "re-draw the augmentation policy every k epochs", at_least=1)
    atoms: int = option(
        256, "number of atoms in the dictionary", at_least=1, at_most=4096, announced=True
    )
    addressed: int = option(
        8, "number of atoms per feature", at_least=1, at_most=256, announced=True
    )
    threshold: float = option(
        -1.0, "minimum cosine of an addressed atom (-1: no limit)", at_least=-1, at_most=1
    )
    ridge: float = option(1e-2, "ridge penalty of the composition", above=0, at_most=1e6)
    gradient: Literal["closed-form", "straight-through"] = option(
        "closed-form", "gradient through the composition, or straight-through"
    )
    decay: float = option(0.99, "decay of earlier batches in the dictionary", at_least=0, at_most=1)
    stage: int = option(1, "insert the layer after this stage of the network", at_least=1)
    layer: str | None = option(None, "insert the layer after this module instead of a stage")

    period_option = "k"
    reconstruction = "everywhere"
    adapts_before = "train"

    def inert(self, epochs: Sequence[Mapping[str, Any]]) -> str | None:
        """Report a layer that drops almost nothing."""
        share = epochs[-1].get("dropped", 1.0) if epochs else 1.0
        return f"{share:.1%} of the features' energy dropped" if share < MIN_DROPPED else None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.addressed > self.atoms:
            raise ConfigError(
                f"--metacnn.addressed is {self.addressed}, but there are only {self.atoms} atoms."
            )


class MetaCNN(AugmentedMethod):
    """Train F with a layer that composes local features from a learned dictionary.

    A reconstruction of Wan et al., "Meta convolutional neural networks for single domain
    generalization", CVPR 2022, from its abstract. There is no public code, and this is not a
    faithful reproduction. After an early stage of F, a layer replaces the feature at each pixel of
    the map with its ridge regression on the most similar atoms. The rest of the feature is dropped.
    `peerdg.models.meta_features.MetaFeatures` has the equations. Each step

    1. minimizes CE(F(x), y) + CE(F(x̄), y) with x̄ = G(x) over the weights of F,
    2. updates the dictionary from the codes of both views (`OnlineDictionary`).

    At the end of an epoch, atoms that no feature addressed are replaced with features that the
    dictionary reconstructs poorly. The dictionary is initialized with features of clean images in
    the pre-trained network.

    `Settings` has an option for each detail that the abstract leaves open: the addressing of atoms
    (`addressed`, `threshold`), the gradient (`gradient`), and the place of the layer (`stage`,
    `layer`).

    Args:
        model: Network F with its layer, see `adapt`.
        augment: Augmentation G.
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
        """Build MetaCNN, and learn its initial dictionary from clean images."""
        method = super().build(model, settings, context)
        chunks = (images for _, images in zip(range(FIRST_CHUNKS), context.clean, strict=False))
        # The seed is fixed, because runs whose weights will be averaged need the same atoms in the
        # same order.
        with seeded(0, "dictionary"):
            for number, images in enumerate(chunks):
                method.start_from(images, afresh=number == 0)
        return method

    @classmethod
    def adapt(cls, model: Classifier, settings: Settings, size: int) -> Classifier:
        """Insert the layer after the chosen stage or module."""
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
                "MetaCNN needs a network with exactly one meta-feature layer.",
                hint="Pass MetaCNN.adapt(model, settings, size) as the network.",
            )
        return found[0]

    @torch.no_grad()
    def start_from(self, images: Tensor, *, afresh: bool = True) -> None:
        """Learn the dictionary from clean images before the first step.

        Args:
            images: Clean images.
            afresh: Whether to replace the atoms with features of these images first.
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
        """Update the network, then the dictionary from the codes of the batch."""
        with self.layer.collecting() as sums:
            terms = self.loss(batch)
        terms["dropped"] = sums.dropped / sums.energy.clamp(min=1e-12)
        update("main", terms["loss"], terms)
        self._learn(sums)
        return terms

    def loss(self, batch: Batch) -> Loss:
        return forward_both(self.model, batch, self.augment).loss()

    def end_epoch(self, epoch: int) -> EpochResult:
        """Replace atoms that were not addressed in this epoch."""
        # Checking every step would wait for the device. The next loss would be NaN anyway.
        if not torch.isfinite(self.layer.atoms).all():
            raise NumericalError(
                "The dictionary diverged: its atoms are not finite.",
                hint="Lower the learning rate, or raise the ridge (--metacnn.ridge).",
            )
        return EpochResult({"reseeded": self.dictionary.reseed(self.layer.atoms)})

    @stage("dictionary")
    def _learn(self, sums: CodeSums) -> None:
        self.dictionary.learn(self.layer.atoms, sums)


def _features(model: Classifier, layer: MetaFeatures, images: Tensor) -> Tensor:
    """Return the features that enter the layer, one row per pixel."""
    given: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, inputs: given.append(gather(inputs[0])))
    try:
        model.features(images)
    finally:
        hook.remove()
    maps = given[0].movedim(layer.channel, -1)
    return maps.reshape(-1, maps.shape[-1])
