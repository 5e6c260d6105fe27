"""PEER's regularizer: align projected features of two views, from one network or two.

Shared by PEER, its variant with a fixed teacher, and Barlow Twins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.averages.average_options import SnapshotRule
from peerdg.averages.base import Average
from peerdg.averages.snapshots import BatchNormRule, Snapshots
from peerdg.distributed import whole_gradient
from peerdg.errors import ConfigError
from peerdg.losses.barlow_twins import barlow_twins
from peerdg.losses.contrastive import info_nce
from peerdg.methods.base import OFF, Batch, Method, MethodSettings, RunContext
from peerdg.methods.clean import CleanBatches, CleanImages
from peerdg.methods.views import TwoViewOutput
from peerdg.models.classifier import Classifier
from peerdg.models.layers import projection_head
from peerdg.options import option
from peerdg.rng import seed_for, seeded
from peerdg.stages import stage

if TYPE_CHECKING:
    from peerdg.methods.peer import Settings as PeerSettings

RELEASED_SCALE = 0.025  # factor in the Barlow Twins code of 2021. No paper mentions it
regularizer_option = partial(option, part_of="regularizer")


@dataclass(frozen=True, kw_only=True)
class AlignmentSettings(MethodSettings):
    """Options of the regularizer and its projection head R. Most defaults are the PEER paper's."""

    k: int = option(10, "re-draw the policy every k epochs", at_least=1, announced=True)
    w: float = regularizer_option(2.0, "weight of the regularizer", at_least=0, announced=True)
    scale: Literal["sum", "released", "mean", "gradient"] = regularizer_option(
        "sum", "sum (published), 0.025 x sum, mean over outputs, or equal gradients", announced=True
    )
    gradient_images: int = option(
        0, "images to measure gradients on (0: none, or a batch to balance them)", at_least=0
    )
    lam: float = regularizer_option(0.005, "weight of the redundancy term", at_least=0)
    regularizer: Literal["barlow-twins", "info-nce", "none"] = option(
        "barlow-twins", "loss between projected features", formerly="regulariser"
    )
    normalize: Literal["columns", "rows"] = regularizer_option(
        "columns", "Barlow Twins: standardize outputs (published), or scale images to length 1"
    )
    tau: float = regularizer_option(0.1, "temperature of InfoNCE (paper: 1)", above=0)
    head: Literal["trained", "frozen", "none"] = regularizer_option("trained", "projection head R")
    head_layers: int = regularizer_option(2, "layers of R (paper: 2 on Digits, else 3)", at_least=1)
    head_dim: int = regularizer_option(
        128, "outputs of R (128 on Digits, else 1024)", at_least=1, at_most=65536
    )
    head_hidden: int | None = regularizer_option(
        None, "hidden width of R (default: max(dim, 512))", at_least=1, at_most=65536
    )
    head_norm: Literal["bn", "ln", "none"] = regularizer_option("bn", "normalization inside R")
    joint_views: bool = option(False, "apply batch normalization to both views together")

    period_option = "k"

    def for_time_estimate(self) -> Self:
        return replace(self, scale="sum", gradient_images=0)

    @property
    def is_baseline(self) -> bool:
        return self.regularizer == OFF


@dataclass(frozen=True, kw_only=True)
class FrozenGuideSettings(AlignmentSettings):
    """Options of the regularizer if its targets are features of a frozen network."""

    head_grad_target: bool = regularizer_option(
        True, "also train R on the frozen network's features"
    )
    views: Literal["clean_aug", "aug_clean", "both_same"] = option(
        "clean_aug", "views for the frozen and the trained network"
    )
    cache_features: bool = option(True, "cache the frozen network's features")


def build_projection(settings: AlignmentSettings, feature_dim: int) -> nn.Module:
    """Build the projection head R. With `head="none"` it is the identity."""
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


@stage("regularizer")
def alignment_loss(
    settings: AlignmentSettings, projection: nn.Module, target: Tensor, features: Tensor
) -> Tensor:
    """Compute BT(R(target), R(features)) with the projection R, or InfoNCE instead of BT."""
    z_target, z = projection(target), projection(features)
    if isinstance(settings, FrozenGuideSettings) and not settings.head_grad_target:
        z_target = z_target.detach()
    if settings.regularizer == "info-nce":
        return info_nce(z, z_target, tau=settings.tau)
    return barlow_twins(z_target, z, lam=settings.lam, normalize=settings.normalize)


class CachedFeatures(nn.Module):
    """Compute and cache a frozen network's features of clean images.

    Args:
        settings: Options `views` and `cache_features`.
        network: Frozen network.
        clean: All clean images. Only features of `CleanImages`, which have row indices, are cached.
        cache: True if batches have an `index`. `refresh` then computes all features in advance.
            None waits for the first batch with an index. False disables the cache.
    """

    def __init__(
        self,
        settings: FrozenGuideSettings,
        network: Classifier,
        clean: CleanImages | CleanBatches | None,
        cache: bool | None = None,
    ) -> None:
        super().__init__()
        self._network = (network,)  # the tuple keeps its weights out of this state_dict
        is_used = settings.views != "aug_clean" and settings.regularizer != OFF
        caches = is_used and settings.cache_features and cache is not False
        self.clean = clean if isinstance(clean, CleanImages) and caches else None
        self.views = settings.views
        self.has_rows = bool(cache)
        self.version: int | None = None
        self.table: Float[Tensor, "images dim"] | None = None
        self.register_load_state_dict_post_hook(CachedFeatures._forget)  # type: ignore[no-untyped-call]

    def refresh(self, version: int) -> None:
        """Recompute the features if `version` has changed. Call this before each epoch."""
        if self.clean is None or version == self.version:
            return
        self.version, self.table = version, None
        if self.has_rows:
            self.table = self._compute(self.clean)

    def features(self, batch: Batch) -> Tensor:
        """Look up H(x) of a batch, or compute it if its rows are unknown."""
        if batch.index is None or self.clean is None or self.version is None:
            return self.forward(batch.images)
        self.has_rows = True
        if self.table is None:
            self.table = self._compute(self.clean)
        return self.table[batch.index]

    @stage("regulator features")
    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Compute H(x)."""
        # Always in float32: the table is computed between epochs, outside autocast.
        with torch.autocast(images.device.type, enabled=False):
            return self._network[0].features(images)

    def pairs(self, batch: Batch, out: TwoViewOutput) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of features, one from the frozen and one from the trained network.

        The published setting `"clean_aug"` yields a single pair, H_f(x) and H_p(x̄).
        """
        if self.views != "aug_clean":
            yield self.features(batch), out.h_bar if self.views == "clean_aug" else out.h
        if self.views != "clean_aug":
            yield self(out.x_bar), out.h if self.views == "aug_clean" else out.h_bar

    def _compute(self, clean: CleanImages) -> Float[Tensor, "images dim"]:
        rows, parts = zip(*((rows, self(images)) for rows, images in clean.chunks()), strict=True)
        features = torch.cat(parts)
        table = torch.empty_like(features)  # ordered by row, not by chunk
        table[torch.cat(rows)] = features
        return table

    def _forget(self, _: Any) -> None:
        self.version, self.table = None, None  # stale after loading other weights


class RegularizerScale(nn.Module):
    """Scale the regularizer, and compare its gradient with the cross-entropy gradient.

    Barlow Twins sums over R's outputs, so the weight that balances it with the cross-entropy
    depends on the number of outputs and on the batch.

    Args:
        settings: `scale` is `"sum"` (published), `"released"` (the sum times the
            constant in the Barlow Twins code of 2021), `"mean"` over R's outputs, or `"gradient"`,
            which equalizes the two gradient norms at the encoder.
        feature_dim: Dimension of the encoder's features.
        probe: Labeled images to measure gradients on, at the start of each period.
    """

    norms: Tensor
    epoch: Tensor

    def __init__(
        self, settings: AlignmentSettings, feature_dim: int, probe: Batch | None = None
    ) -> None:
        super().__init__()
        if settings.scale == "gradient" and probe is None:
            raise ConfigError(
                "scale='gradient' needs a fixed batch to measure gradients on.",
                hint="Pass probe=Batch(images, labels) with some clean training images.",
            )
        self.settings, self.probe = settings, probe
        self.outputs = feature_dim if settings.head == "none" else settings.head_dim
        # Buffers, so that a run resumed within a period continues with the same values.
        self.register_buffer("norms", torch.zeros(2))  # cross-entropy, regularizer
        self.register_buffer("epoch", torch.tensor(-1))

    def forward(self, regularizer: Tensor) -> Tensor:
        """Scale the regularizer, or the norm of its gradient."""
        if self.settings.scale == "released":
            return RELEASED_SCALE * regularizer
        if self.settings.scale == "mean":
            return regularizer / self.outputs
        if self.settings.scale == "gradient":
            return regularizer * (self.norms[0] / self.norms[1].clamp_min(1e-12))
        return regularizer

    def measure(self, method: Method, epoch: int) -> dict[str, Any]:
        """Measure the gradient norms of the cross-entropy and the regularizer at a period's start.

        The method's buffers are restored.
        """
        probe, settings = self.probe, self.settings
        if probe is None or settings.regularizer == OFF or epoch % settings.k:
            return {}
        if int(self.epoch) != epoch:
            before = {name: buffer.clone() for name, buffer in method.named_buffers()}
            images, labels = (each.to(self.norms.device) for each in (probe.images, probe.labels))
            batch, norms = replace(probe, images=images, labels=labels), []
            # One pass per norm: the graph of a compiled network can be used only once.
            for terms in (("ce_clean", "ce_augmented"), ("regularizer",)):
                with seeded(0, "gradients", epoch):  # the same dropout and views
                    parts = method.loss(batch).parts
                term = torch.stack([parts[name] for name in terms]).sum()
                norms.append(gradient_norm(term, method.trained.encoder))
            for name, buffer in method.named_buffers():
                buffer.copy_(before[name])  # restore batch statistics
            self.norms.copy_(torch.stack(norms))
            self.epoch.fill_(epoch)
        weighted = float(settings.w * self(self.norms[1]))
        return {"gradients": {"cross_entropy": float(self.norms[0]), "regularizer": weighted}}


def probe_batch(settings: AlignmentSettings, context: RunContext) -> Batch | None:
    """Take the images to measure gradients on, with a similar class distribution as the source."""
    # Barlow Twins depends on the size of the batch.
    images = settings.gradient_images or context.batch_size * (settings.scale == "gradient")
    if not images:
        return None
    size = len(context.clean.rows[0])
    chunks = islice(context.clean.labeled(), -(-images // size))  # of shuffled images
    taken, labels = map(torch.cat, zip(*chunks, strict=True))
    # Rows within a chunk may be sorted by class, so take evenly spaced ones.
    rows = torch.linspace(0, len(taken) - 1, min(images, len(taken))).round().long()
    return Batch(taken[rows], labels[rows], seed=seed_for(context.seed, "probe"))


def gradient_norm(term: Tensor, encoder: nn.Module) -> Float[Tensor, ""]:
    """Compute ‖∂term/∂θ‖₂ over all trained parameters θ of the encoder, and free the graph."""
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    if not (parameters and term.requires_grad):
        return term.new_zeros(())
    gradients = torch.autograd.grad(term, parameters, allow_unused=True)
    whole = (whole_gradient(gradient) for gradient in gradients if gradient is not None)
    squares = [gradient.float().square().sum() for gradient in whole]
    return torch.stack(squares).sum().sqrt() if squares else term.new_zeros(())


def guiding_average(
    settings: "PeerSettings",
    model: Classifier,
    clean: CleanImages | CleanBatches | None,
    *,
    rule: SnapshotRule | None = None,
    deployed_bn: BatchNormRule | None = None,
) -> Average:
    """Build the average that guides PEER, by default the mean of all snapshots."""
    settings.check_average("snapshots")
    rule = rule or SnapshotRule(settings.k)
    return Snapshots(
        model,
        k=rule.k,
        bn=settings.bn,
        clean=clean,
        include_init=settings.include_init,
        start=rule.start,
        last=rule.last if settings.average else 1,
        deployed_bn=deployed_bn,
    )


def peer_of_run(model: Classifier, settings: "PeerSettings", context: RunContext) -> dict[str, Any]:
    """Return PEER's constructor arguments for a run."""
    kind = context.average.kind[0] if context.average.kind else settings.own_average
    rule = context.average.snapshots_of(kind, k=context.period, epochs=context.epochs)
    if rule is None:
        average = context.make_average(kind, model)
    else:
        # `bn="recalibrate"` always gives the guiding F clean statistics, but not the deployed F.
        deployed_bn = settings.bn if settings.bn != "recalibrate" else "average"
        is_clean = context.batch_statistics == "clean"
        average = guiding_average(
            settings, model, context.clean, rule=rule, deployed_bn=None if is_clean else deployed_bn
        )
    return {
        "augment": context.augment,
        "average": average,
        "clean": context.clean,
        "cache": settings.k * context.passes > 1,  # otherwise each feature is used at most once
        "probe": probe_batch(settings, context),
    }
