import threading

import pytest

from peerdg.run.background import Background


def test_work_goes_on_beside_its_caller():
    background, go = Background(), threading.Event()
    done = []
    background.start(lambda: (go.wait(5), done.append(1)) and None)
    assert done == []
    go.set()
    background.close()
    assert done == [1]


def test_pieces_are_done_in_order_one_at_a_time():
    background, order = Background(), []
    for number in range(5):
        background.start(order.append, number)
    background.close()
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("when", ["start", "wait", "close"])
def test_a_failure_is_raised_once_at_the_next_occasion(when: str):
    def fail() -> None:
        raise OSError("full")

    background = Background()
    background.start(fail)
    occasions = {
        "start": lambda: background.start(lambda: None),
        "wait": background.wait,
        "close": background.close,
    }
    with pytest.raises(OSError, match="full"):
        occasions[when]()
    background.close()
