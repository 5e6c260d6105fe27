"""PEER: parameter-space ensemble with entropy regularization (CVPR 2025), Algorithm 1.

Cho, Hwang and Lee, "PEER pressure: Model-to-Model Regularization for Single Source Domain
Generalization", https://arxiv.org/abs/2505.12745.
"""

from dataclasses import replace
from typing import Any, Self, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.augment.policy import Policy
from peerdg.augment.protocol import Augment
from peerdg.averages.average_options import SnapshotRule
from peerdg.averages.base import Average
from peerdg.averages.snapshots import Snapshots
from peerdg.errors import ConfigError
from peerdg.methods.alignment import alignment_to_frozen, build_projection, frozen_features
from peerdg.methods.base import Batch, EpochResult, Method, RunContext, Terms
from peerdg.methods.clean import Clean, CleanBatches, CleanImages, as_clean
from peerdg.methods.features import FeatureTable
from peerdg.methods.gradients import gradient_norm, probe_batch, unchanged_buffers
from peerdg.methods.settings.peer import Settings
from peerdg.methods.views import augment_ahead, augmented_view, both_views
from peerdg.models.classifier import Classifier, has_batch_statistics


class PEER(Method):
    """A proxy P learns from augmented images, guided by F, the frozen mean of its own snapshots.

    P = C_p∘H_p and F = C_f∘H_f are an encoder H and a linear head C each, G is the augmentation, CE
    cross-entropy, BT Barlow Twins. In every step, with x̄ = G(x), minimise over P and the projection
    head R

        L = CE(P(x), y) + CE(P(x̄), y) + w · BT(R(H_f(x)), R(H_p(x̄)))                       (Eq. 3)

    and every k epochs re-draw the policy of G, add P's weights to the snapshots Θ and set
    θ_f = mean(Θ). P itself is not reset. F is deployed.

    What the paper leaves open is a field of `Settings`, with our reading as the default: R is
    trained with P and gets gradients from both branches; Θ excludes the initial weights and
    includes the last; the proxy is never reset. `scale` is ours: BT is a sum over R's outputs, so
    the w that balances it with CE depends on their number and on the batch.

    Args:
        model: The pre-trained network; it becomes the proxy, a copy of it the task model.
        settings: Every switch of the method.
        augment: G, re-drawn by `start_epoch`.
        average: What averages the proxy; default: its snapshots. Snapshots that are given have a
            `k` of their own; `settings.k` is then the period of the policy alone. With an average
            that follows steps, e.g. `EMA`, call `update_averages` after each of them.
        clean: All clean training images, to recalibrate batch normalisation after each update:
            one tensor `[N, 3, H, W]`, a `DataLoader` that shuffles or a list of batches. Only for a
            tensor: if a `Batch` gives its `index`, the task model's features are looked up in a
            table that is computed once per period, from the first such batch on.
        trained_statistics: Evaluate and deploy F with the mean of its snapshots' batch statistics.
            F still guides the proxy with recalibrated ones, so training is unchanged and a second
            copy of F is kept.
        probe: A fixed labelled batch, on which the norms of the terms' gradients at the encoder are
            measured at the start of each period and recorded; `scale="gradient"` needs it.

    Raises:
        ConfigError: If the settings ask for something that the given `average` does not do.
    """

    pull: Tensor
    pull_epoch: Tensor

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
        trained_statistics: bool = False,
        probe: Batch | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.augment = augment or Policy()
        self.clean = as_clean(clean)
        self.proxy = model
        if average is not None:
            _require_agreement(self.settings, average)
        self.average = average or _snapshots(model, self.settings, self.clean)
        self.twin: Snapshots | None = None  # of the average, with other batch statistics
        if trained_statistics and has_batch_statistics(model) and _recalibrates(self.average):
            self.twin = self.average.twin(model, bn="average")
        self.projection = build_projection(self.settings, model.feature_dim)
        self.table = FeatureTable()
        self.probe = probe
        if probe is None and self.settings.scale == "gradient":
            raise ConfigError(
                "scale='gradient' balances gradients on a fixed batch, and none was given.",
                hint="Pass probe=Batch(images, labels) with some clean training images.",
            )
        # Kept with the state: a run that is resumed within a period goes on with its values.
        self.register_buffer("pull", torch.zeros(2))  # ‖∂CE/∂θ‖, ‖∂BT/∂θ‖, θ of H_p
        self.register_buffer("pull_epoch", torch.tensor(-1))
        self.register_load_state_dict_post_hook(PEER._forget_features)  # type: ignore[no-untyped-call]

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Use the policy of period `epoch // k`, if images are augmented.

        With `include_init`, first snapshot θ_p^(epoch) at the start of each period.
        """
        for average in self._own_averages:
            average.before_epoch(self.proxy, epoch)
        self._refresh_features()
        records: dict[str, Any] = {}
        if self.settings.augment:
            records["policy"] = self.augment.redraw(epoch // self.settings.k)
        return records | self._measured_pull(epoch)

    def loss(self, batch: Batch) -> Terms:
        """Eq. (3): cross-entropy on both views and the weighted regularizer."""
        ce, ce_bar, regularizer = self._terms(batch)
        terms = {"ce_clean": ce.detach(), "ce_augmented": ce_bar.detach()}
        loss = ce + ce_bar
        if regularizer is not None:
            loss = loss + self.settings.w * self._scaled(regularizer)
            terms["regularizer"] = regularizer.detach()
        return {"loss": loss, **terms}

    def _terms(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """CE(P(x), y), CE(P(x̄), y) and BT(R(H_f(x)), R(H_p(x̄))), which may be switched off."""
        x, y = batch.images, batch.labels
        x_bar = augmented_view(batch, self.augment) if self.settings.augment else x
        joint = self.settings.joint_views
        (h, h_bar), (logits, logits_bar) = both_views(self.proxy, x, x_bar, joint=joint)
        ce, ce_bar = F.cross_entropy(logits, y), F.cross_entropy(logits_bar, y)
        if self.settings.regularizer == "none":
            return ce, ce_bar, None
        return ce, ce_bar, self._regularizer(batch, x_bar, h, h_bar)

    def end_epoch(self, epoch: int) -> EpochResult:
        """After every k-th epoch: Θ <- Θ ∪ {θ_p}, θ_f <- mean(Θ).

        With `reset_proxy`, P then goes on from F.
        """
        records: dict[str, Any] = {}
        before = self.average.version
        for average in self._own_averages:
            records |= average.after_epoch(self.proxy, epoch)  # `Snapshots.add` averages
        is_updated = self.average.version != before
        if not (is_updated and self.settings.reset_proxy):
            return EpochResult(records)
        self.proxy.load_state_dict(self.task.state_dict())
        return EpochResult(records, reset_optimizers=("main",))

    @property
    def task(self) -> Classifier:
        """F with the batch statistics that guide the proxy; see `networks` for the deployed one."""
        return self.average.model

    def _regularizer(self, batch: Batch, x_bar: Tensor, h: Tensor, h_bar: Tensor) -> Tensor:
        """BT or InfoNCE between the task model's and the proxy's projected features."""
        return alignment_to_frozen(
            self.settings,
            self.projection,
            h,
            h_bar,
            clean=lambda: self._clean_features(batch),
            augmented=lambda: self._task_features(x_bar),
        )

    def _scaled(self, regularizer: Tensor) -> Tensor:
        """Scale the regularizer by `settings.scale`, without its weight w."""
        match self.settings.scale:
            case "sum":
                return regularizer
            case "mean":
                return regularizer / self._outputs
            case "gradient":
                return regularizer * (self.pull[0] / self.pull[1].clamp_min(1e-12))

    @property
    def _outputs(self) -> int:
        """Dimensions of R's output."""
        return self.proxy.feature_dim if self.settings.head == "none" else self.settings.head_dim

    def _measured_pull(self, epoch: int) -> dict[str, Any]:
        """At the start of a period: norms of the weighted terms' gradients at the encoder.

        Nothing but the buffers changes by it, and only in epochs that begin a period.
        """
        if self.probe is None or self.settings.regularizer == "none" or epoch % self.settings.k:
            return {}
        if int(self.pull_epoch) != epoch:
            with unchanged_buffers(self):
                # A pass for each: a compiled network's graph can be used only once.
                ce, ce_bar, _ = self._terms(self.probe)
                ce_norm = gradient_norm(ce + ce_bar, self.proxy.encoder)
                _, _, regularizer = self._terms(self.probe)
                assert regularizer is not None  # noqa: S101  (it is switched on)
                norm = gradient_norm(regularizer, self.proxy.encoder)
            self.pull.copy_(torch.stack((ce_norm, norm)))
            self.pull_epoch.fill_(epoch)
        ce_norm, norm = self.pull
        weighted = float(self.settings.w * self._scaled(norm))
        return {"gradients": {"cross_entropy": float(ce_norm), "regularizer": weighted}}

    def _clean_features(self, batch: Batch) -> Tensor:
        """H_f(x), looked up if it was computed for this period."""
        known = self.table.lookup(batch.index)
        return self._task_features(batch.images) if known is None else known

    def _task_features(self, images: Tensor) -> Tensor:
        return frozen_features(self.task, images)

    def _refresh_features(self) -> None:
        """Compute H_f(x) of all clean images once per update of F, between which it is constant."""
        wanted = self.settings.cache_features and self.settings.views != "aug_clean"
        if not wanted or self.settings.regularizer == "none":
            return
        if self.average.updates_every_step:
            return
        if isinstance(self.clean, CleanImages):  # only `CleanImages` has row indices
            self.table.refresh(self.average.version, self.clean, self._task_features)

    def _forget_features(self, _: Any) -> None:
        self.table.forget()  # the loaded weights have other features

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        """Build PEER with the run's augmentation and clean images."""
        kind = context.average.kind[0] if context.average.kind else settings.own_average
        average: Average
        if (rule := context.snapshots_of(kind)) is None:
            average = context.make_average(kind, model)
        else:  # with the method's own batch statistics and start
            average = _snapshots(model, settings, context.clean, rule)
        if settings.k * context.passes <= 1:  # seen at most once per period: a table saves nothing
            settings = replace(settings, cache_features=False)
        method = cls(
            model,
            settings,
            augment=context.augment,
            average=average,
            clean=context.clean,
            trained_statistics=context.batch_statistics == "trained",
            probe=probe_batch(context, settings.gradient_images)
            if settings.gradient_images > 1
            else None,
        )
        method.table.is_used = context.passes > 0  # batches know their rows where views repeat
        return method

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        """Augment several batches ahead of their steps."""
        return augment_ahead(batches, self.augment) if self.settings.augment else batches

    @property
    def deployed_average(self) -> Average:
        """The average that is evaluated and deployed."""
        return self.twin or self.average

    @property
    def networks(self) -> dict[str, Classifier]:
        """Proxy and task model."""
        return {"proxy": self.proxy, "task": self.deployed_average.model}

    @property
    def averages(self) -> dict[str, Average]:
        """The average behind the task model, then the watched ones."""
        return {"task": self.deployed_average, **super().averages}

    @property
    def with_clean_statistics(self) -> frozenset[str]:
        """`"task"`, once it has a snapshot, if statistics are recomputed after each of them."""
        done = _recalibrates(self.deployed_average) and self.clean is not None
        return frozenset({"task"} if done and self.average.count else ())

    @property
    def _own_averages(self) -> list[Average]:
        """The average that guides the proxy, and its twin if there is one."""
        return [average for average in (self.average, self.twin) if average is not None]


def _snapshots(
    model: Classifier,
    settings: Settings,
    clean: CleanImages | CleanBatches | None,
    rule: SnapshotRule | None = None,
) -> Snapshots:
    """Build the snapshot average from the settings; by default all snapshots, every k epochs."""
    rule = rule or SnapshotRule(settings.k)
    return Snapshots(
        model,
        k=rule.k,
        bn=settings.bn,
        clean=clean,
        include_init=settings.include_init,
        start=rule.start,
        last=rule.last if settings.average else 1,
    )


def _require_agreement(settings: Settings, average: Average) -> None:
    """Refuse settings that a given average does not follow."""
    if not isinstance(average, Snapshots):
        settings.check_average(type(average).__name__)
        return
    agree = {
        "include_init": average.include_init or not settings.include_init,
        "reset_proxy": not (settings.reset_proxy and average.include_init),
        "average": settings.average or average.last == 1,
        "bn": settings.bn in (average.bn, "recalibrate"),
    }
    for name, is_followed in agree.items():
        if not is_followed:
            raise ConfigError(
                f"{name}={getattr(settings, name)!r} asks for other snapshots than those of the "
                "given average.",
                hint=f"Leave {name} out of the settings, or average= to have them made.",
            )


def _recalibrates(average: Average) -> TypeGuard[Snapshots]:
    """Whether each update recomputes the average's batch statistics."""
    return isinstance(average, Snapshots) and average.bn == "recalibrate"
