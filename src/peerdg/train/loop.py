"""The training loop, all of it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peerdg.data.domain import Domain
from peerdg.errors import ConfigError, NumericalError, Stopped
from peerdg.methods.base import Batch, Method
from peerdg.models.classifier import Classifier
from peerdg.rng import generator_for, seed_for, seeded
from peerdg.train.keeper import Keeper
from peerdg.train.optim import learning_rate, make_optimizer, set_learning_rate
from peerdg.train.progress import Progress
from peerdg.train.settings import PhaseSettings
from peerdg.train.signals import StopRequest
from peerdg.train.state import TrainState

Evaluate = Callable[[Mapping[str, Classifier]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Phase:
    """Pre-training or main training.

    Args:
        name: `"pretrain"` or `"train"`; its random streams carry it.
        settings: Schedule and optimizer.
        evaluate_every: Epochs between evaluations; None for a phase that is not evaluated.
    """

    name: str
    settings: PhaseSettings
    evaluate_every: int | None


def run_phase(
    phase: Phase,
    method: Method,
    source: Domain,
    *,
    seed: int,
    evaluate: Evaluate,
    keeper: Keeper,
    progress: Progress,
    stop: StopRequest,
) -> None:
    """Train `method` through one phase, from wherever `keeper` says it was.

    Args:
        phase: What to run.
        method: What to train, on its device.
        source: Training images, on the same device.
        seed: The run's seed; every draw derives from it and the position.
        evaluate: Judges the observed models; its records are kept as they are.
        keeper: Saves and restores states, writes records.
        progress: Is told what happens.
        stop: Becomes true when a signal asks to stop.

    Raises:
        Stopped: After saving, if asked to stop.
        NumericalError: Before anything not finite reaches a weight.
    """
    settings = phase.settings
    steps = steps_per_epoch(settings, len(source))
    state = TrainState(phase.name, method, make_optimizer(method, settings))
    keeper.restore(state)
    progress.start_phase(phase.name, epochs=settings.epochs, steps=steps, done=state.epoch)
    if phase.evaluate_every and state.epoch == 0 and state.step == 0:
        keeper.record_evaluation(state, evaluate(method.observed), progress)
    while state.epoch < settings.epochs:
        method.train()
        started = method.start_epoch(state.epoch)
        rate = learning_rate(settings, state.epoch)
        set_learning_rate(state.optimizer, rate)
        order = epoch_order(settings, len(source), seed, phase.name, state.epoch)
        clock = time.perf_counter()
        while state.step < steps:
            rows = order[state.step].to(source.labels.device)
            key = (phase.name, state.epoch, state.step)
            terms = train_step(state, source, rows, seed=seed, key=key)
            state.add_terms(terms)
            state.step += 1
            progress.step(state.epoch, state.step, images=len(rows), terms=terms)
            if state.step < steps:  # a finished epoch is concluded before it is saved
                keeper.save_if_due(state)
                _stop_if_asked(stop, keeper, state)
        _refuse_bad_weights(state)
        ended = method.end_epoch(state.epoch)
        if ended.pop("reset_optimizer", False):
            state.optimizer.state.clear()
        keeper.record_epoch(state, {"lr": rate, **started, **ended}, time.perf_counter() - clock)
        state.epoch, state.step = state.epoch + 1, 0
        if is_due(phase, state.epoch):
            keeper.record_evaluation(state, evaluate(method.observed), progress)
        keeper.save_if_due(state, last=state.epoch == settings.epochs)
        _stop_if_asked(stop, keeper, state)
    progress.end_phase()


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


def steps_per_epoch(settings: PhaseSettings, images: int) -> int:
    """Full batches in one pass (the incomplete last one is dropped), or what the settings say.

    Raises:
        ConfigError: If there is not one full batch.
    """
    if images < settings.batch_size:
        raise ConfigError(
            f"The source has {images} training images, fewer than one batch of "
            f"{settings.batch_size}.",
            hint="Lower --train.batch-size and --pretrain.batch-size, or add images.",
        )
    return settings.steps_per_epoch or images // settings.batch_size


def epoch_order(
    settings: PhaseSettings, images: int, seed: int, phase: str, epoch: int
) -> list[Tensor]:
    """The rows of each batch of an epoch: a permutation, or draws with replacement."""
    generator = generator_for(seed, "order", phase, epoch)
    size = settings.batch_size
    if settings.steps_per_epoch is None:
        count = images // size
        return list(torch.randperm(images, generator=generator)[: count * size].split(size))
    rows = torch.randint(images, (settings.steps_per_epoch, size), generator=generator)
    return list(rows)


def is_due(phase: Phase, epochs: int) -> bool:
    """Whether the targets are evaluated after this many epochs: every period, and at the end."""
    if phase.evaluate_every is None:
        return False
    return epochs % phase.evaluate_every == 0 or epochs == phase.settings.epochs


def _stop_if_asked(stop: StopRequest, keeper: Keeper, state: TrainState) -> None:
    if stop.signal_number is not None:
        keeper.save(state)
        raise Stopped(keeper.how_to_resume(state), signal_number=stop.signal_number)


def _refuse_bad_weights(state: TrainState) -> None:
    """A step can overflow, and after the last one no loss would tell."""
    weights = {k: v for k, v in state.method.state_dict().items() if v.is_floating_point()}
    finite = torch.stack([torch.isfinite(value).all() for value in weights.values()])
    if finite.all():
        return
    name = list(weights)[finite.tolist().index(False)]
    raise NumericalError(
        f"The weight '{name}' is not finite after {state.phase} epoch {state.epoch + 1}.",
        hint="Lower the learning rate (--train.lr).",
        details={
            "phase": state.phase,
            "epoch": state.epoch,
            "step": state.step,
            "lr": state.optimizer.param_groups[0]["lr"],
        },
    )


def _not_finite(
    state: TrainState, rows: Tensor, terms: dict[str, Tensor], norm: Tensor
) -> NumericalError:
    what = "loss" if not torch.isfinite(terms["loss"]) else "gradient"
    when = f"{state.phase} epoch {state.epoch + 1}, step {state.step + 1}"
    return NumericalError(
        f"The {what} is not finite in {when}.",
        hint="Lower the learning rate (--train.lr), or the regulariser's weight (--peer.w).",
        details={
            "phase": state.phase,
            "epoch": state.epoch,
            "step": state.step,
            "rows": rows.tolist(),
            "terms": {name: float(value) for name, value in terms.items()},
            "gradient_norm": float(norm),
            "lr": state.optimizer.param_groups[0]["lr"],
        },
    )
