"""Options of M-ADA, with the released code's values as defaults and a switch for what is open."""

from dataclasses import dataclass
from typing import Literal

from peerdg.errors import ConfigError
from peerdg.methods.ascent_settings import AscentSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.m_ada:MADA"
TITLE = "M-ADA"
ALIASES = {
    "domains": "k",
    "period": "every",
    "iterations": "steps",
    "alpha": "gamma",
    "relaxation": "beta",
    "inner_lr": "meta_rate",
    "eta": "meta_rate",
}
TINY = {"k": 2, "steps": 3, "rate": 20.0, "wae_epochs": 2, "wae_batch": 8}


@dataclass(frozen=True, kw_only=True)
class Settings(AscentSettings):
    """ADA with far images and a meta-learnt network; on photos a reconstruction."""

    steps: int = option(25, "steps of gradient ascent for each image", at_least=1)
    beta: float = option(
        2000.0, "weight of the relaxation that drives the auto-encoder's images apart",
        at_least=0, announced=True,
    )  # fmt: skip
    meta_rate: float = option(1e-4, "size of the inner step on the source", at_least=0)
    domain_size: Literal["share", "source"] = option(
        "share", "images of the n-th domain: 1/n of the source's number, or as many"
    )
    autoencoder: Literal["mlp", "conv"] = option(
        "mlp", "fully connected as released, or convolutions: a reconstruction for photos"
    )
    thumbnail: int = option(
        32, "side of the images that the auto-encoder sees, at most", at_least=4, at_most=256
    )
    wae_epochs: int = option(20, "epochs of each auto-encoder", at_least=1)
    wae_lr: float = option(1e-3, "learning rate of auto-encoder and critic", above=0)
    wae_batch: int = option(32, "images of a step of the auto-encoder", at_least=1)
    wae_weight: float = option(100.0, "weight of the critic's term", at_least=0)
    wae_shift: Literal["sample", "code"] = option(
        "sample", "the log-density that shifts the critic's logit of a code: of the sample beside "
        "it, or of the code itself",
    )  # fmt: skip

    section = "m-ada"
    batches_from = "source"
    reconstruction = "on photos"

    def images_made(self, source: int, pool: int, before: int) -> int:
        """As many as the source has, or its share among the domains so far."""
        return source if self.domain_size == "source" else max(1, source // (before + 1))

    def autoencoder_side(self, side: int) -> int:
        """Side of the auto-encoder's images, for images of this side."""
        return min(side, self.thumbnail)

    def check_images(self, side: int) -> None:
        """Two convolutions of stride 2 must come out even."""
        seen = self.autoencoder_side(side)
        if self.autoencoder == "conv" and seen % 4:
            raise ConfigError(
                f"The convolutional auto-encoder sees images of {seen} x {seen} pixels; "
                "their side must be a multiple of 4.",
                hint=f"Use --m-ada.thumbnail {seen - seen % 4}, or --m-ada.autoencoder mlp.",
            )
