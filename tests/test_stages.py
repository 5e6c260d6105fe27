import pytest

from peerdg.stages import profile, stage


class Clock:
    """Stands still between the moments that a test lets pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("peerdg.stages.time.perf_counter", clock)
    return clock


def test_each_moment_belongs_to_the_innermost_stage(clock: Clock):
    with profile() as times, stage("outer"):
        clock.now += 2
        with stage("inner"):
            clock.now += 6
        clock.now += 2
    assert (times["inner"].seconds, times["outer"].seconds) == (6, 4)


def test_a_decorated_function_is_counted_at_each_call():
    @stage("work")
    def work(x: int) -> int:
        return x + 1

    with profile() as times:
        assert [work(1), work(2)] == [2, 3]
    assert times["work"].calls == 2


def test_nothing_is_measured_outside_of_a_profile_or_after_it():
    with profile() as times:
        pass
    with stage("later"):
        pass
    assert times == {}


def test_an_error_closes_its_stage(clock: Clock):
    with profile() as times:
        with pytest.raises(ValueError), stage("failing"):
            clock.now += 1
            raise ValueError
        with stage("next"):
            clock.now += 3
    assert (times["failing"].seconds, times["next"].seconds) == (1, 3)


def test_the_device_is_waited_for_before_the_clock_is_read():
    waits = []
    with profile(lambda: waits.append(1)), stage("queued"):
        pass
    assert len(waits) == 2
