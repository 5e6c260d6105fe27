"""T+RA of the PEER paper: a student guided by a frozen teacher in the place of the task model."""

import copy
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.augment.policy import Policy
from peerdg.augment.protocol import Augment
from peerdg.errors import ConfigError, NumericalError
from peerdg.long_work import iterate
from peerdg.methods.alignment import (
    CachedFeatures,
    FrozenGuideSettings,
    alignment_loss,
    build_projection,
    loss_terms,
)
from peerdg.methods.base import Batch, Loss, Method, RunContext
from peerdg.methods.clean import Clean, CleanImages, as_clean
from peerdg.methods.views import augment_ahead, forward_both
from peerdg.models.classifier import Classifier
from peerdg.options import option

ADAPTER_BATCH = 128  # images in a step of the adapter's fit


@dataclass(frozen=True, kw_only=True)
class Settings(FrozenGuideSettings):
    """A student learns augmented images, guided by a frozen teacher (T+RA)."""

    model: str | None = option(
        None,
        "the teacher: run or model folder, or a network with published weights, e.g. "
        "regnet_y_16gf; default: what the main phase starts from",
        names_model=True,
    )
    adapter: Literal["fitted", "trained"] = option(
        "fitted",
        "map from the teacher's features to the student's width, if they differ: fitted to the "
        "source's classes and frozen, or trained with the student",
    )
    adapter_epochs: int = option(20, "passes over the source that fit the adapter", at_least=1)
    adapter_lr: float = option(1e-3, "learning rate of the adapter's fit", above=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapter == "trained" and not self.head_grad_target:
            raise ConfigError(
                "teacher.adapter 'trained' learns through R's branch of the teacher, which "
                "teacher.head_grad_target = false cuts off.",
                hint="Leave one of them out.",
            )

    @property
    def is_oracle(self) -> bool:
        """With a teacher from elsewhere."""
        return self.model is not None


class Teacher(Method):
    """A student P learns from augmented images, guided by a frozen teacher T.

    The comparison of Table 5 of Cho, Hwang and Lee, "PEER pressure", CVPR 2025,
    https://arxiv.org/abs/2505.12745. With x̄ = G(x), minimise over P = C∘H and the projection
    head R

        L = CE(P(x), y) + CE(P(x̄), y) + w · BT(R(A·H_T(x)), R(H(x̄)))

    that is PEER's Eq. (3) with T in the place of the task model. The student is deployed.

    What the paper leaves open is a field of `Settings`:

    - A, where the widths of T and P differ: a matrix that is fitted before the first epoch, with a
      linear head on top, to the classes of the clean source images, and then frozen; or trained
      with P and R. Where they are the same there is none.
    - `views="both_same"`: the sum over both views, each the same for teacher and student.
    - The teacher: without one, a frozen copy of P as the main phase starts. A copy that knows the
      source alone is a fair comparison; a network that was trained on other data is not.

    Args:
        model: The student P.
        augment: G, re-drawn by `start_epoch`.
        teacher: T; its classes may be others, since only H_T is used.
        clean: All clean training images: a `CleanImages` with labels fits A, and if a `Batch` gives
            its `index`, the teacher's features are looked up in a table that is computed once.
        cache: See `CachedFeatures`.

    Raises:
        ConfigError: If A is to be fitted and there are no clean images with labels.
    """

    fitted: Tensor

    divergence_hint = ", or the regularizer's weight (--teacher.w)"

    def __init__(
        self,
        model: Classifier,
        settings: Settings | None = None,
        *,
        augment: Augment | None = None,
        teacher: Classifier | None = None,
        clean: Clean | None = None,
        cache: bool | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.augment = augment or Policy()
        self.student = model
        self.teacher = (teacher or copy.deepcopy(model)).requires_grad_(False).eval()
        self.clean = as_clean(clean)
        self.projection = build_projection(self.settings, model.feature_dim)
        self.adapter = _adapter(self.settings, self.teacher.feature_dim, model.feature_dim)
        self.teacher_features = CachedFeatures(self.settings, self.teacher, self.clean, cache)
        self.register_buffer("fitted", torch.tensor(not self._is_fitted_first))
        if self._is_fitted_first and not (
            isinstance(self.clean, CleanImages) and self.clean.labels is not None
        ):
            raise ConfigError(
                f"The teacher has {self.teacher.feature_dim} features, the student "
                f"{model.feature_dim}, and there are no labelled images to fit an adapter.",
                hint="Pass clean=CleanImages(images, labels=labels), or use adapter='trained'.",
            )

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        """Build the method with the run's augmentation, its clean images, and the named teacher."""
        teacher = context.load_model(settings.model) if settings.model else None
        if teacher is not None and teacher.image_size not in (None, context.image_size):
            raise ConfigError(
                f"The teacher takes images of {teacher.image_size} x {teacher.image_size} pixels "
                f"only, and the student sees {context.image_size} x {context.image_size}.",
                hint=f"Use --transform.size {teacher.image_size}, or another teacher.",
            )
        return cls(
            model,
            settings,
            augment=context.augment,
            teacher=teacher,
            clean=context.clean,
            cache=context.passes * context.epochs > 1,  # else an image is seen once at most
        )

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Use the policy of period `epoch // k`; before the first epoch, fit A if there is one."""
        if not self.fitted:
            self._fit_adapter()
        self.teacher_features.refresh(version=0)
        return {"policy": self.augment.redraw(epoch // self.settings.k)}

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        """Augment several batches ahead of their steps."""
        return augment_ahead(batches, self.augment)

    def loss(self, batch: Batch) -> Loss:
        """Cross-entropy on both views and the weighted regularizer."""
        settings = self.settings
        out = forward_both(self.student, batch, self.augment, joint=settings.joint_views)
        if settings.regularizer == "none":
            return loss_terms(out.ce, out.ce_bar)
        regularizer = out.ce.new_zeros(())
        for h_t, h in self.teacher_features.pairs(batch, out):
            regularizer = regularizer + alignment_loss(
                settings,
                self.projection,
                self.adapter(h_t),
                h,
                target_learns=settings.head_grad_target,
            )
        return loss_terms(out.ce, out.ce_bar, regularizer, w=settings.w)

    @property
    def networks(self) -> dict[str, Classifier]:
        """The student."""
        return {"student": self.student}

    def train(self, mode: bool = True) -> "Teacher":
        """The teacher stays in eval mode: its features must not depend on the batch."""
        super().train(mode)
        self.teacher.eval()
        return self

    @property
    def _is_fitted_first(self) -> bool:
        needed = isinstance(self.adapter, nn.Linear) and self.settings.adapter == "fitted"
        return needed and self.settings.regularizer != "none"

    def _fit_adapter(self) -> None:
        """A <- argmin over A and C of CE(C·A·H_T(x), y) on the clean source images.

        C is thrown away. Nothing changes before the last pass is over, since it may be interrupted.

        Raises:
            NumericalError: If the fit diverges.
        """
        clean = self.clean
        assert isinstance(clean, CleanImages)  # noqa: S101  (the constructor ensures it)
        pairs = [(self.teacher_features(x), y) for x, y in clean.labelled()]
        features, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        classes = len(self.student.classes)
        adapter = copy.deepcopy(self.adapter).requires_grad_(True)
        fit = nn.Sequential(adapter, nn.Linear(self.student.feature_dim, classes)).to(features)
        optimizer = torch.optim.Adam(fit.parameters(), lr=self.settings.adapter_lr)
        with torch.enable_grad():
            for _ in iterate(range(self.settings.adapter_epochs), "fitting the adapter"):
                for rows in torch.randperm(len(labels)).to(labels.device).split(ADAPTER_BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(fit(features[rows]), labels[rows]).backward()
                    optimizer.step()
        if not all(parameter.isfinite().all() for parameter in adapter.parameters()):
            raise NumericalError(
                "The fit of the adapter between teacher and student diverged.",
                hint="Lower its learning rate (--teacher.adapter-lr).",
            )
        self.adapter.load_state_dict(adapter.state_dict())
        self.fitted.fill_(True)


def _adapter(settings: Settings, teacher_dim: int, student_dim: int) -> nn.Module:
    """A, or the identity where the widths are the same."""
    if teacher_dim == student_dim:
        return nn.Identity()
    adapter = nn.Linear(teacher_dim, student_dim, bias=False)
    return adapter.requires_grad_(settings.adapter == "trained")
