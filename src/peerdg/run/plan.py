"""What a run is going to do: its phases, what each trains, and the time it will take."""

import time
from collections.abc import Mapping
from functools import partial
from itertools import accumulate

import torch

from peerdg.data import VALIDATION
from peerdg.data.domain import Domain
from peerdg.errors import (
    ConfigError,
)
from peerdg.evaluate.accuracy import evaluate_models
from peerdg.methods.base import Method
from peerdg.methods.erm import ERM
from peerdg.models.classifier import (
    Classifier,
    has_batch_statistics,
    images_per_pass,
)
from peerdg.run.build import adapt_network, build_method
from peerdg.run.config import RunConfig
from peerdg.run.forecast import Costs, PhasePlan, RunPlan
from peerdg.run.measure import SECONDS, PhaseTrial, measure_costs
from peerdg.run.minutes import TimeBudget, fit_epochs, schedule
from peerdg.run.progress import Progress
from peerdg.train.loop import Phase, evaluation_epochs
from peerdg.train.order import steps_per_epoch
from peerdg.train.source import Source

MEASURING_SHARE = 0.05  # of the given minutes, to measure what fits into them
MOST_MEASURING = 20.0  # seconds


def phases_of(config: RunConfig, stop_after: int | None = None) -> list[Phase]:
    """Pre-training, if there is any, and the main phase."""
    bf16 = config.precision == "bf16"
    main = Phase("train", config.train, config.evaluate_every, bf16, stop_after)
    first = Phase("pretrain", config.pretrain, None, bf16)
    return [first, main] if config.pretrain.epochs else [main]


def method_of(
    phase: Phase,
    config: RunConfig,
    model: Classifier,
    source: Source,
    *,
    images: int,
    domains: Mapping[str, Domain],
) -> Method:
    """What a phase trains, on all of the `images` or on a sample of them."""
    if phase.name == "pretrain":
        return ERM(model)
    validation = domains.get(VALIDATION)
    model = adapt_network(config, model, phase.name, source.size)
    return build_method(config, model, source, images=images, validation=validation)


def run_plan(config: RunConfig, images: int, *, fitted: bool = False) -> RunPlan:
    """What the run is going to do, for its time."""
    return RunPlan(
        tuple(_phase_plan(phase, config, images) for phase in phases_of(config)), fitted=fitted
    )


def _phase_plan(phase: Phase, config: RunConfig, images: int) -> PhasePlan:
    settings, method = phase.settings, config.method_settings
    is_main = phase.name == "train"
    changes = method.pool_changes(images, settings.epochs) if is_main else ()
    sizes = accumulate((c.added - c.dropped for c in changes[:-1]), initial=images)
    grows = bool(changes) and method.batches_from == "pool"
    return PhasePlan(
        phase.name,
        epochs=settings.epochs,
        steps=steps_per_epoch(settings, images),
        period=method.period if is_main else 1,
        evaluations=evaluation_epochs(phase),
        epoch_steps=tuple(steps_per_epoch(settings, images, n) for n in sizes) if grows else (),
        growth=tuple(change.added / images for change in changes),
    )


def fit_run(
    config: RunConfig,
    budget: TimeBudget,
    model: Classifier,
    source: Source,
    domains: Mapping[str, Domain],
    progress: Progress,
) -> tuple[RunConfig, Costs]:
    """The config that takes the given time, and the measured costs it was chosen by."""
    seconds = min(MOST_MEASURING, max(SECONDS, MEASURING_SHARE * budget.seconds))
    costs = measure_run_costs(config, model, source, domains, seconds=seconds)
    if costs is None:
        raise ConfigError(
            "The time of this run cannot be measured in advance.",
            hint="Give --epochs in place of --minutes.",
        )
    fitted = fit_epochs(
        config,
        budget,
        costs,
        lambda wanted: run_plan(wanted, len(source)),
        spent=time.monotonic() - budget.began,
    )
    progress.note(
        f"--minutes {budget.minutes:g}: {schedule(fitted)}, in place of {schedule(config)}."
    )
    return fitted, costs


def measure_run_costs(
    config: RunConfig,
    model: Classifier,
    source: Source,
    domains: Mapping[str, Domain],
    *,
    seconds: float = SECONDS,
) -> Costs | None:
    """Try out a few steps and an evaluation on copies; None if that cannot be done."""
    plan = run_plan(config, len(source))
    largest = max(domains.values(), key=len) if domains else source.domain
    sample = largest.subset(torch.arange(min(len(largest), images_per_pass(source.size))))

    def evaluate(models: Mapping[str, Classifier]) -> int:
        evaluate_models(models, {"sample": sample}, size=source.size)
        return len(sample)

    trials = [
        PhaseTrial(
            planned,
            phase.settings,
            partial(method_of, phase, config, images=len(source), domains=domains),
            bf16=phase.bf16,
        )
        for planned, phase in zip(plan.phases, phases_of(config), strict=True)
    ]
    validation = domains.get(VALIDATION)
    recomputes = config.batch_statistics == "clean" and has_batch_statistics(model)
    return measure_costs(
        trials,
        model,
        source,
        seed=config.seed,
        evaluate=evaluate,
        evaluated_images=sum(map(len, domains.values())),
        statistics_images=len(source) if recomputes else 0,
        finish_images=0 if validation is None else len(validation),
        seconds=seconds,
    )
