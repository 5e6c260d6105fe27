"""The time left, compared with what really was left in runs on a clock of their own."""

import random
from collections.abc import Iterator

import pytest

from peerdg.run.forecast import Costs, Forecast, PhaseCosts, PhasePlan, RunPlan, duration

PLAN = RunPlan(
    (
        PhasePlan("pretrain", epochs=4, steps=10),
        PhasePlan("train", epochs=30, steps=12, period=5, evaluations=(0, 5, 10, 15, 20, 25, 30)),
    )
)


class Machine:
    """A run on a clock of its own: yields after each epoch, and knows how long the rest took."""

    def __init__(self, plan: RunPlan, costs: Costs, *, noise: float = 0.0, seed: int = 0) -> None:
        self.plan, self.costs, self.noise = plan, costs, noise
        self.now = 0.0
        self.random = random.Random(seed)

    def spend(self, seconds: float) -> None:
        self.now += seconds * self.random.uniform(1 - self.noise, 1 + self.noise)

    def run(self, forecast: Forecast, *, start: tuple[int, int] = (0, 0)) -> Iterator[tuple]:
        """(phase, epochs done, time, estimate of the time left), epoch by epoch."""
        for number, phase in enumerate(self.plan.phases):
            if number < start[0]:
                continue
            cost = self.costs.phases[phase.name]
            done = start[1] if number == start[0] else 0
            forecast.start_phase(phase.name, epochs=done, steps=0)
            if not done and phase.evaluations:
                forecast.enter("evaluation")
                self.spend(self.costs.evaluation)
            for epoch in range(done, phase.epochs):
                forecast.enter("start of epoch")
                yield phase.name, epoch, self.now, forecast.left(), forecast.share()
                if epoch % phase.period == 0:
                    self.spend(cost.period / 2)
                forecast.enter("training")
                for step in range(1, phase.steps_of(epoch) + 1):
                    self.spend(cost.step)
                    forecast.step(epoch, step)
                forecast.enter("end of epoch")
                if (epoch + 1) % phase.period == 0:
                    self.spend(cost.period / 2)
                if phase.growth:
                    self.spend(cost.growth * phase.growth[epoch])
                if epoch + 1 in phase.evaluations:
                    forecast.enter("evaluation")
                    self.spend(self.costs.evaluation)
        forecast.enter("finish")
        yield "finish", 0, self.now, forecast.left(), forecast.share()
        self.spend(self.costs.finish)


def true_costs(*, evaluation: float = 5.0, finish: float = 2.0) -> Costs:
    phases = {"pretrain": PhaseCosts(0.1), "train": PhaseCosts(0.3, 4.0)}
    return Costs(phases, evaluation=evaluation, finish=finish)


def ratios(machine: Machine, forecast: Forecast, **start) -> list[tuple[str, int, float]]:
    points = list(machine.run(forecast, **start))
    return [
        (phase, epoch, float("nan") if left is None else left / (machine.now - t))
        for phase, epoch, t, left, _ in points
    ]


def test_the_whole_is_the_sum_of_its_parts():
    expected = 4 * 10 * 0.1 + 30 * 12 * 0.3 + 6 * 4.0 + 7 * 5.0 + 2.0
    assert true_costs().of_run(PLAN) == pytest.approx(expected)
    machine = Machine(PLAN, true_costs())
    list(machine.run(Forecast(PLAN, clock=lambda: machine.now)))
    assert machine.now == pytest.approx(expected)


def test_with_true_costs_the_time_left_is_exact_at_the_start_of_every_period():
    machine = Machine(PLAN, true_costs())
    forecast = Forecast(PLAN, true_costs(), clock=lambda: machine.now)
    for phase, epoch, ratio in ratios(machine, forecast):
        tolerance = 1e-9 if phase != "train" or epoch % 5 == 0 else 0.1
        assert ratio == pytest.approx(1, abs=tolerance), (phase, epoch)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_from_the_third_epoch_on_it_is_within_a_quarter_whatever_was_measured_in_advance(
    factor: float, seed: int
):
    """A machine that is slower or faster than it was, and steps that differ by 20 percent."""
    machine = Machine(PLAN, true_costs(), noise=0.2, seed=seed)
    wrong = Costs(
        {n: PhaseCosts(c.step * factor, c.period * factor) for n, c in true_costs().phases.items()},
        evaluation=5.0 * factor, finish=2.0 * factor,
    )  # fmt: skip
    forecast = Forecast(PLAN, wrong, clock=lambda: machine.now)
    found = ratios(machine, forecast)
    assert all(0.75 < ratio < 1.25 for *_, ratio in found[2:-1]), found


@pytest.mark.parametrize("seed", range(5))
def test_without_costs_it_is_within_a_quarter_from_the_third_epoch_of_the_last_phase(seed: int):
    plan = RunPlan(PLAN.phases[1:])
    machine = Machine(plan, true_costs(finish=0.01), noise=0.2, seed=seed)
    found = ratios(machine, Forecast(plan, clock=lambda: machine.now))
    assert all(0.75 < ratio < 1.25 for *_, ratio in found[2:-1]), found


GROWING = RunPlan(
    (
        PhasePlan(
            "train", epochs=6, steps=10, evaluations=(0, 3, 6),
            epoch_steps=(10, 10, 20, 40, 40, 40), growth=(0.0, 1.0, 2.0, 0.0, 0.0, 0.0),
        ),
    )
)  # fmt: skip


def growing_costs(factor: float = 1.0) -> Costs:
    phases = {"train": PhaseCosts(0.3 * factor, 1.0 * factor, growth=60.0 * factor)}
    return Costs(phases, evaluation=5.0 * factor, finish=2.0 * factor)


def test_a_growing_pool_has_more_steps_and_the_time_to_make_its_images():
    expected = (10 + 10 + 20 + 40 + 40 + 40) * 0.3 + 6 * 1.0 + 3 * 60.0 + 3 * 5.0 + 2.0
    assert growing_costs().of_run(GROWING) == pytest.approx(expected)
    machine = Machine(GROWING, growing_costs())
    list(machine.run(Forecast(GROWING, clock=lambda: machine.now)))
    assert machine.now == pytest.approx(expected)


def test_with_true_costs_the_time_left_of_a_growing_pool_is_right():
    machine = Machine(GROWING, growing_costs())
    forecast = Forecast(GROWING, growing_costs(), clock=lambda: machine.now)
    for phase, epoch, ratio in ratios(machine, forecast):
        assert ratio == pytest.approx(1, abs=0.03), (phase, epoch)


def test_images_that_were_made_once_are_not_expected_after_every_epoch():
    machine = Machine(GROWING, growing_costs())
    forecast = Forecast(GROWING, growing_costs(0.2), clock=lambda: machine.now)
    found = ratios(machine, forecast)
    assert all(0.9 < ratio < 1.1 for _, epoch, ratio in found if epoch >= 2), found


def test_while_images_are_made_the_time_left_runs_down():
    now = 0.0
    forecast = Forecast(GROWING, growing_costs(), clock=lambda: now)
    forecast.start_phase("train", epochs=1, steps=0)
    for step in range(1, 11):
        forecast.enter("training") if step == 1 else None
        now += 0.3
        forecast.step(1, step)
    forecast.enter("end of epoch")
    before = forecast.left()
    now += 20
    assert forecast.left() == pytest.approx(before - 20)
    now += 100  # longer than expected: nothing is promised of the rest
    assert forecast.left() == pytest.approx(before - 60)


@pytest.mark.parametrize("really", [4, 30])
def test_epochs_of_another_length_than_planned_are_counted_as_epochs(really: int):
    """A method may add or drop images without having said so."""
    plan = RunPlan((PhasePlan("train", epochs=3, steps=10, evaluations=(0, 1, 2, 3)),))
    now = 0.0
    forecast = Forecast(plan, clock=lambda: now)
    forecast.start_phase("train", epochs=0, steps=0)
    shares = []
    for epoch in range(3):
        forecast.enter("training")
        for step in range(1, really + 1):
            now += 1.0
            forecast.step(epoch, step)
        forecast.enter("end of epoch")
        forecast.enter("evaluation")
        now += 1.0
        forecast.enter("start of epoch")
        shares.append(forecast.share())
    assert shares == sorted(shares)
    assert forecast.left() == pytest.approx(0)


def test_nothing_is_promised_before_anything_is_known():
    forecast = Forecast(PLAN, clock=lambda: 0.0)
    forecast.start_phase("pretrain", epochs=0, steps=0)
    assert forecast.left() is None
    assert forecast.share() == 0


def test_a_phase_of_unknown_length_ahead_keeps_the_share_below_that_of_the_steps():
    """The end of pre-training is not the end of the run, though no evaluation was timed yet."""
    machine = Machine(PLAN, true_costs())
    forecast = Forecast(PLAN, clock=lambda: machine.now)
    points = list(machine.run(forecast))
    steps = sum(phase.all_steps for phase in PLAN.phases)
    assert [share for phase, *_, share in points if phase == "pretrain"] == [
        pytest.approx(10 * epoch / steps) for epoch in range(4)
    ]
    first = next(share for phase, *_, share in points if phase == "train")
    assert first <= 40 / steps


def test_a_resumed_run_does_not_count_what_is_behind_it():
    machine = Machine(PLAN, true_costs())
    forecast = Forecast(PLAN, true_costs(), clock=lambda: machine.now)
    found = ratios(machine, forecast, start=(1, 20))
    assert found[0][2] == pytest.approx(1)
    assert machine.now == pytest.approx(10 * 12 * 0.3 + 2 * 4.0 + 2 * 5.0 + 2.0)


def test_the_share_grows_from_nothing_to_all_with_the_time():
    machine = Machine(PLAN, true_costs())
    forecast = Forecast(PLAN, true_costs(), clock=lambda: machine.now)
    points = list(machine.run(forecast))
    shares = [share for *_, share in points]
    assert shares[0] == 0 and shares == sorted(shares)
    assert all(s == pytest.approx(t / machine.now, abs=0.03) for _, _, t, _, s in points)


def test_a_long_evaluation_counts_down():
    now = 0.0
    plan = RunPlan(PLAN.phases[1:])
    forecast = Forecast(plan, true_costs(evaluation=100.0), clock=lambda: now)
    forecast.start_phase("train", epochs=0, steps=0)
    forecast.enter("evaluation")
    whole = forecast.left()
    now = 60.0
    assert forecast.left() == pytest.approx(whole - 60)
    now = 500.0  # longer than thought: the rest of the run does not shrink
    assert forecast.left() == pytest.approx(whole - 100)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-3, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (251, "4 min 11 s"),
     (600, "10 min"), (3599, "1 h 00 min"), (7512, "2 h 05 min"), (86399, "1 d 0 h"),
     (273_600, "3 d 4 h")],
)  # fmt: skip
def test_durations_are_rounded_to_what_matters(seconds: float, text: str):
    assert duration(seconds) == text
