"""The regularizer of the PEER paper: features of two views, compared by a projection head R."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from peerdg.losses.barlow_twins import barlow_twins
from peerdg.losses.info_nce import info_nce
from peerdg.methods.alignment_settings import AlignmentSettings, FrozenGuideSettings
from peerdg.methods.base import Terms
from peerdg.models.classifier import Classifier
from peerdg.models.projection import projection_head
from peerdg.stages import stage


def build_projection(settings: AlignmentSettings, feature_dim: int) -> nn.Module:
    """R, trained or frozen; the identity if there is none."""
    if settings.head == "none":
        return nn.Identity()
    head = projection_head(
        feature_dim,
        settings.head_dim,
        layers=settings.head_layers,
        hidden_dim=settings.head_hidden,
        norm=settings.head_norm,
    )
    return head.requires_grad_(settings.head == "trained")


def alignment_loss(
    settings: AlignmentSettings,
    projection: nn.Module,
    target: Tensor,
    features: Tensor,
    *,
    target_learns: bool = True,
) -> Tensor:
    """BT(R(target), R(features)), or InfoNCE of both.

    Args:
        settings: Which, and its values.
        projection: R.
        target: What the features are to agree with, of the same images.
        features: Features of the network that is trained.
        target_learns: Whether gradients flow through R(target), too.
    """
    with torch.set_grad_enabled(target_learns and torch.is_grad_enabled()):
        z_target = projection(target)
    z = projection(features)
    if settings.regularizer == "info-nce":
        return info_nce(z, z_target, tau=settings.tau)
    return barlow_twins(z_target, z, lam=settings.lam)


@stage("regularizer")
def alignment_to_frozen(
    settings: FrozenGuideSettings,
    projection: nn.Module,
    h: Tensor,
    h_bar: Tensor,
    *,
    clean: Callable[[], Tensor],
    augmented: Callable[[], Tensor],
) -> Tensor:
    """Compare the features of a trained network with those of a frozen one.

    Args:
        settings: Which views meet.
        projection: R.
        h: The trained network's features of the clean images x.
        h_bar: Its features of the augmented ones x̄.
        clean: Gives the frozen network's features of x.
        augmented: Gives its features of x̄.
    """
    learns = settings.head_grad_target

    def each(target: Tensor, features: Tensor) -> Tensor:
        return alignment_loss(settings, projection, target, features, target_learns=learns)

    match settings.views:
        case "clean_aug":
            return each(clean(), h_bar)
        case "aug_clean":
            return each(augmented(), h)
        case "both_same":
            return each(clean(), h) + each(augmented(), h_bar)


@stage("regulator features")
@torch.no_grad()
def frozen_features(network: Classifier, images: Tensor) -> Tensor:
    """Features of a frozen network."""
    # In float32 under autocast too: a table is computed between epochs, where there is none.
    with torch.autocast(images.device.type, enabled=False):
        return network.features(images)


def loss_terms(
    ce: Tensor, ce_bar: Tensor, regularizer: Tensor | None = None, *, w: float = 0
) -> Terms:
    """CE(x) + CE(x̄) + w · regularizer, and what it is made of."""
    terms = {"ce_clean": ce.detach(), "ce_augmented": ce_bar.detach()}
    loss = ce + ce_bar
    if regularizer is not None:
        loss = loss + w * regularizer
        terms["regularizer"] = regularizer.detach()
    return {"loss": loss, **terms}
