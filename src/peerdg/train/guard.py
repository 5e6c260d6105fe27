"""Reject non-finite updates without synchronising the device."""

from typing import NamedTuple

import torch
from torch import Tensor

from peerdg.errors import NumericalError
from peerdg.train.state import TrainState

EVERY = 50  # steps between two checks on a device that runs asynchronously


class _Seen(NamedTuple):
    step: int
    rows: Tensor
    terms: dict[str, Tensor]
    probe: Tensor  # of the gradient, see `Guard._probe`


class Guard:
    """Refuses every update from the first non-finite loss or gradient on.

    On a CPU each step is checked before its update. Elsewhere reading a value would synchronise the
    device, which therefore refuses by itself: fused optimizers skip their update while `found_inf`
    is 1, and once set it stays. The values are read every `EVERY` steps, before every checkpoint
    and at the end of the epoch; the weights are then still those before the first bad step.

    Args:
        state: The state of the phase.
        every: Steps between two checks.
    """

    def __init__(self, state: TrainState, *, every: int | None = None) -> None:
        self.state = state
        device = next(state.method.parameters()).device
        self.every = every or (1 if device.type == "cpu" else EVERY)
        self._bad = torch.zeros((), device=device)
        self._seen: list[_Seen] = []

    def inspect(
        self, optimizer: torch.optim.Optimizer, rows: Tensor, terms: dict[str, Tensor]
    ) -> None:
        """Check a loss and the gradients of the parameters of `optimizer`, before its update.

        Raises:
            NumericalError: If this update or one since the last check was not finite.
        """
        probe = self._probe(_gradients(optimizer))
        self._bad = torch.maximum(self._bad, (~_finite(terms, probe)).float())
        self._seen.append(_Seen(self.state.step, rows, terms, probe))
        if self.every > 1:
            optimizer.found_inf = self._bad  # type: ignore[attr-defined]
        if len(self._seen) >= self.every:
            self.check()

    def check(self) -> None:
        """Synchronise the device and check that all steps so far were finite.

        Raises:
            NumericalError: If not; it describes the first non-finite step.
        """
        seen, self._seen = self._seen, []
        if self._bad:
            raise self._error(next(s for s in seen if not _finite(s.terms, s.probe)))

    def check_weights(self) -> None:
        """Check the weights too: the last step can overflow, and no later loss would reveal it.

        Raises:
            NumericalError: If a step so far or a weight is not finite.
        """
        self.check()
        state = self.state
        weights = {
            name: value
            for name, value in state.method.state_dict().items()
            # Extra state is no weight, and need not be on the device.
            if value.is_floating_point() and not name.endswith("_extra_state")
        }
        finite = torch.stack([torch.isfinite(value).all() for value in weights.values()])
        if finite.all():
            return
        name = list(weights)[finite.tolist().index(False)]
        raise NumericalError(
            f"The weight '{name}' is not finite after {state.phase} epoch {state.epoch + 1}.",
            hint=f"Lower the learning rate (--{state.phase}.lr).",
            details=self._position(state.step),
        )

    def _probe(self, gradients: list[Tensor]) -> Tensor:
        """Reduce the gradients to one value that is finite only if they are.

        That is their norm, or their sum if every step is checked: a GPU has one kernel for the norm
        of all weights, and a CPU needs a third of the time for the sum.
        """
        if self.every > 1:
            return torch.nn.utils.get_total_norm(gradients)
        return torch.stack([gradient.sum() for gradient in gradients]).sum()

    def _error(self, seen: _Seen) -> NumericalError:
        phase = self.state.phase
        norm = seen.probe
        if self.every == 1:  # the gradients are still there
            optimizers = self.state.optimizers.values()
            norm = torch.nn.utils.get_total_norm([g for o in optimizers for g in _gradients(o)])
        what = "loss" if not torch.isfinite(seen.terms["loss"]) else "gradient"
        when = f"{phase} epoch {self.state.epoch + 1}, step {seen.step + 1}"
        return NumericalError(
            f"The {what} is not finite in {when}.",
            hint=f"Lower the learning rate (--{phase}.lr){self.state.method.divergence_hint}.",
            details={
                **self._position(seen.step),
                "rows": seen.rows.tolist(),
                # As text: JSON has no NaN.
                "terms": {name: str(float(value)) for name, value in seen.terms.items()},
                "gradient_norm": str(float(norm)),
            },
        )

    def _position(self, step: int) -> dict[str, object]:
        """Where it happened, and at which learning rate."""
        lr = next(iter(self.state.optimizers.values())).param_groups[0]["lr"]
        return {"phase": self.state.phase, "epoch": self.state.epoch, "step": step, "lr": lr}


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad for p in parameters if p.grad is not None]


def _finite(terms: dict[str, Tensor], probe: Tensor) -> Tensor:
    return torch.isfinite(terms["loss"] + probe)
