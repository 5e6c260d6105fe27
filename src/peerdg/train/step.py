"""Run one training step: forward, backward, finite check and update."""

from typing import NamedTuple

import torch
from torch import Tensor

from peerdg.averages.base import non_finite
from peerdg.distributed import share_gradients
from peerdg.errors import NumericalError
from peerdg.methods.base import Batch, Terms
from peerdg.rng import seeded
from peerdg.stages import stage
from peerdg.train.state import TrainState

CHECK_INTERVAL = 50  # steps between two checks on an asynchronous device


class _StepRecord(NamedTuple):
    step: int
    rows: Tensor
    terms: dict[str, Tensor]
    probe: Tensor  # summary of the gradients, see `Guard._probe`


class Guard:
    """Reject all updates from the first non-finite loss or gradient on.

    On a CPU each step is checked before its update. On other devices reading a value would
    synchronize. There, fused optimizers skip updates while `found_inf` is 1, which is never reset.
    The values are read every `CHECK_INTERVAL` steps, before every checkpoint and at the end of the
    epoch. The weights then still have their values from before the first bad step.

    Args:
        state: State of the phase.
        every: Steps between two checks. Defaults to 1 on a CPU, else to `CHECK_INTERVAL`.
    """

    def __init__(self, state: TrainState, *, every: int | None = None) -> None:
        self.state = state
        device = next(state.method.parameters()).device
        self.every = every or (1 if device.type == "cpu" else CHECK_INTERVAL)
        self._bad = torch.zeros((), device=device)
        self._unchecked: list[_StepRecord] = []

    def inspect(
        self, optimizer: torch.optim.Optimizer, rows: Tensor, terms: dict[str, Tensor]
    ) -> None:
        """Check a loss and the gradients of the optimizer's parameters before the update.

        Raises:
            NumericalError: If this update or one since the last check was not finite.
        """
        probe = self._probe(_gradients(optimizer))
        self._bad = torch.maximum(self._bad, (~_finite(terms, probe)).float())
        self._unchecked.append(_StepRecord(self.state.step, rows, terms, probe))
        if self.every > 1:
            optimizer.found_inf = self._bad  # type: ignore[attr-defined]
        if len(self._unchecked) >= self.every:
            self.check()

    def check(self) -> None:
        """Synchronize the device and check that all steps so far were finite."""
        records, self._unchecked = self._unchecked, []
        if self._bad:
            raise self._error(next(r for r in records if not _finite(r.terms, r.probe)))

    def check_weights(self) -> None:
        """Check the weights after the last step, because no later loss depends on them."""
        self.check()
        state = self.state
        # Skip extra state, which is not a weight and may be on another device.
        values = state.method.state_dict().items()
        name = non_finite({k: v for k, v in values if not k.endswith("_extra_state")})
        if name is not None:
            raise NumericalError(
                f"The weight '{name}' is not finite after {state.phase} epoch {state.epoch + 1}.",
                hint=f"Lower the learning rate (--{state.phase}.lr).",
                details=self._position(state.step),
            )

    def _probe(self, gradients: list[Tensor]) -> Tensor:
        """Reduce the gradients to one value that is finite only if they are.

        If every step is checked, this is the sum, which takes a third of the time on a CPU.
        Otherwise, it is the norm, for which a GPU has a single kernel.
        """
        if self.every > 1:
            return torch.nn.utils.get_total_norm(gradients)
        return torch.stack([gradient.sum() for gradient in gradients]).sum()

    def _error(self, record: _StepRecord) -> NumericalError:
        phase = self.state.phase
        norm = record.probe
        if self.every == 1:  # the gradients still exist
            optimizers = self.state.optimizers.values()
            norm = torch.nn.utils.get_total_norm([g for o in optimizers for g in _gradients(o)])
        what = "loss" if not torch.isfinite(record.terms["loss"]) else "gradient"
        when = f"{phase} epoch {self.state.epoch + 1}, step {record.step + 1}"
        return NumericalError(
            f"The {what} is not finite in {when}.",
            hint=f"Lower the learning rate (--{phase}.lr){self.state.method.divergence_hint}.",
            details={
                **self._position(record.step),
                "rows": record.rows.tolist(),
                # Strings, because JSON has no NaN.
                "terms": {name: str(float(value)) for name, value in record.terms.items()},
                "gradient_norm": str(float(norm)),
            },
        )

    def _position(self, step: int) -> dict[str, object]:
        lr = next(iter(self.state.optimizers.values())).param_groups[0]["lr"]
        return {"phase": self.state.phase, "epoch": self.state.epoch, "step": step, "lr": lr}


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
    """Train the method on a batch and return its loss terms.

    Args:
        state: Method and optimizers.
        batch: Images and labels.
        rows: Rows of the images in the source, for error details.
        guard: Checks for non-finite losses and gradients.
        seed: Run seed.
        key: Position in the run. All randomness derives from seed and key.
        bf16: Whether to compute the loss in bfloat16 where safe. Weights and updates stay float32.
    """
    device = batch.images.device.type

    def update(name: str, loss: Tensor, terms: Terms | None = None) -> None:
        """Implement `OptimizerStep`: backward pass, finite check and optimizer step."""
        optimizer = state.optimizers[name]
        with torch.autocast(device, enabled=False):
            with stage("backward"):
                if len(state.optimizers) == 1:
                    loss.backward()
                else:  # Do not accumulate gradients for the other optimizers.
                    loss.backward(inputs=_parameters(optimizer))
            with stage("exchange"):
                share_gradients(_parameters(optimizer), state.divided)
            terms = {"loss": loss, **(terms or {})}
            with stage("finite check"):
                guard.inspect(optimizer, rows, {n: value.detach() for n, value in terms.items()})
            with stage("optimizer"):
                optimizer.step()
                # Here and not before `backward`, to free this memory for the next forward pass.
                optimizer.zero_grad(set_to_none=True)
        # Another update in this step must not use bfloat16 copies of the old weights.
        torch.clear_autocast_cache()

    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=bf16)
    with stage("loss"), seeded(seed, "dropout", *key), autocast:
        terms = state.method.step(batch, update)
    return {name: value.detach() for name, value in terms.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p.grad for p in _parameters(optimizer) if p.grad is not None]


def _finite(terms: dict[str, Tensor], probe: Tensor) -> Tensor:
    return torch.isfinite(terms["loss"] + probe)
