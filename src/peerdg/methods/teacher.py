"""T+RA from the PEER paper: a student guided by a frozen teacher instead of the task model."""

import copy
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.augment.protocol import Augment
from peerdg.errors import ConfigError, NumericalError
from peerdg.long_work import iterate
from peerdg.methods.alignment import (
    CachedFeatures,
    FrozenGuideSettings,
    RegularizerScale,
    alignment_loss,
    build_projection,
    probe_batch,
)
from peerdg.methods.base import Batch, Loss, RunContext
from peerdg.methods.clean import Clean, CleanImages, as_clean
from peerdg.methods.views import AugmentedMethod, forward_both
from peerdg.models.classifier import Classifier
from peerdg.options import option

ADAPTER_BATCH = 128  # batch size for fitting the adapter


@dataclass(frozen=True, kw_only=True)
class Settings(FrozenGuideSettings):
    """Train a student on augmented images, guided by a frozen teacher (T+RA)."""

    model: str | None = option(
        None,
        "teacher: run or model folder, or a network with published weights, e.g. regnet_y_16gf "
        "(default: copy of the pre-trained network)",
        names_model=True,
    )
    adapter: Literal["fitted", "trained"] = option(
        "fitted",
        "linear map from the teacher's to the student's feature width, if they differ: fitted to "
        "the source's classes and frozen, or trained with the student",
    )
    adapter_epochs: int = option(20, "epochs for fitting the adapter", at_least=1)
    adapter_lr: float = option(1e-3, "learning rate for fitting the adapter", above=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapter == "trained" and not self.head_grad_target:
            raise ConfigError(
                "teacher.adapter 'trained' gets no gradient if teacher.head_grad_target is false.",
                hint="Leave out one of them.",
            )

    @property
    def is_oracle(self) -> bool:
        return self.model is not None


class Teacher(AugmentedMethod):
    """Train a student P on augmented images, guided by a frozen teacher T.

    This is the comparison in Table 5 of Cho, Hwang and Lee, "PEER pressure", CVPR 2025,
    https://arxiv.org/abs/2505.12745. With x̄ = G(x), minimize over P = C∘H and the projection
    head R

        L = CE(P(x), y) + CE(P(x̄), y) + w · BT(R(A·H_T(x)), R(H(x̄)))

    which is PEER's Eq. (3) with T instead of the task model. The student is deployed.

    `Settings` has an option for each detail that the paper leaves open:

    - `adapter`: a matrix A, used if T and P have different widths. By default, A and a linear head
      on top are fitted to the classes of the clean source images before the first epoch, and then
      A is frozen. Otherwise it is trained with P and R.
    - `views="both_same"`: sum over both views, with the same view for teacher and student.
    - `model`: the teacher, by default a frozen copy of P at the start of the main phase. Such a
      copy makes a fair comparison. A network trained on other data does not.

    Args:
        model: Student P.
        augment: Augmentation G.
        teacher: Teacher T. It may have different classes, because only H_T is used.
        clean: All clean training images. `CleanImages` with labels are needed to fit A. The
            teacher's features are cached for batches with an `index`.
        cache: See `CachedFeatures`.
        probe: See `RegularizerScale`.
    """

    settings: Settings
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
        probe: Batch | None = None,
    ) -> None:
        super().__init__(settings=settings or Settings(), augment=augment)
        self.student = model
        self.teacher = (teacher or copy.deepcopy(model)).requires_grad_(False).eval()
        self.clean = as_clean(clean)
        self.projection = build_projection(self.settings, model.feature_dim)
        self.scale = RegularizerScale(self.settings, model.feature_dim, probe)
        widths = self.teacher.feature_dim, model.feature_dim
        self.adapter: nn.Module = nn.Identity()  # A
        if widths[0] != widths[1]:
            self.adapter = nn.Linear(*widths, bias=False)
            self.adapter.requires_grad_(self.settings.adapter == "trained")
        self.teacher_features = CachedFeatures(self.settings, self.teacher, self.clean, cache)
        must_fit = widths[0] != widths[1] and self.settings.adapter == "fitted"
        must_fit = must_fit and self.settings.regularizer != "none"
        self.register_buffer("fitted", torch.tensor(not must_fit))
        if must_fit and getattr(self.clean, "labels", None) is None:
            raise ConfigError(
                f"Fitting an adapter from the teacher's {widths[0]} to the student's {widths[1]} "
                "features needs labeled images.",
                hint="Pass clean=CleanImages(images, labels=labels), or use adapter='trained'.",
            )

    @classmethod
    def build(cls, model: Classifier, settings: Settings, context: RunContext) -> Self:
        teacher = context.load_model(settings.model) if settings.model else None
        if teacher is not None and teacher.image_size not in (None, context.image_size):
            raise ConfigError(
                f"The teacher accepts only images of {teacher.image_size} pixels.",
                hint=f"Use --transform.size {teacher.image_size}, or another teacher.",
            )
        return cls(
            model,
            settings,
            augment=context.augment,
            teacher=teacher,
            clean=context.clean,
            cache=context.passes * context.epochs > 1,  # otherwise no feature is used twice
            probe=probe_batch(settings, context),
        )

    def start_epoch(self, epoch: int) -> dict[str, Any]:
        """Fit A before the first epoch, if necessary."""
        if not self.fitted:
            self._fit_adapter()
        self.teacher_features.refresh(version=0)
        return super().start_epoch(epoch) | self.scale.measure(self, epoch)

    def loss(self, batch: Batch) -> Loss:
        settings = self.settings
        out = forward_both(self.student, batch, self.augment, joint=settings.joint_views)
        if settings.regularizer == "none":
            return out.loss()
        regularizer = out.ce.new_zeros(())
        for h_t, h in self.teacher_features.pairs(batch, out):
            regularizer = regularizer + alignment_loss(
                settings, self.projection, self.adapter(h_t), h
            )
        return out.loss(regularizer, settings.w * self.scale(regularizer))

    @property
    def networks(self) -> dict[str, Classifier]:
        return {"student": self.student}

    def train(self, mode: bool = True) -> Self:
        """Keep the teacher in eval mode: its features must not depend on the batch."""
        super().train(mode)
        self.teacher.eval()
        return self

    def _fit_adapter(self) -> None:
        """Fit A and a linear head C with CE(C·A·H_T(x), y) on clean source images. Discard C.

        The fit may be interrupted, so its result is stored only after the last epoch.
        """
        clean = self.clean
        assert isinstance(clean, CleanImages)  # noqa: S101  (the constructor ensures it)
        pairs = [(self.teacher_features(x), y) for x, y in clean.labeled()]
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
                "Fitting the adapter between teacher and student diverged.",
                hint="Lower its learning rate (--teacher.adapter-lr).",
            )
        self.adapter.load_state_dict(adapter.state_dict())
        self.fitted.fill_(True)
