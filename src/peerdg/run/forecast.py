"""How long a run takes: its plan, the measured cost of each part, and the time that is left.

Free of torch and of any display. Seconds come from a clock that tests replace.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from peerdg.stages import Activity

WARM_UP_STEPS = 3  # measured steps of a phase before they replace the estimate made in advance
STEPS_REMEMBERED = 20  # at least so many of the last steps decide the seconds of a step
EPOCHS_REMEMBERED = 3  # or the steps of so many epochs, if they are more
EVALUATIONS_REMEMBERED = 3


@dataclass(frozen=True)
class PhasePlan:
    """What a phase is going to do.

    Args:
        name: `"pretrain"` or `"train"`.
        epochs: How many.
        steps: Steps of each.
        period: Epochs after which the work between epochs repeats, see `MethodSettings.period`.
        evaluations: After how many epochs the observed models are evaluated, in order.
    """

    name: str
    epochs: int
    steps: int
    period: int = 1
    evaluations: tuple[int, ...] = ()
    epoch_steps: tuple[int, ...] = ()
    growth: tuple[float, ...] = ()

    def steps_of(self, epoch: int) -> int:
        """Steps of epoch `epoch`, counted from 0."""
        return self.epoch_steps[epoch] if self.epoch_steps else self.steps

    def steps_before(self, epoch: int) -> int:
        """Steps of all epochs before `epoch`."""
        return sum(self.epoch_steps[:epoch]) if self.epoch_steps else epoch * self.steps

    @property
    def all_steps(self) -> int:
        """Steps of all epochs."""
        return self.steps_before(self.epochs)


@dataclass(frozen=True)
class RunPlan:
    """All phases of a run, in order.

    Args:
        phases: What each of them does.
        fitted: Whether the number of epochs was chosen for a given time.
    """

    phases: tuple[PhasePlan, ...]
    fitted: bool = False

    def cut(self, epochs: int | None) -> "RunPlan":
        """Plan the same with at most so many epochs of the last phase; None leaves it whole."""
        *first, last = self.phases
        if epochs is None or epochs >= last.epochs:
            return self
        shorter = replace(
            last,
            epochs=epochs,
            evaluations=tuple(epoch for epoch in last.evaluations if epoch <= epochs),
            epoch_steps=last.epoch_steps[:epochs],
            growth=last.growth[:epochs],
        )
        return replace(self, phases=(*first, shorter))


@dataclass(frozen=True)
class PhaseCosts:
    """Seconds that a phase takes.

    Args:
        step: For one step.
        period: Between the epochs of one period, all together.
        growth: To make as many images for the training pool as the source has.
    """

    step: float
    period: float = 0.0
    growth: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Seconds of each part of a run, measured in advance.

    Args:
        phases: By the name of the phase.
        evaluation: One evaluation of all observed models.
        finish: What follows the last epoch.
    """

    phases: Mapping[str, PhaseCosts]
    evaluation: float
    finish: float

    def of_phase(self, phase: PhasePlan) -> float:
        """Seconds of a whole phase."""
        costs = self.phases[phase.name]
        training = phase.all_steps * costs.step + phase.epochs * costs.period / phase.period
        training += sum(phase.growth) * costs.growth
        return training + len(phase.evaluations) * self.evaluation

    def of_run(self, plan: RunPlan) -> float:
        """Seconds of the whole run."""
        return sum(self.of_phase(phase) for phase in plan.phases) + self.finish


@dataclass
class _Mean:
    """Mean of measured seconds; recent ones count more.

    Args:
        remembered: After this many measurements an old one counts about a third.
    """

    remembered: float
    total: float = 0.0
    weight: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        keep = 1 - 1 / self.remembered
        self.total, self.weight = keep * self.total + seconds, keep * self.weight + 1
        self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight else None


@dataclass
class _Measured:
    """What a phase has taken so far in this process."""

    step: _Mean
    between: float = 0.0  # seconds between epochs
    epochs: int = 0
    growing: float = 0.0  # seconds of ends of epochs that added images
    grown: float = 0.0  # what they added, see `PhasePlan.growth`


@dataclass
class Forecast:
    """Estimates the time left of a whole run, from measurements as soon as there are any.

    Args:
        plan: What the run is going to do.
        costs: Measured in advance; without them nothing is known of a phase before its first step.
        clock: Seconds; only differences count.
    """

    plan: RunPlan
    costs: Costs | None = None
    clock: Callable[[], float] = time.monotonic
    activity: Activity | None = None
    _phase: int = 0
    _epoch: int = 0
    _step: int = 0
    _evaluated: int = -1  # after so many epochs of the phase
    _since: float = 0.0
    _measured: dict[str, _Measured] = field(default_factory=dict)
    _evaluation: _Mean = field(default_factory=lambda: _Mean(EVALUATIONS_REMEMBERED))

    def start_phase(self, name: str, *, epochs: int, steps: int) -> None:
        """Enter a phase that has so many epochs and steps of the next behind it."""
        self._phase = [phase.name for phase in self.plan.phases].index(name)
        self._epoch, self._step, self.activity = epochs, steps, None
        self._evaluated = epochs if epochs or steps else -1
        phase = self.plan.phases[self._phase]
        window = max(STEPS_REMEMBERED, phase.steps * max(EPOCHS_REMEMBERED, phase.period))
        self._measured[name] = _Measured(_Mean(window))
        self._since = self.clock()

    def enter(self, activity: Activity) -> None:
        """Leave what was being done and begin something else."""
        now = self.clock()
        seconds, self._since = now - self._since, now
        phase = self.plan.phases[self._phase]
        measured = self._measured[phase.name]
        match self.activity:
            case "evaluation":
                self._evaluation.add(seconds)
                self._evaluated = self._epoch
            case "end of epoch":
                measured.epochs += 1
                added = sum(phase.growth[max(0, self._epoch - 1) : self._epoch])
                measured.grown += added
                if added:
                    measured.growing += seconds
                else:
                    measured.between += seconds
            case "start of epoch" | "training":
                measured.between += seconds
            case "finish" | None:
                pass
        if activity == "end of epoch" and self._step:  # it was shorter than planned
            self._epoch, self._step = self._epoch + 1, 0
        self.activity = activity

    def step(self, epoch: int, step: int) -> None:
        """Count a step; `step` of them are done in epoch `epoch`, counted from 0."""
        now = self.clock()
        self._measured[self.plan.phases[self._phase].name].step.add(now - self._since)
        self._since = now
        steps = self.plan.phases[self._phase].steps_of(epoch)
        self._epoch, self._step = (epoch + 1, 0) if step >= steps else (epoch, step)

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step of the current phase; None before one was measured."""
        measured = self._measured.get(self.plan.phases[self._phase].name)
        return None if measured is None else measured.step.value

    def left(self) -> float | None:
        """Seconds until the run is over; None if too little is known."""
        expected = [self._of_phase(phase) for phase in self.plan.phases[self._phase :]]
        if any(seconds is None for seconds in expected):
            return None
        finish = 0.0 if self.costs is None else self.costs.finish * self._drift()
        return max(0.0, sum(s for s in expected if s is not None) + finish)

    def share(self) -> float:
        """The part of the run's work that is done, from 0 to 1."""
        left = self.left()
        if left is None:
            return self._steps_done() / max(1, sum(phase.all_steps for phase in self.plan.phases))
        done = sum(self._done(phase) or 0.0 for phase in self.plan.phases[: self._phase + 1])
        return done / (done + left) if done else 0.0

    def _steps_done(self) -> int:
        """Steps of all phases so far."""
        *before, current = self.plan.phases[: self._phase + 1]
        here = current.steps_before(self._epoch) + self._step
        return sum(phase.all_steps for phase in before) + here

    def _of_phase(self, phase: PhasePlan) -> float | None:
        """Seconds that the phase still takes."""
        current = phase is self.plan.phases[self._phase]
        epoch, step = (self._epoch, self._step) if current else (0, 0)
        evaluated = self._evaluated if current else -1
        evaluations = sum(at > evaluated for at in phase.evaluations)
        whole = self._seconds(phase, phase.epochs, 0, evaluations=evaluations)
        done = self._seconds(phase, epoch, step, evaluations=0)
        if whole is None or done is None:
            return None
        seconds = whole - done
        if current and self.activity == "end of epoch":  # is not done yet
            seconds += self._growth_seconds(phase, epoch - 1, epoch)
        return seconds if seconds is None or not current else seconds - self._under_way(phase)

    def _done(self, phase: PhasePlan) -> float | None:
        """Seconds that what is done of the phase takes at today's pace."""
        if phase is not self.plan.phases[self._phase]:
            return self._seconds(phase, phase.epochs, 0, evaluations=len(phase.evaluations))
        evaluations = sum(at <= self._evaluated for at in phase.evaluations)
        return self._seconds(phase, self._epoch, self._step, evaluations=evaluations)

    def _seconds(
        self, phase: PhasePlan, epochs: int, steps: int, *, evaluations: int
    ) -> float | None:
        """Of so many epochs, steps of the next one, and evaluations."""
        step, evaluation = self._step_seconds(phase), self._evaluation_seconds(phase)
        if step is None or evaluation is None:
            return None
        part = steps / phase.steps_of(epochs) if steps else 0
        between = self._between_seconds(phase) * (epochs + part)
        between += self._growth_seconds(phase, 0, epochs)
        training = (phase.steps_before(epochs) + steps) * step
        return training + between + evaluations * evaluation

    def _growth_seconds(self, phase: PhasePlan, first: int, end: int) -> float:
        """To add images after the epochs from `first` to `end`."""
        added = sum(phase.growth[max(0, first) : end])
        measured = self._measured.get(phase.name)
        if measured is not None and measured.grown:
            return added * measured.growing / measured.grown
        if self.costs is None:
            return 0.0
        return added * self.costs.phases[phase.name].growth * self._drift()

    def _under_way(self, phase: PhasePlan) -> float:
        """Seconds already spent on what is not counted as done yet."""
        spent = self.clock() - self._since
        if self.activity == "evaluation":
            return min(spent, self._evaluation_seconds(phase) or 0.0)
        if self.activity == "training":
            return min(spent, self._step_seconds(phase) or 0.0)
        if self.activity == "end of epoch":
            return min(spent, self._growth_seconds(phase, self._epoch - 1, self._epoch))
        return spent if self.activity == "finish" else 0.0

    def _step_seconds(self, phase: PhasePlan) -> float | None:
        measured = self._measured.get(phase.name)
        if measured is not None and measured.step.count >= WARM_UP_STEPS:
            return measured.step.value
        if self.costs is not None:
            return self.costs.phases[phase.name].step * self._drift()
        return None if measured is None else measured.step.value

    def _between_seconds(self, phase: PhasePlan) -> float:
        """Per epoch. Until a whole period is measured, what was measured in advance."""
        measured = self._measured.get(phase.name)
        if measured is not None and measured.epochs >= phase.period:
            return measured.between / measured.epochs
        if self.costs is not None:
            return self.costs.phases[phase.name].period * self._drift() / phase.period
        return (
            0.0 if measured is None or not measured.epochs else measured.between / measured.epochs
        )

    def _evaluation_seconds(self, phase: PhasePlan) -> float | None:
        if not phase.evaluations:
            return 0.0
        if self._evaluation.value is not None:
            return self._evaluation.value
        return None if self.costs is None else self.costs.evaluation * self._drift()

    def _drift(self) -> float:
        """How much slower steps are now than when the costs were measured."""
        if self.costs is None:
            return 1.0
        for name, measured in reversed(list(self._measured.items())):
            advance = self.costs.phases[name].step
            if measured.step.count >= WARM_UP_STEPS and advance > 0:
                return (measured.step.value or advance) / advance
        return 1.0


def duration(seconds: float) -> str:
    """`45 s`, `4 min 10 s`, `42 min`, `2 h 05 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"
