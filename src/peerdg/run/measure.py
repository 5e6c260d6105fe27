"""Measure in advance what the parts of a run cost, on copies that are thrown away.

Nothing of the run changes: the network is copied, everything random is drawn from generators of
their own, and torch's global generator is as before.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from peerdg.errors import NumericalError
from peerdg.methods.base import Method
from peerdg.methods.pool import PoolImages
from peerdg.models.classifier import Classifier, images_per_pass
from peerdg.rng import seeded
from peerdg.run.forecast import Costs, PhaseCosts, PhasePlan
from peerdg.train.batches import epoch_batches
from peerdg.train.guard import Guard
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.source import Source
from peerdg.train.state import TrainState
from peerdg.train.step import train_step

SECONDS = 1.0  # for the steps of all phases, unless a single step takes longer
SMALL_BATCH = 8  # images of the first steps, which decide whether full ones are tried
MOST_STEPS = 12  # of a phase
PATIENCE = 2.0  # times the seconds that a phase has: a full step may take so long
SHORT = 0.2  # seconds; what is done sooner is measured again, now that kernels are chosen


@dataclass(frozen=True)
class PhaseTrial:
    """A phase to try out.

    Args:
        plan: What it is going to do.
        settings: Its schedule and optimizer.
        make: The method around a copy of the network, on part of the source.
        bf16: Whether the loss is computed in bfloat16.
    """

    plan: PhasePlan
    settings: PhaseSettings
    make: Callable[[Classifier, Source], Method]
    bf16: bool = False


def measure_costs(
    trials: list[PhaseTrial],
    model: Classifier,
    source: Source,
    *,
    seed: int,
    evaluate: Callable[[Mapping[str, Classifier]], int],
    evaluated_images: int,
    statistics_images: int,
    finish_images: int,
    seconds: float = SECONDS,
) -> Costs | None:
    """Measure the seconds of a step, of the work between epochs and of an evaluation.

    Args:
        trials: The phases.
        model: The network, as it is at the start; it stays as it is.
        source: The training images.
        seed: The run's seed.
        evaluate: Evaluates models on a sample of the evaluated images; returns its size.
        evaluated_images: Images of one evaluation, all domains together.
        statistics_images: Images that each evaluated network sees before, for its batch
            statistics, unless the method has done that already.
        finish_images: Images that the deployed model is evaluated on after the last epoch.
        seconds: About so long the steps are measured.

    Returns:
        None if it cannot be measured: the network cannot be copied, or there is no memory for it.
    """
    phases: dict[str, PhaseCosts] = {}
    per_image, models, recomputed = 0.0, 1, 1
    try:
        for trial in trials:
            with seeded(seed, "measuring", trial.plan.name):
                sample = source.sample(images_per_pass(source.size))
                method = trial.make(copy.deepcopy(model), sample).to(source.device)
                measured = _TimedMethod(trial, method, sample, seed)
                phases[trial.plan.name] = measured.costs(len(source), seconds / len(trials))
                if trial.plan.evaluations:
                    per_image = _per_image(method, evaluate)
                    models = len(method.evaluated_networks)
                    recomputed = len(method.needs_clean_statistics)
    except (RuntimeError, TypeError, NumericalError):
        return None  # other errors recur in the run itself and are reported there
    one_pass = per_image / models  # of one network, per image
    statistics = one_pass * statistics_images * recomputed
    finish = one_pass * (finish_images + statistics_images)
    return Costs(phases, evaluation=per_image * evaluated_images + statistics, finish=finish)


class _Enough(Exception):
    """Long work was tried for long enough; carries the seconds that all of it would take."""

    def __init__(self, expected: float) -> None:
        super().__init__(expected)
        self.expected = expected


class _TimedMethod:
    """Times a method on a sample of the source."""

    def __init__(self, trial: PhaseTrial, method: Method, sample: Source, seed: int) -> None:
        self.trial, self.method, self.sample, self.seed = trial, method, sample, seed
        self.state = TrainState(trial.plan.name, method, make_optimizers(method, trial.settings))
        for optimizer in self.state.optimizers.values():  # so that it cannot diverge
            for group in optimizer.param_groups:
                group["lr"] = 0.0
        self.guard = Guard(self.state)

    def costs(self, images: int, seconds: float) -> PhaseCosts:
        """Of a step, and of the work between epochs with `images` images.

        That is the work of a period, and for a method that adds images to the training pool, to
        make as many as the source has.
        """
        period, batch_size = self.trial.plan.period, self.trial.settings.batch_size
        self.method.train()
        start = _timed(lambda: self.method.start_epoch(0), self.sample.device)
        growth = self.trial.plan.growth
        with self._grown_pool() if any(growth) else nullcontext():
            step = self._step_seconds(batch_size, seconds, redraw=start < seconds / MOST_STEPS)
        scale = images / len(self.sample)
        if not any(growth):
            end = self._end_seconds(period - 1, seconds)
            return PhaseCosts(step=step, period=(start + end) * scale)
        first = next(epoch for epoch, added in enumerate(growth) if added)
        end = self._end_seconds(first, seconds)
        return PhaseCosts(step=step, period=start * scale, growth=end * scale / growth[first])

    @contextmanager
    def _grown_pool(self) -> Iterator[None]:
        """Let the pool have additions, as most steps of a method that makes images find it."""
        domain, pool = self.sample.domain, self.sample.pool
        pool.change(PoolImages(domain.images, domain.labels))
        try:
            yield
        finally:
            pool.replace(())

    def _end_seconds(self, epoch: int, seconds: float) -> float:
        """Of the end of an epoch; of long work only its first parts are done."""
        work, began = self.sample.clean.work, time.perf_counter()

        def stop_if_long() -> None:
            spent = time.perf_counter() - began
            if spent > seconds and work.share:
                raise _Enough(spent / work.share)

        try:
            with work.interruptible(stop_if_long):
                return _timed(lambda: self._end_epoch(epoch), self.sample.device)
        except _Enough as enough:
            return enough.expected

    def _end_epoch(self, epoch: int) -> None:
        self.method.end_epoch(epoch)
        self.method.finish_epoch_averages(epoch)

    def _step_seconds(self, batch_size: int, seconds: float, *, redraw: bool) -> float:
        """Of a full batch; where that takes too long, of small ones, from which it follows.

        Part of a step (the optimizer) takes the same time for any batch, so two sizes are needed.
        With `redraw`, each full step is one of another period: what is drawn anew in each may be
        slower or faster.
        """
        small = min(SMALL_BATCH, batch_size)
        half = max(2, small // 2)
        self._step(half, 0)  # chooses kernels and takes memory; never counted
        short, long = self._step(half, 1), self._step(small, 2)
        most = long / small  # for an image
        per_image = min(most, max(most / 2, (long - short) / max(1, small - half)))
        whole = long + per_image * (batch_size - small)
        if whole > PATIENCE * seconds:
            return whole
        began, times = time.perf_counter(), [self._step(batch_size, 3)]
        while len(times) < MOST_STEPS and time.perf_counter() - began + times[-1] < seconds:
            if redraw:
                self.method.start_epoch(len(times) * self.trial.plan.period)
            times.append(self._step(batch_size, 3 + len(times)))
        # The first of another size has kernels to choose, too.
        counted = times[1:] if batch_size != small and len(times) > 1 else times
        return sum(counted) / len(counted)

    def _step(self, size: int, number: int) -> float:
        """Seconds of one step with `size` images."""
        rows = torch.arange(size) % len(self.sample)
        return _timed(lambda: self._train(rows, number), self.sample.device)

    def _train(self, rows: torch.Tensor, number: int) -> None:
        key = ("measuring", self.trial.plan.name, number)
        for chosen, batch in epoch_batches(
            self.method, self.sample, [rows], start=0, seed=self.seed, key=key
        ):
            train_step(
                self.state, batch, chosen, guard=self.guard, seed=self.seed, key=key,
                bf16=self.trial.bf16,
            )  # fmt: skip
            self.method.update_averages()


def _per_image(method: Method, evaluate: Callable[[Mapping[str, Classifier]], int]) -> float:
    """Seconds for an image of an evaluation, by all observed models."""
    seconds = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        images = evaluate(method.evaluated_networks)
        seconds = min(seconds, time.perf_counter() - began)
        if seconds > SHORT:
            break
    return seconds / images


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - began
