"""The interface of weight averages, and the arithmetic they share."""

import abc
import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from peerdg.errors import NumericalError
from peerdg.models.classifier import Classifier

ValidationLoss = Callable[[Classifier], float]


class Average(nn.Module, abc.ABC):
    """A frozen classifier that follows a trained one.

    All state is in parameters, buffers and extra state, so that a checkpoint holds it. `model` is a
    copy of the initial network until the first update.
    """

    # Whether `model` changes within an epoch, so that nothing computed by it can be kept.
    updates_every_step: ClassVar[bool] = False
    # Whether `before_epoch` must be called before each epoch.
    needs_epoch_start = False

    @property
    @abc.abstractmethod
    def model(self) -> Classifier:
        """The averaged classifier."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """The number of networks in the average; 0 while it is the initial network."""

    @property
    def version(self) -> int:
        """Changes whenever `model` does; to be defined where `count` does not."""
        return self.count

    def before_epoch(self, model: Classifier, epoch: int) -> None:
        """Hook called before epoch `epoch`, counted from 0; called again if a run is resumed."""
        return

    def after_step(self, model: Classifier) -> None:
        """Follow one optimizer step."""
        return

    def after_epoch(self, model: Classifier, epoch: int) -> dict[str, Any]:
        """Follow the end of epoch `epoch`, counted from 0; return what to record."""
        return {}

    @property
    def deployed(self) -> Classifier:
        """The classifier to evaluate and deploy: `model`, but perhaps for its batch statistics."""
        return self.model

    @property
    def has_clean_statistics(self) -> bool:
        """Whether the batch statistics of `deployed` are those of the clean images."""
        return False

    def epochs_seen(self, epoch: int) -> int:
        """How many epochs the average has learnt from, when `epoch` epochs are complete."""
        return epoch

    def train(self, mode: bool = True) -> "Average":
        """Stay in eval mode, even when the parent module is set to train mode."""
        return super().train(False)


def frozen_copy(model: Classifier) -> Classifier:
    """A copy without gradients, in eval mode."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def floating(model: nn.Module) -> list[Tensor]:
    """Parameters and floating-point buffers, that is weights and batch statistics."""
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


@torch.no_grad()
def blend(average: nn.Module, model: nn.Module, weight: float) -> None:
    """Average <- (1 - weight) · average + weight · model; integer buffers become the model's.

    With weight 1 / (n + 1) this is the running mean of n + 1 networks, with a constant weight an
    exponential moving average.
    """
    ours, theirs = floating(average), floating(model)
    if weight == 1:
        torch._foreach_copy_(ours, theirs)  # exact, where a + 1 · (b - a) is not
    else:
        torch._foreach_lerp_(ours, theirs, weight)
    for own, other in zip(average.buffers(), model.buffers(), strict=True):
        if not own.is_floating_point():
            own.copy_(other)


def require_finite(model: nn.Module) -> None:
    """Refuse to average a network that is not finite: one NaN would never leave the mean."""
    name = non_finite({**dict(model.named_parameters()), **dict(model.named_buffers())})
    if name is not None:
        raise NumericalError(
            f"'{name}' of a network to be averaged is not finite.", hint="Lower the learning rate."
        )


def non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name the first floating-point tensor with a value that is not finite."""
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    finite = torch.stack([torch.isfinite(tensor).all() for tensor in floating.values()])
    return None if finite.all() else list(floating)[finite.tolist().index(False)]
