"""ADA: adversarial data augmentation."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from peerdg.methods.ascent import Ascent, AscentSettings, ExtraObjective, PoolMethod
from peerdg.methods.base import Batch, EpochResult, Loss
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class Settings(AscentSettings):
    """Also train on adversarial images made by gradient ascent."""

    clip: Literal["end", "steps"] = option(
        "end", "when to clip pixels to [0, 1]: at the end, or after every step"
    )
    perturb: Literal["sample", "pool", "source"] = option(
        "sample",
        "images to perturb: a pool sample as large as the source, the whole pool, or the source",
    )


class ADA(PoolMethod):
    """Train F on the source and on adversarial images of fictitious domains.

    Volpi et al., "Generalizing to unseen domains via adversarial data augmentation", NeurIPS 2018,
    https://arxiv.org/abs/1805.12018. F minimizes cross-entropy. Every T_min steps, k times in
    total, each image x with label y is turned into a new image by gradient ascent from z = x on

        CE(F(z), y) - γ · mean[(H(z) - H(x))²]

    where H are the features before the last layer. The loss rises while the features stay close.
    Each z joins the training images with the label of its x. The ascent uses F in eval mode.

    Here T_min is `every` epochs. Set `--train.steps-per-epoch 100` for the 100 iterations of the
    released code. `Settings` has an option for each difference between the paper and later code:

    - `rate`: the released code ascends on the mean objective of a batch of 32 with step size 1.0,
      so each image moves by 1/32 of its gradient. Here each image ascends on its own objective,
      and the result does not depend on the batch size.
    - `perturb`: the released code samples as many images as the source has from all images so far
      (`"sample"`). Re-implementations perturb the whole pool, which doubles it (`"pool"`).
      `"source"` perturbs the source images only.
    - `clip`: the released code does not clip. The pool stores 8-bit images, so z is clipped to
      [0, 1] and rounded at the end (`"end"`). Re-implementations clip after each step (`"steps"`).
    - `k`: 6 in the released code, 3 in M-ADA, ME-ADA and AdvST.
    """

    settings: Settings
    divergence_hint = ", or the step size of the ascent (--ada.rate)"

    def loss(self, batch: Batch) -> Loss:
        """Compute the cross-entropy on a batch from the pool."""
        loss = F.cross_entropy(self.model(batch.images), batch.labels)
        return Loss(loss, ce=loss)

    def end_epoch(self, epoch: int) -> EpochResult:
        """Generate adversarial images every `every` epochs, at most `k` times."""
        if not self.settings.makes_images(epoch):
            return EpochResult()
        return self.ascent.make(self.pool, self._rows())

    @property
    def ascent(self) -> Ascent:
        """Gradient ascent with the current weights of F."""
        return Ascent(self.model, self.settings, self.make_extra_objective)

    def make_extra_objective(self, x: Float[Tensor, "n 3 h w"]) -> ExtraObjective | None:
        """Return an extra ascent objective for images that start from x. ADA has none."""
        return None

    def _rows(self) -> Int64[Tensor, " n"]:
        """Choose which pool images to perturb."""
        everything, source = len(self.pool), len(self.pool.images)
        if self.settings.perturb == "sample":
            rows = torch.randperm(everything)[:source].sort().values
        else:
            rows = torch.arange(everything if self.settings.perturb == "pool" else source)
        return rows.to(self.pool.device)
