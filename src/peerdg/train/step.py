"""One step of training: a method learns from a batch, through updates that are checked."""

import torch
from torch import Tensor

from peerdg.methods.base import Batch, Terms
from peerdg.rng import seeded
from peerdg.stages import stage
from peerdg.train.guard import Guard
from peerdg.train.state import TrainState


def train_step(
    state: TrainState,
    batch: Batch,
    rows: Tensor,
    *,
    guard: Guard,
    seed: int,
    key: tuple[str | int, ...],
    bf16: bool = False,
) -> Terms:
    """Let the method learn from a batch.

    Args:
        state: What is trained.
        batch: The images.
        rows: Which of the source they are.
        guard: Sees each loss and its gradients before they are used.
        seed: The run's seed.
        key: The position in the run; with the seed, all that is random derives from it.
        bf16: Compute the loss in bfloat16 where that is safe; weights and updates stay float32.

    Raises:
        NumericalError: If a loss or a gradient is not finite; the weights are untouched by it.
    """
    device = batch.images.device.type
    updater = GuardedStep(state, guard, rows, device)
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=bf16)
    with stage("loss"), seeded(seed, "dropout", *key), autocast:
        return state.method.step(batch, updater)


class GuardedStep:
    """The `OptimizerStep` that a method receives: backward, finite check, optimizer step.

    Args:
        state: Its optimizers.
        guard: Refuses what is not finite.
        rows: The images of the step, for the record of a failure.
        device: Type of the device, for autocast.
    """

    def __init__(self, state: TrainState, guard: Guard, rows: Tensor, device: str) -> None:
        self.state = state
        self.guard = guard
        self.rows = rows
        self.device = device

    def __call__(self, name: str, loss: Tensor, terms: Terms | None = None) -> None:
        """Minimise `loss` by one step of the optimizer `name`."""
        optimizer = self.state.optimizers[name]
        with torch.autocast(self.device, enabled=False):
            with stage("backward"):
                self._backward(optimizer, loss)
            terms = {"loss": loss, **(terms or {})}
            terms = {name: value.detach() for name, value in terms.items()}
            with stage("finite check"):
                self.guard.inspect(optimizer, self.rows, terms)
            with stage("optimizer"):
                optimizer.step()
                # Here rather than before `backward`, so that a forward pass finds this memory free.
                optimizer.zero_grad(set_to_none=True)
        # A further update of this step must not see bfloat16 copies of the old weights.
        torch.clear_autocast_cache()

    def _backward(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        if len(self.state.optimizers) == 1:
            loss.backward()
        else:  # gradients of what another optimizer trains would wait in its next update
            loss.backward(inputs=[p for g in optimizer.param_groups for p in g["params"]])
