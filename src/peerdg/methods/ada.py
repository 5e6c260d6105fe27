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
    """Images that the network finds hard are made by gradient ascent and learnt from, too."""

    perturb: Literal["sample", "pool", "source"] = option(
        "sample", "which images: as many as the source has out of all so far, all so far, or the "
        "source's",
    )  # fmt: skip


class ADA(PoolMethod):
    """Train F on the source and on images of fictitious domains that F finds hard.

    Volpi et al., "Generalizing to unseen domains via adversarial data augmentation", NeurIPS 2018,
    https://arxiv.org/abs/1805.12018. F learns by cross-entropy. After every T_min steps, k times in
    all, each image x with label y becomes a new one by gradient ascent from z = x on

        CE(F(z), y) - γ · mean[(H(z) - H(x))²]

    where H are the features before the last layer: the loss rises while the meaning, as the network
    sees it, stays near. All z join the training images with the labels of their x.

    Here T_min is `every` epochs: with `--train.steps-per-epoch 100`, the 100 iterations of the
    released code. What the paper and its re-implementations do differently is a field of
    `Settings`:

    - `rate`: the released code ascends the mean over a batch of 32 with step 1.0, so that each
      image moves by 1/32 of its own gradient. Here every image ascends its own objective, and the
      result does not depend on how many are computed at once.
    - `perturb`: the released code takes as many images as the source has from the shuffled pool of
      all images so far (`"sample"`); re-implementations take the whole pool, which doubles each
      time (`"pool"`). `"source"` takes the images of the source.
    - `clip`: the released code does not clip. The pool holds 8-bit images, so z is clipped to
      [0, 1] and rounded when it is stored (`"end"`); re-implementations clip (`"steps"`).
    - `k`: 6 in the released code, 3 in M-ADA, ME-ADA and AdvST.

    Images are made in eval mode.
    """

    settings: Settings
    divergence_hint = ", or the step of the ascent (--ada.rate)"

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy on images of the source and on those that were made."""
        loss = F.cross_entropy(self.model(batch.images), batch.labels)
        return Loss(loss, ce=loss)

    def end_epoch(self, epoch: int) -> EpochResult:
        """Generate adversarial images every `every` epochs, at most `k` times."""
        if not self.settings.makes_images(epoch):
            return EpochResult()
        return self.ascent.make(self.pool, self._rows())

    @property
    def ascent(self) -> Ascent:
        """What makes an image harder for F as it is now."""
        return Ascent(self.model, self.settings, self.make_extra_objective)

    def make_extra_objective(self, x: Float[Tensor, "n 3 h w"]) -> ExtraObjective | None:
        """A further term of the objective of images that start from x, for variants; here none."""
        return None

    def _rows(self) -> Int64[Tensor, " n"]:
        """Which images of the pool are perturbed."""
        everything, source = len(self.pool), len(self.pool.images)
        if self.settings.perturb == "sample":
            rows = torch.randperm(everything)[:source].sort().values
        else:
            rows = torch.arange(everything if self.settings.perturb == "pool" else source)
        return rows.to(self.pool.images.device)
