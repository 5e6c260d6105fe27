"""Choose the epochs of a run so that it takes a given time on this machine. Free of torch."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from peerdg.errors import ConfigError
from peerdg.methods.registry import settings_of
from peerdg.run.config import RunConfig
from peerdg.run.forecast import Costs, RunPlan, duration
from peerdg.train.settings import PhaseSettings

FEW_PERIODS = 5  # of the method; with less time its period is shorter
LEAST_PERIODS = 3  # of one epoch: the shortest run
EVALUATION_SHARE = 0.2  # of the training's time; costly evaluations are several periods apart
MOST_PERIODS = 2**16  # upper bound of the search, for steps too fast to measure
NEARLY = 0.95  # of the most epochs that any period allows
AIM = 0.97  # of the time; what is not measured in advance takes the rest


@dataclass(frozen=True)
class TimeBudget:
    """How long a run may take.

    Args:
        minutes: In all, from `began` to the stored model.
        began: When the command started, by `time.monotonic`.
        keep: What the user chose and stays: `period` (of the method), `evaluate_every`,
            `pretrain.epochs`.
    """

    minutes: float
    began: float = field(default_factory=time.monotonic)
    keep: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes is {self.minutes}; it must be a number above 0.")

    @classmethod
    def of(
        cls, minutes: float, given: Mapping[str, Any], method: str, began: float
    ) -> "TimeBudget":
        """The budget beside options given by the user, nested as in a config file.

        Raises:
            ConfigError: If they set the number of epochs.
        """
        if "epochs" in given.get("train", {}):
            raise ConfigError(
                "The minutes and the epochs of a run exclude each other.",
                hint="Give one of --minutes and --epochs.",
            )
        chosen = {
            "period": settings_of(method).period_option in given.get(method, {}),
            "evaluate_every": "evaluate_every" in given,
            "pretrain.epochs": "epochs" in given.get("pretrain", {}),
            "average.k": "k" in given.get("average", {}),
        }
        return cls(minutes, began, frozenset(name for name, is_given in chosen.items() if is_given))

    @property
    def seconds(self) -> float:
        """The whole time."""
        return 60 * self.minutes


def fit_epochs(
    config: RunConfig,
    budget: TimeBudget,
    costs: Costs,
    plan_of: Callable[[RunConfig], RunPlan],
    *,
    spent: float,
) -> RunConfig:
    """The config with as many epochs as the time allows, pre-training in proportion.

    A run has at least `FEW_PERIODS` periods of its method: where these are too long, they get
    shorter, and of one epoch each there are at least `LEAST_PERIODS`. Evaluations follow each
    period, or several if they would take too long, but there is one in the middle. The steps of a
    learning rate's schedule shrink or grow like the epochs.

    Args:
        config: The schedule to shorten or lengthen.
        budget: The time, and what must stay.
        costs: Measured seconds.
        plan_of: What a config would do.
        spent: Seconds since the command started.

    Raises:
        ConfigError: If not even the shortest run fits.
    """
    train, steps = costs.phases["train"], plan_of(config).phases[-1].steps

    def with_periods(count: int, period: int) -> RunConfig:
        training = count * (period * steps * train.step + train.period)
        apart = _periods_apart(count, costs.evaluation, EVALUATION_SHARE * training)
        return _with_epochs(config, count * period, period, period * apart, budget.keep)

    def seconds(fitted: RunConfig) -> float:
        return spent + costs.of_run(plan_of(fitted))

    usual = _period(config)
    own_period = config.method_settings.period_option is not None
    kept = ("period" if own_period else "evaluate_every") in budget.keep
    least_count, least_period = (1, usual) if kept else (LEAST_PERIODS, 1)
    found: list[RunConfig] = []
    for period in range(least_period, usual + 1):
        count = _most_periods(partial(with_periods, period=period), seconds, AIM * budget.seconds)
        if count >= (least_count if period == least_period else FEW_PERIODS):
            found.append(with_periods(count, period))
    if found:  # the period nearest to the usual one, unless whole ones waste too much of the time
        most = max(fitted.train.epochs for fitted in found)
        return next(f for f in reversed(found) if f.train.epochs >= NEARLY * most)
    shortest = with_periods(least_count, least_period)
    raise ConfigError(
        f"{budget.minutes:g} minutes are too few on this machine: the shortest run, "
        f"{schedule(shortest)}, takes about {duration(seconds(shortest) / AIM)}.",
        hint="Give more --minutes, a smaller --transform.size or a smaller --backbone.",
    )


def keep_schedule(
    config: RunConfig, stored: Mapping[str, Any], *, keep: frozenset[str] = frozenset()
) -> RunConfig:
    """`config` with the epochs, period and evaluations that a stored config was given at its start.

    What the user chose (`keep`) stays as it is, so that a resume with other values is refused.
    """
    changed: dict[str, Any] = {}
    for phase in ("pretrain", "train"):
        values = stored.get(phase, {})
        names = {"epochs", "lr_step"} - ({"epochs"} if f"{phase}.epochs" in keep else set())
        changed[phase] = replace(getattr(config, phase), **{n: values.get(n) for n in names})
    option = config.method_settings.period_option
    if "period" not in keep and option in stored.get(config.method, {}):
        period = stored[config.method][option]
        changed["method_settings"] = replace(config.method_settings, **{option: period})
    if "evaluate_every" in stored and "evaluate_every" not in keep:
        changed["evaluate_every"] = stored["evaluate_every"]
    if "average.k" not in keep:
        changed["average"] = replace(config.average, k=stored.get("average", {}).get("k"))
    return replace(config, **changed)


def schedule(config: RunConfig) -> str:
    """`4 + 60 epochs, k 5`."""
    before = f"{config.pretrain.epochs} + " if config.pretrain.epochs else ""
    settings = config.method_settings
    period = f", {settings.period_option} {settings.period}" if settings.period_option else ""
    return f"{before}{config.train.epochs} epochs{period}"


def _periods_apart(count: int, evaluation: float, available: float) -> int:
    """The fewest periods between evaluations that leave them in the `available` seconds."""
    most = max(1, (count + 1) // 2)
    return next(
        (n for n in range(1, most) if (1 + math.ceil(count / n)) * evaluation <= available), most
    )


def _with_epochs(
    config: RunConfig, epochs: int, period: int, evaluate_every: int, keep: frozenset[str]
) -> RunConfig:
    """`config` with another number of epochs; pre-training and rate schedule in proportion."""
    factor = epochs / config.train.epochs
    changed: dict[str, Any] = {"train": _scaled(config.train, factor, epochs=epochs)}
    if config.pretrain.epochs and "pretrain.epochs" not in keep:
        before = max(1, round(config.pretrain.epochs * factor))
        changed["pretrain"] = _scaled(
            config.pretrain, before / config.pretrain.epochs, epochs=before
        )
    option = config.method_settings.period_option
    if option is not None and "period" not in keep:
        changed["method_settings"] = replace(config.method_settings, **{option: period})
    if "evaluate_every" not in keep:
        changed["evaluate_every"] = evaluate_every
    if config.average.k is not None and "average.k" not in keep:
        changed["average"] = replace(config.average, k=min(config.average.k, period))
    return replace(config, **changed)


def _scaled(phase: PhaseSettings, factor: float, *, epochs: int) -> PhaseSettings:
    step = phase.lr_step if phase.lr_step is None else max(1, round(phase.lr_step * factor))
    return replace(phase, epochs=epochs, lr_step=step)


def _most_periods(
    with_periods: Callable[[int], RunConfig], seconds: Callable[[RunConfig], float], most: float
) -> int:
    """The largest number of periods whose run fits; more periods never take less time."""
    if seconds(with_periods(1)) > most:
        return 0
    low, high = 1, 2
    while high < MOST_PERIODS and seconds(with_periods(high)) <= most:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = seconds(with_periods(middle)) <= most
        low, high = (middle, high) if fits else (low, middle)
    return low


def _period(config: RunConfig) -> int:
    """Epochs after which the method repeats its work, or else an evaluation comes."""
    settings = config.method_settings
    return config.evaluate_every if settings.period_option is None else int(settings.period)
