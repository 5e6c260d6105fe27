"""Choose the epochs of a run so that it takes a given time on this machine (`--minutes`)."""

import copy
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from peerdg.data import VALIDATION
from peerdg.errors import ConfigError, NumericalError
from peerdg.evaluate.accuracy import evaluate_models
from peerdg.long_work import interruptible
from peerdg.methods.base import Method
from peerdg.methods.registry import settings_of
from peerdg.models.classifier import has_batch_statistics, images_per_pass
from peerdg.rng import seeded
from peerdg.run.config import RunConfig
from peerdg.run.prepare import Inputs, make_method, phases_of
from peerdg.run.progress import duration
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import Phase
from peerdg.train.source import Source, epoch_batches, steps_per_epoch
from peerdg.train.state import TrainState
from peerdg.train.step import Guard, train_step

TIMED_STEPS = 10
MEASURING_SHARE = 0.05  # of the given time
MAX_MEASURING_SECONDS = 20.0
MIN_EPOCHS = 3
MIN_PERIODS = 5  # of the method: with fewer epochs, its period becomes shorter
MAX_EPOCHS = 2**16
EVALUATION_SHARE = 0.2  # of the training's time: slow evaluations are several periods apart
TIME_SAFETY_FACTOR = 0.97  # of the given time: starting and storing take the rest


@dataclass(frozen=True)
class TimeBudget:
    """The time a run may take.

    Args:
        minutes: From `began` to the stored model.
        began: When the command started, by `time.monotonic`.
        fixed: What the user chose: `period` (of the method), `evaluate_every`, `pretrain.epochs`,
            `average.k`.
    """

    minutes: float
    began: float
    fixed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes is {self.minutes}; it must be a number above 0.")

    @classmethod
    def from_options(
        cls, minutes: float, options: Mapping[str, Any], method: str, began: float
    ) -> "TimeBudget":
        """Make the budget for a user's options, nested as in a config file.

        Raises:
            ConfigError: If they set the number of epochs.
        """
        if "epochs" in options.get("train", {}):
            raise ConfigError(
                "The minutes and the epochs of a run exclude each other.",
                hint="Give one of --minutes and --epochs.",
            )
        chosen = {
            "period": settings_of(method).period_option in options.get(method, {}),
            "evaluate_every": "evaluate_every" in options,
            "pretrain.epochs": "epochs" in options.get("pretrain", {}),
            "average.k": "k" in options.get("average", {}),
        }
        return cls(minutes, began, frozenset(name for name, is_set in chosen.items() if is_set))


@dataclass(frozen=True)
class Costs:
    """Measured seconds of the parts of a run.

    Args:
        step: One step of each phase, by its name.
        period: The work between the epochs of one period of the method.
        evaluation: One evaluation.
    """

    step: Mapping[str, float]
    period: float
    evaluation: float

    def seconds(self, config: RunConfig, images: int) -> float:
        """Estimate the seconds of a run on this many training images."""
        phases = phases_of(config)
        steps = {p.name: p.settings.epochs * steps_per_epoch(p.settings, images) for p in phases}
        training = sum(count * self.step[name] for name, count in steps.items())
        periods: float = config.train.epochs / config.method_settings.period
        return training + periods * self.period + phases[-1].evaluations * self.evaluation


def fit_to_time(config: RunConfig, budget: TimeBudget, inputs: Inputs) -> RunConfig:
    """Measure the costs of a run and choose its epochs, so that it takes the given time.

    Raises:
        ConfigError: If the costs cannot be measured, or the shortest run takes longer.
    """
    seconds = min(MAX_MEASURING_SECONDS, MEASURING_SHARE * 60 * budget.minutes)
    try:
        costs = measure_costs(config, inputs, seconds=max(1.0, seconds))
    except (RuntimeError, TypeError, NumericalError) as error:  # for example, cannot be copied
        raise ConfigError(
            f"The time of this run cannot be measured in advance: {error}",
            hint="Give --epochs instead of --minutes.",
        ) from error
    spent = time.monotonic() - budget.began
    return fit_epochs(config, budget, costs, images=len(inputs.source), spent=spent)


def fit_epochs(
    config: RunConfig, budget: TimeBudget, costs: Costs, *, images: int, spent: float
) -> RunConfig:
    """Return the config with as many epochs as fit into the time, pre-training in proportion.

    There are at least `MIN_PERIODS` periods of the method: with fewer epochs, the period becomes
    shorter. An evaluation follows each period, or several periods if evaluations are slow.

    Raises:
        ConfigError: If not even the shortest run fits.
    """

    def with_epochs(epochs: int) -> RunConfig:
        return _with_epochs(config, epochs, budget.fixed, costs, images)

    def seconds(epochs: int) -> float:
        return spent + costs.seconds(with_epochs(epochs), images)

    fewest = config.method_settings.period if "period" in budget.fixed else MIN_EPOCHS
    available = TIME_SAFETY_FACTOR * 60 * budget.minutes
    most = bisect_right(range(MAX_EPOCHS), available, lo=fewest, key=seconds) - 1
    if most >= fewest:
        return with_epochs(most)
    raise ConfigError(
        f"{budget.minutes:g} minutes are too few on this machine: the shortest run, "
        f"{schedule(with_epochs(fewest))}, takes about "
        f"{duration(seconds(fewest) / TIME_SAFETY_FACTOR)}.",
        hint="Give more --minutes, a smaller --transform.size or a smaller --backbone.",
    )


def _with_epochs(
    config: RunConfig, epochs: int, fixed: frozenset[str], costs: Costs, images: int
) -> RunConfig:
    """Change the epochs; period, evaluations, pre-training and learning rate schedule follow."""
    option, period = config.method_settings.period_option, config.method_settings.period
    changed: dict[str, Any] = {}
    if option is not None and "period" not in fixed:
        period = min(period, max(1, epochs // MIN_PERIODS))
        changed["method_settings"] = replace(config.method_settings, **{option: period})
    epochs -= epochs % period
    factor = epochs / config.train.epochs
    changed["train"] = _scaled(config.train, factor, epochs=epochs)
    if config.pretrain.epochs and "pretrain.epochs" not in fixed:
        before = max(1, round(config.pretrain.epochs * factor))
        factor = before / config.pretrain.epochs
        changed["pretrain"] = _scaled(config.pretrain, factor, epochs=before)
    if config.average.k is not None and "average.k" not in fixed:
        changed["average"] = replace(config.average, k=min(config.average.k, period))
    if "evaluate_every" not in fixed:
        usual = period
        if option is None:
            usual = min(config.evaluate_every, max(1, epochs // MIN_PERIODS))
        steps = epochs * steps_per_epoch(config.train, images)
        available = EVALUATION_SHARE * (steps * costs.step["train"] + costs.period)
        count = max(2, int(available / max(costs.evaluation, 1e-9)) - 1)  # one is at epoch 0
        changed["evaluate_every"] = usual * -(-(epochs // usual) // count)
    return replace(config, **changed)


def _scaled(phase: Any, factor: float, *, epochs: int) -> Any:
    step = phase.lr_step if phase.lr_step is None else max(1, round(phase.lr_step * factor))
    return replace(phase, epochs=epochs, lr_step=step)


def keep_schedule(
    config: RunConfig, stored: Mapping[str, Any], *, fixed: frozenset[str] = frozenset()
) -> RunConfig:
    """Return `config` with the epochs, period and evaluations of a stored config.

    What the user chose (`fixed`) stays as it is, so that a resume with other values is refused.
    """
    changed: dict[str, Any] = {}
    for phase in ("pretrain", "train"):
        values = stored.get(phase, {})
        names = {"epochs", "lr_step"} - ({"epochs"} if f"{phase}.epochs" in fixed else set())
        changed[phase] = replace(getattr(config, phase), **{n: values.get(n) for n in names})
    option = config.method_settings.period_option
    if "period" not in fixed and option in stored.get(config.method, {}):
        period = stored[config.method][option]
        changed["method_settings"] = replace(config.method_settings, **{option: period})
    if "evaluate_every" in stored and "evaluate_every" not in fixed:
        changed["evaluate_every"] = stored["evaluate_every"]
    if "average.k" not in fixed:
        changed["average"] = replace(config.average, k=stored.get("average", {}).get("k"))
    return replace(config, **changed)


def schedule(config: RunConfig) -> str:
    """Describe the schedule: `4 + 60 epochs, k 5`."""
    before = f"{config.pretrain.epochs} + " if config.pretrain.epochs else ""
    settings = config.method_settings
    period = f", {settings.period_option} {settings.period}" if settings.period_option else ""
    return f"{before}{config.train.epochs} epochs{period}"


def measure_costs(config: RunConfig, inputs: Inputs, *, seconds: float) -> Costs:
    """Time some steps and an evaluation on copies.

    The run is not affected: its network is copied, and torch's global generator is restored.

    Args:
        config: The run's options.
        inputs: Its data and network.
        seconds: About so long the steps of each phase are measured.
    """
    train, size = inputs.source.domain, inputs.source.size
    step = {}
    for phase in phases_of(config):
        images = max(images_per_pass(size), phase.settings.batch_size)
        rows = torch.linspace(0, len(train) - 1, min(images, len(train))).long()
        sample = Source(train.subset(rows.to(inputs.source.device)), config.transform)
        network = copy.deepcopy(inputs.network)
        with seeded(config.seed, "measuring", phase.name):
            validation = inputs.domains.get(VALIDATION)
            method = make_method(phase, config, network, sample, validation)
            method.to(inputs.source.device).train()
            step[phase.name], start = _time_steps(phase, config, method, sample, seconds)
            end = _time_epoch_end(method, config.method_settings.period - 1, seconds)
    # Of the last phase, the main one:
    period = (start + end) * len(train) / len(sample)
    networks = method.evaluated_networks
    largest = max(inputs.domains.values(), key=len, default=train)
    part = largest.subset(torch.arange(min(len(largest), images_per_pass(size))))
    began = time.perf_counter()
    evaluate_models(networks, {"sample": part}, size=size)
    per_image = (time.perf_counter() - began) / len(part)
    evaluation = per_image * sum(map(len, inputs.domains.values()))
    if config.batch_statistics == "clean" and has_batch_statistics(inputs.network):
        recomputed = len(method.needs_clean_statistics) / len(networks)
        evaluation += per_image * recomputed * len(train)
    return Costs(step, period, evaluation)


def _time_steps(
    phase: Phase, config: RunConfig, method: Method, source: Source, seconds: float
) -> tuple[float, float]:
    """Return the mean seconds of a step, and the seconds of the slowest start of a period."""
    state = TrainState(phase.name, method, make_optimizers(method, phase.settings))
    for optimizer in state.optimizers.values():  # so that it cannot diverge
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    guard, period = Guard(state), config.method_settings.period
    rows = torch.arange(phase.settings.batch_size) % len(source)

    def take_step() -> None:
        key = ("measuring", phase.name, len(steps))
        for chosen, batch in epoch_batches(method, source, [rows], start=0, seed=0, key=key):
            train_step(state, batch, chosen, guard=guard, seed=0, key=key, bf16=phase.bf16)
            method.update_averages()

    def start_period() -> None:
        method.start_epoch(len(steps) * period)  # Another augmentation may be slower.

    starts: list[float] = []
    steps: list[float] = []
    while len(steps) <= TIMED_STEPS and (len(steps) < 2 or sum(starts + steps) < seconds):
        starts.append(_timed(start_period, source.device))
        steps.append(_timed(take_step, source.device))
    # The first step chooses kernels and allocates memory.
    return sum(steps[1:]) / len(steps[1:]), max(starts)


def _time_epoch_end(method: Method, epoch: int, seconds: float) -> float:
    """Return the seconds of the end of an epoch. Of long work, only the first items are done."""
    began = time.perf_counter()

    def stop_if_long(label: str, share: float) -> None:
        spent = time.perf_counter() - began
        if spent > seconds and share > 0:
            raise _Enough(spent / share)

    try:
        with interruptible(stop_if_long):
            return _timed(lambda: method.end_epoch(epoch), next(method.parameters()).device)
    except _Enough as enough:
        return enough.expected


class _Enough(Exception):
    """Long work was tried for long enough."""

    def __init__(self, expected: float) -> None:
        super().__init__()
        self.expected = expected  # seconds of all of it


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - began
