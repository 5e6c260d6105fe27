import pytest

from peerdg.long_work import interruptible, iterate


class Enough(Exception):
    pass


def test_items_come_in_order_with_progress_before_each():
    shown = []
    with interruptible(lambda label, share: shown.append((label, share))):
        assert list(iterate("abcd", "spelling")) == list("abcd")
    assert shown == [("spelling", 0), ("spelling", 0.25), ("spelling", 0.5), ("spelling", 0.75)]
    list(iterate("abcd"))
    assert len(shown) == 4


def test_a_nested_loop_divides_the_outer_item():
    shown = []
    with interruptible(lambda label, share: shown.append((label, share))):
        for _ in iterate(range(2), "outer"):
            for _ in iterate(range(4), "inner"):
                pass
    inside = [share for _, share in shown]
    assert inside == [0, 0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.625, 0.75, 0.875]
    assert {label for label, _ in shown} == {"outer"}


@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_it_can_be_stopped_before_any_item(at: int):
    done, looked = [], iter(range(1, 100))

    def look(label: str, share: float) -> None:
        if next(looked) == at:
            raise Enough

    with interruptible(look), pytest.raises(Enough):
        for outer in iterate(range(3)):
            for inner in iterate(range(3)):
                done.append((outer, inner))
    # Each outer item reports once for itself and three times for its inner items.
    assert len(done) == sum(number % 4 != 1 for number in range(1, at))


def test_a_failed_loop_does_not_count_in_the_next_one():
    shares = []
    with interruptible(lambda label, share: shares.append(share)):
        left = iterate(range(4))
        next(left), next(left)
        for loop in (iterate(range(1)), left):  # the inner one is closed after the outer one
            loop.close()
        shares.clear()
        list(iterate(range(2)))
    assert shares == [0, 0.5]
