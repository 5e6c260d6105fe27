"""Your own method in one file: mixup (Zhang et al., ICLR 2018), on augmented images.

Run it with `python examples/custom_method.py`, or use it as a plugin of any command:

    peerdg train digits-mini --plugin examples/custom_method.py --custom-method.alpha 0.4
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

import peerdg
from peerdg.methods.base import Batch, Loss, MethodSettings
from peerdg.methods.views import AugmentedMethod, augmented_view
from peerdg.options import option


@dataclass(frozen=True, kw_only=True)
class Settings(MethodSettings):
    """Cross-entropy on mixtures of two augmented images."""

    alpha: float = option(0.2, "parameter of the beta distribution of mixtures", above=0)
    k: int = option(10, "re-draw the augmentation policy every k epochs", at_least=1)

    period_option = "k"


class Mixup(AugmentedMethod):
    """L = λ CE(F(x̃), y) + (1 - λ) CE(F(x̃), y') with x̃ = λ x̄ + (1 - λ) x̄', λ ~ Beta(α, α)."""

    def loss(self, batch: Batch) -> Loss:
        x_bar = augmented_view(batch, self.augment).float() / 255
        # The training loop seeds torch, so a resumed run ends bitwise identical.
        order = torch.randperm(len(x_bar)).to(x_bar.device)
        lam = torch.distributions.Beta(self.settings.alpha, self.settings.alpha).sample().item()
        logits = self.model(lam * x_bar + (1 - lam) * x_bar[order])
        ce = F.cross_entropy(logits, batch.labels)
        ce_other = F.cross_entropy(logits, batch.labels[order])
        return Loss(lam * ce + (1 - lam) * ce_other, ce=ce)


if __name__ == "__main__":
    run = peerdg.fit(
        "digits-mini",
        out="runs/mixup",
        existing="overwrite",
        plugin=__file__,
        custom_method={"alpha": 0.4, "k": 2},
        budget="quick",
        pretrain={"epochs": 2},
        train={"epochs": 4},
        evaluate_every=2,
    )
    print(run.accuracy)
