"""T+RA of the PEER paper: a student guided by a frozen teacher in the place of the task model."""

import copy
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.augment.policy import Policy
from peerdg.augment.protocol import Augment
from peerdg.errors import ConfigError, NumericalError
from peerdg.methods.alignment import (
    alignment_to_frozen,
    build_projection,
    frozen_features,
    loss_terms,
)
from peerdg.methods.base import Batch, Method, RunContext, Terms
from peerdg.methods.clean import Clean, CleanImages, as_clean
from peerdg.methods.features import FeatureTable
from peerdg.methods.settings.teacher import Settings
from peerdg.methods.views import augment_ahead, forward_both
from peerdg.models.classifier import Classifier

ADAPTER_BATCH = 128  # images in a step of the adapter's fit


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
        settings: Every switch of the method.
        augment: G, re-drawn by `start_epoch`.
        teacher: T; its classes may be others, since only H_T is used.
        clean: All clean training images: a `CleanImages` with labels fits A, and if a `Batch` gives
            its `index`, the teacher's features are looked up in a table that is computed once.

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
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.augment = augment or Policy()
        self.student = model
        self.teacher = (teacher or copy.deepcopy(model)).requires_grad_(False).eval()
        self.clean = as_clean(clean)
        self.projection = build_projection(self.settings, model.feature_dim)
        self.adapter = _adapter(self.settings, self.teacher.feature_dim, model.feature_dim)
        self.register_buffer("fitted", torch.tensor(not self._is_fitted_first))
        if self._is_fitted_first and not (
            isinstance(self.clean, CleanImages) and self.clean.labels is not None
        ):
            raise ConfigError(
                f"The teacher has {self.teacher.feature_dim} features, the student "
                f"{model.feature_dim}, and there are no labelled images to fit an adapter.",
                hint="Pass clean=CleanImages(images, labels=labels), or use adapter='trained'.",
            )
        self.table = FeatureTable()
        self.register_load_state_dict_post_hook(Teacher._forget_features)  # type: ignore[no-untyped-call]

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
        if context.passes * context.epochs <= 1:  # seen at most once: a table saves nothing
            settings = replace(settings, cache_features=False)
        method = cls(model, settings, augment=context.augment, teacher=teacher, clean=context.clean)
        method.table.is_used = context.passes > 0  # batches know their rows where views repeat
        return method

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Use the policy of period `epoch // k`; before the first epoch, fit A if there is one."""
        if not self.fitted:
            self._fit_adapter()
        wanted = self.settings.cache_features and self.settings.views != "aug_clean"
        if wanted and self.settings.regularizer != "none" and isinstance(self.clean, CleanImages):
            self.table.refresh(0, self.clean, self._teacher_features)
        return {"policy": self.augment.redraw(epoch // self.settings.k)}

    def prepare(self, batches: list[Batch]) -> list[Batch]:
        """Augment several batches ahead of their steps."""
        return augment_ahead(batches, self.augment)

    def loss(self, batch: Batch) -> Terms:
        """Cross-entropy on both views and the weighted regularizer."""
        joint = self.settings.joint_views
        x_bar, h, h_bar, ce, ce_bar = forward_both(self.student, batch, self.augment, joint=joint)
        if self.settings.regularizer == "none":
            return loss_terms(ce, ce_bar)
        regularizer = alignment_to_frozen(
            self.settings,
            self.projection,
            h,
            h_bar,
            clean=lambda: self.adapter(self._clean_features(batch)),
            augmented=lambda: self.adapter(self._teacher_features(x_bar)),
        )
        return loss_terms(ce, ce_bar, regularizer, w=self.settings.w)

    @property
    def networks(self) -> dict[str, Classifier]:
        """The student."""
        return {"student": self.student}

    def train(self, mode: bool = True) -> "Teacher":
        """The teacher stays in eval mode: its features must not depend on the batch."""
        super().train(mode)
        self.teacher.eval()
        return self

    def _clean_features(self, batch: Batch) -> Tensor:
        """H_T(x), looked up if it is known."""
        known = self.table.lookup(batch.index)
        return self._teacher_features(batch.images) if known is None else known

    def _teacher_features(self, images: Tensor) -> Tensor:
        return frozen_features(self.teacher, images)

    def _forget_features(self, _: Any) -> None:
        self.table.forget()  # the loaded teacher has other features

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
        pairs = [(self._teacher_features(x), y) for x, y in clean.labelled()]
        features, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        classes = len(self.student.classes)
        adapter = copy.deepcopy(self.adapter).requires_grad_(True)
        fit = nn.Sequential(adapter, nn.Linear(self.student.feature_dim, classes)).to(features)
        optimizer = torch.optim.Adam(fit.parameters(), lr=self.settings.adapter_lr)
        with torch.enable_grad():
            for _ in clean.work.chunks(range(self.settings.adapter_epochs), "fitting the adapter"):
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
