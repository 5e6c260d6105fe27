"""Options of PDEN, with the released code's values for digits as defaults."""

from dataclasses import dataclass
from typing import Literal

from peerdg.methods.metadata import MethodSettings
from peerdg.options import option

IMPLEMENTED_BY = "peerdg.methods.pden:PDEN"
TITLE = "PDEN"
ALIASES = {
    "n_tgt": "domains",
    "tgt_epochs": "k",
    "tgt_epochs_fixg": "generator_epochs",
    "div_thresh": "delta",
    "temperature": "tau",
    "period": "k",
}
TINY = {"domains": 3, "k": 1, "width": 4, "dim": 8}


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """One generator of images after the other learns a new domain for the network."""

    domains: int = option(
        20, "domains that are made, with a generator each", at_least=1, at_most=1000
    )
    k: int = option(30, "epochs of a domain", at_least=1)
    generator_epochs: int | None = option(
        None, "first epochs of a domain in which its generator learns; default: half", at_least=1
    )
    generator: Literal["cnn", "affine", "translation"] = option(
        "cnn", "what makes a domain: convolutions, or a map of coordinates (spatial transformer)"
    )
    generator_lr: float = option(1e-4, "learning rate of the generator, by Adam", above=0)
    width: int = option(
        16, "channels of the generator's first convolution", at_least=1, at_most=1024
    )
    w_cls: float = option(
        1.0, "weight of the class in the generator's loss", at_least=0, announced=True
    )
    w_div: float = option(2.0, "weight of the diversity of its images", at_least=0, announced=True)
    delta: float = option(0.5, "diversity that is enough", at_least=0)
    cap: Literal["image", "pixel"] = option(
        "image", "delta caps the mean difference of two images, as the code; or each pixel's"
    )
    w_cyc: float = option(
        20.0, "weight of the reconstruction from its images", at_least=0, announced=True
    )
    w_info: float = option(0.1, "weight of the adversarial contrast", at_least=0, announced=True)
    tau: float = option(0.07, "temperature of both contrasts", above=0)
    dim: int = option(128, "width of the projection that is contrasted", at_least=1, at_most=2**16)
    gradients: Literal["together", "in-turn"] = option(
        "together", "both gradients before either update, or the generator's by the updated network"
    )

    period_option = "k"
    reconstruction = "on photos"

    @property
    def augments(self) -> bool:
        """Its images come from generators, not from the run's augmentation."""
        return False

    @property
    def learning_epochs(self) -> int:
        """Epochs of a domain in which its generator learns: half of them, as in the paper's run."""
        return (self.k + 1) // 2 if self.generator_epochs is None else self.generator_epochs

    def notes(self, epochs: int) -> list[str]:
        """Whether all domains are made, and epochs left over."""
        planned = self.domains * self.k
        if epochs < planned:
            reached = -(-epochs // self.k)
            return [
                f"{epochs} epochs make {reached} of the {self.domains} domains of k = {self.k} "
                "epochs each; lower --pden.k or --pden.domains, or raise --epochs."
            ]
        if epochs > planned:
            return [
                f"The {self.domains} domains of k = {self.k} epochs each are complete after "
                f"{planned} of {epochs} epochs; the rest goes on with the last generator as it is."
            ]
        return []
