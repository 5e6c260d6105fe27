"""One optimizer step."""

import torch
from torch import Tensor

from peerdg.methods.base import Batch
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
) -> dict[str, Tensor]:
    """One optimizer step on a batch.

    Args:
        state: What is trained.
        batch: The images.
        rows: Which of the source they are.
        guard: Sees the loss and the gradients before they are used.
        seed: The run's seed.
        key: The position in the run; with the seed, all that is random derives from it.
        bf16: Compute the loss in bfloat16 where that is safe; weights and updates stay float32.

    Raises:
        NumericalError: If the loss or the gradient is not finite; the weights are untouched.
    """
    autocast = torch.autocast(batch.images.device.type, dtype=torch.bfloat16, enabled=bf16)
    with stage("loss"), seeded(seed, "dropout", *key), autocast:
        terms = state.method.loss(batch)
    with stage("backward"):
        terms["loss"].backward()
    terms = {name: value.detach() for name, value in terms.items()}
    with stage("finite check"):
        guard.inspect(rows, terms)
    with stage("optimizer"):
        state.optimizer.step()
        # Here rather than before `backward`, so that a forward pass finds this memory free.
        state.optimizer.zero_grad(set_to_none=True)
    return terms
