import time

import pytest

from peerdg.stages import profile, stage


def test_each_moment_belongs_to_the_innermost_stage():
    with profile() as times, stage("outer"):
        time.sleep(0.02)
        with stage("inner"):
            time.sleep(0.06)
        time.sleep(0.02)
    assert times["inner"].seconds == pytest.approx(0.06, abs=0.02)
    assert times["outer"].seconds == pytest.approx(0.04, abs=0.02)


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


def test_an_error_closes_its_stage():
    with profile() as times:
        with pytest.raises(ValueError), stage("failing"):
            raise ValueError
        with stage("next"):
            time.sleep(0.01)
    assert times["failing"].seconds < 0.01 <= times["next"].seconds


def test_the_device_is_waited_for_before_the_clock_is_read():
    waits = []
    with profile(lambda: waits.append(1)), stage("queued"):
        pass
    assert len(waits) == 2
