"""One optimizer step, and the refusal to take one that would spoil the weights."""

import torch
from torch import Tensor

from peerdg.data.domain import Domain
from peerdg.errors import NumericalError
from peerdg.methods.base import Batch
from peerdg.rng import seed_for, seeded
from peerdg.train.state import TrainState


def train_step(
    state: TrainState, source: Domain, rows: Tensor, *, seed: int, key: tuple[str | int, ...]
) -> dict[str, Tensor]:
    """One optimizer step on the images at `rows`.

    Raises:
        NumericalError: If the loss or the gradient is not finite; the weights are untouched.
    """
    batch = Batch(
        images=source.images[rows],
        labels=source.labels[rows],
        index=rows,
        seed=seed_for(seed, "augment", *key),
    )
    with seeded(seed, "dropout", *key):
        terms = state.method.loss(batch)
    state.optimizer.zero_grad(set_to_none=True)
    terms["loss"].backward()
    terms = {name: value.detach() for name, value in terms.items()}
    gradients = [p.grad for p in state.method.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if not torch.isfinite(terms["loss"] + norm):
        raise _not_finite(state, rows, terms, norm)
    state.optimizer.step()
    return terms


def refuse_bad_weights(state: TrainState) -> None:
    """Check the weights themselves: a step can overflow, and after the last one no loss would tell.

    Raises:
        NumericalError: If a weight is not finite.
    """
    weights = {k: v for k, v in state.method.state_dict().items() if v.is_floating_point()}
    finite = torch.stack([torch.isfinite(value).all() for value in weights.values()])
    if finite.all():
        return
    name = list(weights)[finite.tolist().index(False)]
    raise NumericalError(
        f"The weight '{name}' is not finite after {state.phase} epoch {state.epoch + 1}.",
        hint=f"Lower the learning rate (--{state.phase}.lr).",
        details=_position(state),
    )


def _not_finite(
    state: TrainState, rows: Tensor, terms: dict[str, Tensor], norm: Tensor
) -> NumericalError:
    what = "loss" if not torch.isfinite(terms["loss"]) else "gradient"
    weight = ", or the regulariser's weight (--peer.w)" if "regulariser" in terms else ""
    when = f"{state.phase} epoch {state.epoch + 1}, step {state.step + 1}"
    return NumericalError(
        f"The {what} is not finite in {when}.",
        hint=f"Lower the learning rate (--{state.phase}.lr){weight}.",
        details={
            **_position(state),
            "rows": rows.tolist(),
            # As text: JSON has no NaN.
            "terms": {name: str(float(value)) for name, value in terms.items()},
            "gradient_norm": str(float(norm)),
        },
    )


def _position(state: TrainState) -> dict[str, object]:
    """Where it happened, and at which rate."""
    rate = state.optimizer.param_groups[0]["lr"]
    return {"phase": state.phase, "epoch": state.epoch, "step": state.step, "lr": rate}
