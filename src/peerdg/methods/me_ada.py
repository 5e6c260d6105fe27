"""ME-ADA: maximum-entropy adversarial data augmentation."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from peerdg.losses.entropy import entropy
from peerdg.methods.ada import ADA
from peerdg.methods.ada import Settings as ADASettings
from peerdg.methods.ascent import ExtraObjective
from peerdg.methods.base import Batch, Loss, weight_option
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class Settings(ADASettings):
    """ADA whose images also leave the network unsure; on photos a reconstruction."""

    perturb: Literal["sample", "pool", "source"] = option(
        "pool", "which images: as many as the source has out of all so far, all so far (doubles "
        "them each time), or the source's",
    )  # fmt: skip
    eta: float = weight_option(10.0, "weight of the entropy that the ascent raises")
    eta_min: float = option(
        0.0, "weight of the entropy that training raises, too; the released code: none", at_least=0
    )

    reconstruction = "on photos"


class MEADA(ADA):
    """ADA whose images also make the network unsure of its answer.

    Zhao et al., "Maximum-entropy adversarial data augmentation for improved generalization and
    robustness", NeurIPS 2020, https://arxiv.org/abs/2010.08001. As in ADA, k times in all, each
    image x with label y becomes a new one by gradient ascent from z = x, here on

        CE(F(z), y) - γ · mean[(H(z) - H(x))²] + η · H(softmax F(z))

    with the entropy H of the prediction. F learns from all images by cross-entropy.

    What is open is a field of `Settings`: those of ADA, with the released code of ME-ADA as
    defaults (`perturb="pool"`: all images so far, which doubles them each time; clipped when they
    are stored), and `eta_min`: AdvST's re-implementation has a weight for the entropy in training,
    `CE - η_min · entropy`, too, the released code has none.
    """

    settings: Settings
    divergence_hint = ", or the step of the ascent (--me-ada.rate)"

    def loss(self, batch: Batch) -> Loss:
        """CE - η_min · entropy, and both terms."""
        logits = self.model(batch.images)
        ce, uncertainty = F.cross_entropy(logits, batch.labels), entropy(logits)
        loss = ce - self.settings.eta_min * uncertainty if self.settings.eta_min else ce
        return Loss(loss, ce=ce, entropy=uncertainty)

    def make_extra_objective(self, x: Float[Tensor, "n 3 h w"]) -> ExtraObjective:
        """η times the entropy of each prediction."""
        return lambda z, logits: self.settings.eta * len(z) * entropy(logits)
