"""PEER: parameter-space ensemble with entropy regularization, Algorithm 1 of the paper."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from torch import Tensor

from peerdg.augment.protocol import Augment
from peerdg.averages.base import Average
from peerdg.errors import ConfigError, DataError
from peerdg.losses.barlow_twins import barlow_twins
from peerdg.losses.contrastive import info_nce
from peerdg.methods import alignment
from peerdg.methods.base import Batch, EpochResult, Loss, RunContext
from peerdg.methods.clean import Clean, as_clean
from peerdg.methods.views import AugmentedMethod, forward_both
from peerdg.models.classifier import Classifier, require_classifier
from peerdg.options import option
from peerdg.stages import stage

STRONG = (
    "PEER with the published w = 2 was 0.5, 3.1 and 1.7 points below --method p-ens on real digits "
    "(3 seeds). With --peer.scale released it was level (+0.1, -0.2 and -0.4)."
)


@dataclass(frozen=True, kw_only=True)
class Settings(alignment.FrozenGuideSettings):
    """Train a proxy on augmented images, guided by the average of its snapshots."""

    augment: bool = option(True, "train on augmented images (off: both views are clean)")
    average: bool = option(True, "task model is the mean of snapshots (off: the latest one)")
    include_init: bool = option(False, "average the initial weights too, as in Algorithm 1")
    reset_proxy: bool = option(False, "copy the task model into the proxy after each update")
    bn: Literal["recalibrate", "average", "copy", "frozen"] = option(
        "recalibrate", "batch statistics of the task model after an update"
    )

    own_average = "snapshots"
    snapshot_options = ("average", "include_init", "reset_proxy", "bn")

    @property
    def caution(self) -> str | None:
        """Warn of the published strength of PEER's regularizer."""
        is_published = self.scale == "sum" and self.regularizer == "barlow-twins"
        return STRONG if is_published and self.w >= 1 else None


class PEER(AugmentedMethod):
    """Train a proxy P on augmented images, guided by F, the frozen mean of its snapshots.

    Cho, Hwang and Lee, "PEER pressure: model-to-model regularization for single source domain
    generalization", CVPR 2025, https://arxiv.org/abs/2505.12745. P = C_p∘H_p and F = C_f∘H_f each
    have an encoder H and a linear head C. G is the augmentation, and BT is Barlow Twins. In each
    step, with x̄ = G(x), minimize over P and the projection head R

        L = CE(P(x), y) + CE(P(x̄), y) + w · BT(R(H_f(x)), R(H_p(x̄)))                       (Eq. 3)

    Every k epochs, re-draw the policy of G, add P's weights to the snapshots Θ and set
    θ_f = mean(Θ). F is deployed. `Settings` has options for details that the paper leaves open.

    Args:
        model: Pre-trained network. It becomes the proxy, and a copy becomes the task model.
        augment: Augmentation G.
        average: Average of the proxy, by default made from the settings.
        clean: All clean training images, see `as_clean`. Needed for batch normalization.
        cache: Whether to compute H_f(x) once per period, see `alignment.CachedFeatures`.
        probe: Images to measure gradients on, see `alignment.RegularizerScale`.
    """

    settings: Settings
    averages_used = 1
    own_deployed = "task"
    divergence_hint = ", or the regularizer's weight (--peer.w)"

    def __init__(
        self,
        model: Classifier,
        settings: Settings | None = None,
        *,
        augment: Augment | None = None,
        average: Average | None = None,
        clean: Clean | None = None,
        cache: bool | None = None,
        probe: Batch | None = None,
    ) -> None:
        require_classifier(model)
        settings = settings or Settings()
        super().__init__(settings=settings, augment=augment)
        self.proxy = model
        self.started: int | None = None  # last epoch passed to `start_epoch`
        self.projection = alignment.build_projection(settings, model.feature_dim)  # R
        clean = as_clean(clean)
        self.average = average or alignment.guiding_average(settings, model, clean)
        cache = False if self.average.updates_every_step else cache
        self.task_features = alignment.CachedFeatures(settings, self.task, clean, cache)
        self.scale = alignment.RegularizerScale(settings, model.feature_dim, probe)

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Re-draw the policy every k epochs. With `include_init`, take a snapshot first."""
        self.started = epoch
        self.average.before_epoch(self.proxy, epoch)
        self.task_features.refresh(self.average.version)
        policy = super().start_epoch(epoch)
        return policy | self.scale.measure(self, epoch)

    def loss(self, batch: Batch | Tensor, labels: Tensor | None = None) -> Loss:
        """Compute Eq. (3) for a `Batch`, or for images and their labels."""
        batch, settings, R = self.as_batch(batch, labels), self.settings, self.projection
        if len(batch.images) < 2 and settings.regularizer != "none":
            raise DataError("PEER needs batches of at least 2 images.", hint="Use drop_last=True.")
        augment = self.augment if settings.augment else None
        out = forward_both(self.proxy, batch, augment, joint=settings.joint_views)
        if settings.regularizer == "none":
            return out.loss()
        with stage("regularizer"):
            regularizer = out.ce.new_zeros(())
            # As published, one pair: H_f(x) and H_p(x̄). The option `views` selects others.
            for h_f, h_p in self.task_features.pairs(batch, out):
                z_f, z_p = R(h_f), R(h_p)
                if not settings.head_grad_target:
                    z_f = z_f.detach()
                if settings.regularizer == "info-nce":
                    regularizer = regularizer + info_nce(z_p, z_f, tau=settings.tau)
                else:
                    bt = barlow_twins(z_f, z_p, lam=settings.lam, normalize=settings.normalize)
                    regularizer = regularizer + bt
        total = out.ce + out.ce_bar + settings.w * self.scale(regularizer)
        return Loss(total, ce_clean=out.ce, ce_augmented=out.ce_bar, regularizer=regularizer)

    def end_epoch(self, epoch: int) -> EpochResult:
        """Update Θ <- Θ ∪ {θ_p}, θ_f <- mean(Θ) after every k-th epoch, see `Snapshots`."""
        if self.started != epoch:
            raise ConfigError(f"end_epoch({epoch}) needs start_epoch({epoch}) before the epoch.")
        records = self.average.after_epoch(self.proxy, epoch)  # empty unless a snapshot was taken
        if not (records and self.settings.reset_proxy):
            return EpochResult(records)
        self.proxy.load_state_dict(self.task.state_dict())
        return EpochResult(records, reset_optimizers=("main",))

    @property
    def task(self) -> Classifier:
        """Task model F, which guides the proxy."""
        return self.average.model

    @property
    def networks(self) -> dict[str, Classifier]:
        return {"proxy": self.proxy, "task": self.average.deployed}

    @property
    def averages(self) -> dict[str, Average]:
        """The average behind the task model, then the attached averages."""
        return {"task": self.average, **super().averages}

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        return cls(model, settings, **alignment.peer_of_run(model, settings, context))
