import pytest

from peerdg.methods.work import Work


class Enough(Exception):
    pass


def test_it_gives_all_parts_in_order_and_shows_the_share_before_each():
    work, shown = Work(), []
    with work.interruptible(lambda: None, lambda what, share: shown.append((what, share))):
        assert list(work.chunks("abcd", "spelling")) == list("abcd")
    assert shown == [("spelling", 0), ("spelling", 0.25), ("spelling", 0.5), ("spelling", 0.75)]
    assert work.share == 0


def test_a_loop_inside_another_divides_its_part():
    work, shown = Work(), []
    with work.interruptible(lambda: None, lambda what, share: shown.append((what, share))):
        for _ in work.chunks(range(2), "outer"):
            for _ in work.chunks(range(4), "inner"):
                pass
    inside = [share for _, share in shown]
    assert inside == [0, 0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.625, 0.75, 0.875]
    assert {what for what, _ in shown} == {"outer"}


@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_it_can_be_given_up_before_any_part(at: int):
    work, done, looked = Work(), [], iter(range(1, 100))

    def look() -> None:
        if next(looked) == at:
            raise Enough

    with work.interruptible(look), pytest.raises(Enough):
        for outer in work.chunks(range(3)):
            for inner in work.chunks(range(3)):
                done.append((outer, inner))
    # Each outer part looks once for itself and three times for those inside.
    assert len(done) == sum(number % 4 != 1 for number in range(1, at))
    assert work.share == 0
    list(work.chunks(range(2)))  # nobody looks any more


def test_a_loop_that_an_error_left_does_not_count_in_the_next_one():
    work = Work()
    with work.interruptible(lambda: None):
        loop = work.chunks(range(4))
        next(loop), next(loop)
    shares = []
    for _ in work.chunks(range(2)):
        shares.append(work.share)
    assert shares == [0, 0.5]
    loop.close()
