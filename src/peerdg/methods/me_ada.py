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
    """ADA with an entropy term in the ascent. A reconstruction on photos."""

    perturb: Literal["sample", "pool", "source"] = option(
        "pool",
        "images to perturb: a pool sample as large as the source, the whole pool (doubles it "
        "each time), or the source",
    )
    eta: float = weight_option(10.0, "weight of the entropy in the ascent")
    eta_min: float = option(0.0, "weight of the entropy in training (released code: 0)", at_least=0)

    reconstruction = "on photos"


class MEADA(ADA):
    """ADA whose adversarial images also raise the entropy of the prediction.

    Zhao et al., "Maximum-entropy adversarial data augmentation for improved generalization and
    robustness", NeurIPS 2020, https://arxiv.org/abs/2010.08001. As in ADA, k times in total, each
    image x with label y is turned into a new image by gradient ascent from z = x, here on

        CE(F(z), y) - γ · mean[(H(z) - H(x))²] + η · H(softmax F(z))

    where the last H is the entropy. F minimizes cross-entropy on all images.

    Defaults follow the released code of ME-ADA: it perturbs all images so far, which doubles the
    pool each time, and clips them when they are stored. AdvST's re-implementation also uses the
    entropy in training, `CE - η_min · entropy` (`eta_min`).
    """

    settings: Settings
    divergence_hint = ", or the step size of the ascent (--me-ada.rate)"

    def loss(self, batch: Batch) -> Loss:
        """Compute CE - η_min · entropy."""
        logits = self.model(batch.images)
        ce, uncertainty = F.cross_entropy(logits, batch.labels), entropy(logits)
        loss = ce - self.settings.eta_min * uncertainty if self.settings.eta_min else ce
        return Loss(loss, ce=ce, entropy=uncertainty)

    def make_extra_objective(self, x: Float[Tensor, "n 3 h w"]) -> ExtraObjective:
        """Return η times the summed entropy of the predictions."""
        return lambda z, logits: self.settings.eta * len(z) * entropy(logits)
