"""Choose the number of epochs so that a run takes a given time (`--minutes`)."""

import copy
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from peerdg.augment.view import take
from peerdg.data import VALIDATION
from peerdg.errors import ConfigError, NumericalError
from peerdg.evaluate.accuracy import evaluate_models
from peerdg.methods.base import Method
from peerdg.models.classifier import has_batch_statistics
from peerdg.options import dotted
from peerdg.rng import seeded
from peerdg.run.config import RunConfig, resolve
from peerdg.run.prepare import Inputs, make_method, phases_of
from peerdg.run.progress import duration
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import Phase
from peerdg.train.source import Source, epoch_batches, steps_per_epoch
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step

TIMED_STEPS = 10
MEASURING_SHARE = 0.05  # fraction of the given time
MAX_MEASURING_SECONDS = 20.0
MIN_EPOCHS = 3
MIN_PERIODS = 5  # if fewer periods fit, the method's period is shortened
MAX_EPOCHS = 2**16
EVALUATIONS = 10  # approximate number of evaluations, each at the end of a period
EVALUATION_SHARE = 0.2  # maximum fraction of the time. Slow evaluations are done less often
TIME_SAFETY_FACTOR = 0.97  # fraction of the given time. The rest is for startup and saving


@dataclass(frozen=True)
class TimeBudget:
    """Time available for a run."""

    minutes: float  # from `began` to the stored model
    began: float  # start of the command, from `time.monotonic`
    given: Collection[str] = ()  # options set by the user, such as `peer.k`, which are kept

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be a number above 0, got {self.minutes}.")
        if "train.epochs" in self.given:
            raise ConfigError("--minutes and --epochs cannot be used together.", hint="Drop one.")


@dataclass(frozen=True)
class Costs:
    """Measured times of the parts of a run, in seconds."""

    step: Mapping[str, float]  # one training step, by phase
    period: float  # work between epochs, per period of the method
    evaluation: float  # one evaluation of all domains

    def seconds(self, config: RunConfig, images: int) -> float:
        """Estimate how many seconds a run takes with this many training images."""
        phases = phases_of(config)
        steps = {p.name: p.settings.epochs * steps_per_epoch(p.settings, images) for p in phases}
        training = sum(count * self.step[name] for name, count in steps.items())
        periods: float = config.train.epochs / config.method_settings.period
        return training + periods * self.period + phases[-1].evaluations * self.evaluation


def fit_to_time(config: RunConfig, budget: TimeBudget, inputs: Inputs) -> RunConfig:
    """Measure the costs of a run and choose its epochs to fit the given time."""
    seconds = min(MAX_MEASURING_SECONDS, MEASURING_SHARE * 60 * budget.minutes)
    try:
        costs = measure_costs(config, inputs, seconds=max(1.0, seconds))
    except (RuntimeError, TypeError, NumericalError) as error:  # for example, a failed deepcopy
        raise ConfigError(
            f"The time of this run cannot be measured in advance: {error}",
            hint="Use --epochs instead of --minutes.",
        ) from error
    spent = time.monotonic() - budget.began
    return fit_epochs(config, budget, costs, images=len(inputs.source), spent=spent)


def estimate(config: RunConfig, inputs: Inputs) -> str:
    """Measure two steps of each phase, and describe how long the run will take."""
    seconds = measure_costs(config, inputs, seconds=0.0).seconds(config, len(inputs.source))
    return f"About {duration(seconds)} on this machine: {schedule(config)}. Set it with --minutes."


def fit_epochs(
    config: RunConfig, budget: TimeBudget, costs: Costs, *, images: int, spent: float
) -> RunConfig:
    """Return the config with as many epochs as fit in the time. Raise an error if too few fit."""
    available = TIME_SAFETY_FACTOR * 60 * budget.minutes
    affordable = int(EVALUATION_SHARE * available / max(costs.evaluation, 1e-9))
    evaluations = min(EVALUATIONS, max(2, affordable))

    def changed(epochs: int) -> RunConfig:
        return with_epochs(config, epochs, budget.given, evaluations)

    def seconds(epochs: int) -> float:
        return spent + costs.seconds(changed(epochs), images)

    has_period = f"{config.method}.{config.method_settings.period_option}" in budget.given
    fewest = config.method_settings.period if has_period else MIN_EPOCHS
    most = bisect_right(range(MAX_EPOCHS), available, lo=fewest, key=seconds) - 1
    if most >= fewest:
        return changed(most)
    needed = seconds(fewest) / TIME_SAFETY_FACTOR
    raise ConfigError(
        f"{budget.minutes:g} minutes are not enough on this machine. The shortest run, "
        f"{schedule(changed(fewest))}, takes about {duration(needed)}.",
        hint=f"Use --minutes {1 + int(1.1 * needed / 60)}, or a smaller --transform.size.",
    )


def with_epochs(
    config: RunConfig, epochs: int, given: Collection[str] = (), evaluations: int = EVALUATIONS
) -> RunConfig:
    """Change the epochs, and scale period, evaluations, pre-training and learning rate schedule.

    The period is shortened if fewer than `MIN_PERIODS` periods fit into the epochs. Options in
    `given` are kept.
    """
    option, period = config.method_settings.period_option, config.method_settings.period
    changed: dict[str, Any] = {}
    if option is not None and f"{config.method}.{option}" not in given:
        period = min(period, max(1, epochs // MIN_PERIODS))
        changed["method_settings"] = replace(config.method_settings, **{option: period})
    epochs -= epochs % period
    factor = epochs / config.train.epochs
    changed["train"] = _scaled(config.train, factor, epochs=epochs)
    if config.pretrain.epochs and "pretrain.epochs" not in given:
        before = max(1, round(config.pretrain.epochs * factor))
        factor = before / config.pretrain.epochs
        changed["pretrain"] = _scaled(config.pretrain, factor, epochs=before)
    if config.average.k is not None and "average.k" not in given:
        changed["average"] = replace(config.average, k=min(config.average.k, period))
    if "evaluate_every" not in given:
        changed["evaluate_every"] = period * -(-epochs // (evaluations * period))
    return replace(config, **changed)


def _scaled(phase: Any, factor: float, *, epochs: int) -> Any:
    step = phase.lr_step if phase.lr_step is None else max(1, round(phase.lr_step * factor))
    return replace(phase, epochs=epochs, lr_step=step)


def keep_schedule(
    config: RunConfig, stored: Mapping[str, Any], given: Collection[str] = ()
) -> RunConfig:
    """Return `config` with the schedule of a stored config.

    Options in `given` are kept, so that resuming with different values is refused. `lr_step` is
    taken from the stored config even if given, because `with_epochs` scales it.
    """
    phases = (
        f"{phase}.{name}" for phase in ("pretrain", "train") for name in ("epochs", "lr_step")
    )
    period = f"{config.method}.{config.method_settings.period_option}"
    tables, scaled = config.tables(), {"train.lr_step", "pretrain.lr_step"}
    for option in {*phases, period, "evaluate_every", "average.k"} - (set(given) - scaled):
        section, _, name = option.rpartition(".")
        if option in (values := dotted(stored)):
            (tables[section] if section else tables)[name] = values[option]
    return resolve(tables)


def schedule(config: RunConfig) -> str:
    """Format the schedule as `4 + 60 epochs, k 5`."""
    before = f"{config.pretrain.epochs} + " if config.pretrain.epochs else ""
    settings = config.method_settings
    period = f", {settings.period_option} {settings.period}" if settings.period_option else ""
    return f"{before}{config.train.epochs} epochs{period}"


def measure_costs(config: RunConfig, inputs: Inputs, *, seconds: float) -> Costs:
    """Time training steps for some `seconds`, work between epochs, and evaluating one batch.

    The network is copied and torch's global generator is restored, so the run is not affected.
    """
    config = replace(config, method_settings=config.method_settings.for_time_estimate())
    train, size, device = inputs.source.domain, inputs.source.size, inputs.source.device
    step = {}
    for phase in phases_of(config):
        rows = torch.linspace(0, len(train) - 1, min(phase.settings.batch_size, len(train))).long()
        images = take(train.images, rows.to(device))
        sample = Source(train.subset(rows, images=images), config.transform)
        with seeded(config.seed, "measuring", phase.name):
            validation = inputs.domains.get(VALIDATION)
            network = copy.deepcopy(inputs.network)
            method = make_method(phase, config, network, sample, validation).to(device).train()
            start = _timed(partial(method.start_epoch, 0), device)
            step[phase.name] = _time_steps(phase, method, sample, seconds)
            method.start_epoch(last := config.method_settings.period - 1)
            end = _timed(partial(method.end_epoch, last), device)
    # `method` and `sample` now belong to the last phase, which is the main one.
    networks, part = method.evaluated_networks, {"": sample.domain}
    per_image = _timed(lambda: evaluate_models(networks, part, size=size), device) / len(sample)
    evaluated: float = sum(map(len, inputs.domains.values()))
    if config.batch_statistics == "clean" and has_batch_statistics(inputs.network):
        evaluated += len(train) * len(method.needs_clean_statistics) / len(networks)
    return Costs(step, (start + end) * len(train) / len(sample), per_image * evaluated)


def _time_steps(phase: Phase, method: Method, source: Source, seconds: float) -> float:
    """Return the mean time of a training step in seconds."""
    state = TrainState(phase.name, method, make_optimizers(method, phase.settings))
    for optimizer in state.optimizers.values():  # so that training cannot diverge
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    guard, rows = Guard(state), torch.arange(phase.settings.batch_size) % len(source)

    def take_step() -> None:
        key = ("measuring", phase.name, len(steps))
        for chosen, batch in epoch_batches(method, source, [rows], start=0, seed=0, key=key):
            train_step(state, batch, chosen, guard=guard, seed=0, key=key, bf16=phase.bf16)
            method.update_averages()

    steps: list[float] = []
    while len(steps) <= TIMED_STEPS and (len(steps) < 2 or sum(steps) < seconds):
        steps.append(_timed(take_step, source.device))
    return sum(steps[1:]) / len(steps[1:])  # the first step includes setup


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - began
