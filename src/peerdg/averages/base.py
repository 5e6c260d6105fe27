"""Define the interface of weight averages, and shared arithmetic."""

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
    """A frozen classifier that averages the weights of a network in training.

    All state is in parameters, buffers and extra state, so checkpoints include it. Until the first
    update, `model` is a copy of the initial network.
    """

    # Whether `model` changes within an epoch, so that its outputs cannot be cached.
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
        """Number of averaged networks, 0 before the first update."""

    @property
    def version(self) -> int:
        """A number that changes whenever `model` does. Override this if `count` does not do so."""
        return self.count

    def before_epoch(self, model: Classifier, epoch: int) -> None:
        """Called before each epoch, counted from 0, and again when a run resumes."""
        return

    def after_step(self, model: Classifier) -> None:
        """Update the average. Called after each optimizer step."""
        return

    def after_epoch(self, model: Classifier, epoch: int) -> dict[str, Any]:
        """Update the average and return values to log. Called after each epoch, counted from 0.

        A resumed run may call this a second time. The second call must not change anything.
        """
        return {}

    @property
    def deployed(self) -> Classifier:
        """The classifier to evaluate and deploy. Its batch statistics may differ from `model`'s."""
        return self.model

    @property
    def has_clean_statistics(self) -> bool:
        """Whether the batch statistics of `deployed` come from clean images."""
        return False

    def epochs_seen(self, epoch: int) -> int:
        """Return how many of `epoch` completed epochs the average covers."""
        return epoch

    def train(self, mode: bool = True) -> "Average":
        """Stay in eval mode, even when the parent module is set to train mode."""
        return super().train(False)


def frozen_copy(model: Classifier) -> Classifier:
    """Return a copy without gradients, in eval mode."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def floating(model: nn.Module) -> list[Tensor]:
    """Return parameters and floating-point buffers, that is, weights and batch statistics."""
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


@torch.no_grad()
def blend(average: nn.Module, model: nn.Module, weight: float) -> None:
    """Set average <- (1 - weight) · average + weight · model, and copy integer buffers.

    A weight of 1 / (n + 1) gives the running mean of n + 1 networks. A constant weight gives an
    exponential moving average.
    """
    ours, theirs = floating(average), floating(model)
    if weight == 1:
        torch._foreach_copy_(ours, theirs)  # exact, unlike a + 1 · (b - a)
    else:
        torch._foreach_lerp_(ours, theirs, weight)
    for buffer, other in zip(average.buffers(), model.buffers(), strict=True):
        if not buffer.is_floating_point():
            buffer.copy_(other)


def require_finite(model: nn.Module) -> None:
    """Raise if a network has non-finite values. A NaN would stay in the average forever."""
    name = non_finite({**dict(model.named_parameters()), **dict(model.named_buffers())})
    if name is not None:
        raise NumericalError(
            f"Cannot average the network: '{name}' is not finite.", hint="Lower the learning rate."
        )


def non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first floating-point tensor with a non-finite value."""
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    finite = torch.stack([torch.isfinite(tensor).all() for tensor in floating.values()])
    return None if finite.all() else list(floating)[finite.tolist().index(False)]
