"""Store the state of a training phase as tensors and JSON values, for an exact resume.

No generator state is needed, because all randomness derives from seed and position (`peerdg.rng`).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from peerdg.errors import DamagedError, DataError
from peerdg.methods.base import Method
from peerdg.methods.pool import PoolImages, TrainingPool
from peerdg.models.classifier import Classifier


@dataclass
class TrainState:
    """Position, weights and optimizer state of a training phase."""

    phase: str  # "pretrain" or "train"
    method: Method
    optimizers: dict[str, torch.optim.Optimizer]
    epoch: int = 0  # completed epochs of this phase
    step: int = 0  # completed steps of the current epoch
    sums: dict[str, Tensor] = field(default_factory=dict)  # sum of each loss term over these steps
    evaluated: bool = False  # whether the evaluation due after `epoch` epochs was recorded
    pool: TrainingPool | None = None  # training images, if the method may add some

    @cached_property
    def divided(self) -> frozenset[Tensor]:
        """Weights whose gradients are divided among processes, see `peerdg.distributed`."""
        networks = [part for part in self.method.modules() if isinstance(part, Classifier)]
        return frozenset(p for network in networks for p in network.encoder.parameters())

    @property
    def additions(self) -> tuple[PoolImages, ...]:
        """Images that the method added to the training pool, oldest first."""
        return () if self.pool is None else self.pool.additions

    def add_terms(self, terms: dict[str, Tensor]) -> None:
        """Add one step's loss terms to the sums, without waiting for the device."""
        for name, value in terms.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros((), dtype=torch.float64, device=value.device)
            self.sums[name] += value.detach()

    def take_means(self) -> dict[str, float]:
        """Return the mean of each loss term over the epoch's steps, and reset the sums."""
        means = {name: float(value) / self.step for name, value in self.sums.items()}
        self.sums = {}
        return means

    def start_next_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.epoch, self.step = self.epoch + 1, 0
        self.evaluated = False

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the state, keyed by `method.*`, `optimizer.*`, `sums.*`."""
        result = {f"method.{k}": v for k, v in self.method.state_dict().items()}
        for name, optimizer in self.optimizers.items():
            for index, slots in optimizer.state_dict()["state"].items():
                for slot, value in slots.items():
                    if isinstance(value, Tensor):
                        result[f"optimizer.{name}.{index}.{slot}"] = value
        result.update({f"sums.{k}": v for k, v in self.sums.items()})
        return result

    def metadata(self) -> dict[str, Any]:
        """Return the rest of the state as JSON values."""
        groups = {n: o.state_dict()["param_groups"] for n, o in self.optimizers.items()}
        return {
            "phase": self.phase,
            "epoch": self.epoch,
            "step": self.step,
            "evaluated": self.evaluated,
            "optimizers": groups,
            "pool": [addition.digest for addition in self.additions],
            "terms": list(self.sums),  # stores the order, because safetensors sorts by name
        }

    def restore(
        self,
        tensors: dict[str, Tensor],
        metadata: dict[str, Any],
        additions: tuple[PoolImages, ...] = (),
    ) -> None:
        """Restore the state from `tensors` and `metadata`, and the images added to the pool."""
        parts = _split(tensors)
        try:
            self.method.load_state_dict(parts["method"])
            states = _split(parts.get("optimizer", {}))
            for name, optimizer in self.optimizers.items():
                _restore_optimizer(optimizer, states.get(name, {}))
            self.sums = {name: parts["sums"][name].reshape(()) for name in metadata["terms"]}
            if self.pool is not None:
                self.pool.replace(additions)
        except (KeyError, RuntimeError, ValueError, IndexError, DataError) as error:
            raise DamagedError(
                f"The checkpoint does not fit this run: {error}",
                hint="It may come from another version of peerdg. Start the run again.",
            ) from error
        self.epoch, self.step = metadata["epoch"], metadata["step"]
        self.evaluated = metadata["evaluated"]


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, _, slot = name.partition(".")
        state.setdefault(int(index), {})[slot] = value
    # Options come from the run's config, and the learning rate is set in each epoch. The stored
    # parameter groups are only informational.
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # Fused optimizers pair a weight with its momentum by memory position, ignoring strides. Files
    # are not channels-last, so copy the state into the memory layout of its weight.
    for weight, slots in optimizer.state.items():
        for slot, value in slots.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                slots[slot] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def _split(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Nest by prefix, e.g. {"method.a": t} -> {"method": {"a": t}}."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value
    return parts
