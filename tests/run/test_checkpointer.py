import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from peerdg.methods.erm import ERM
from peerdg.run import checkpoint
from peerdg.run.checkpoint import Background, Checkpointer
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from peerdg.train.optim import make_optimizers
from peerdg.train.settings import PhaseSettings
from peerdg.train.state import TrainState
from tests.conftest import tiny_classifier


def test_a_checkpoint_holds_what_was_saved_though_training_and_the_next_save_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Copies share their memory from one checkpoint to the next; a slow disk must not see that."""
    written = []

    def slow(folder: Path, number: int, tensors: dict[str, torch.Tensor], plain: object) -> None:
        time.sleep(0.2)
        written.append({float(t.flatten()[0]) for n, t in tensors.items() if "head.weight" in n})

    monkeypatch.setattr(checkpoint, "save_checkpoint", slow)
    method = ERM(tiny_classifier())
    state = TrainState("train", method, make_optimizers(method, PhaseSettings()))
    keeps = Checkpointer(RunFolder.open(tmp_path / "run", RunConfig()), minutes=1)
    for value in (1.0, 2.0, 3.0):
        torch.nn.init.constant_(method.deployed.head.weight, value)
        keeps.save(state)
    torch.nn.init.constant_(method.deployed.head.weight, 4.0)
    keeps.close()
    assert written == [{1.0}, {2.0}, {3.0}]


def trained(phase: str = "train", *, epoch: int = 0, step: int = 0) -> TrainState:
    method = ERM(tiny_classifier())
    return TrainState(phase, method, make_optimizers(method, PhaseSettings()), epoch, step)


def kept(folder: Path, *states: TrainState) -> Checkpointer:
    """What goes on after these states were saved in this order."""
    with closing_run(folder) as run:
        first = Checkpointer(run, minutes=1)
        for state in states:
            first.save(state, wait=True)
        first.close()
        return Checkpointer(run, minutes=1)


@contextmanager
def closing_run(folder: Path) -> Iterator[RunFolder]:
    run = RunFolder.open(folder, RunConfig())
    try:
        yield run
    finally:
        run.close()


def test_a_run_goes_on_from_the_state_that_was_saved_last(tmp_path: Path):
    positions = [("pretrain", 7, 9), ("train", 0, 5), ("train", 1, 0), ("train", 1, 2)]
    for count in range(1, len(positions) + 1):
        states = [trained(phase, epoch=epoch, step=step) for phase, epoch, step in positions]
        after = kept(tmp_path / str(count), *states[:count])
        phase, epoch, step = positions[count - 1]
        found = trained(phase)
        after.restore(found)
        assert (found.epoch, found.step) == (epoch, step)


def test_a_state_of_another_phase_is_not_taken(tmp_path: Path):
    after = kept(tmp_path / "run", trained("pretrain", epoch=3, step=1))
    assert after.resumes and not after.is_past("pretrain")
    main, own = trained("train"), trained("pretrain")
    after.restore(main)
    after.restore(own)
    assert (main.epoch, main.step, own.epoch, own.step) == (0, 0, 3, 1)
    later = kept(tmp_path / "later", trained("train", epoch=0, step=1))
    assert later.is_past("pretrain") and not later.is_past("train")


def test_a_checkpoint_is_due_when_its_minutes_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = 1000.0
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    with closing_run(tmp_path / "run") as run:
        keeps = Checkpointer(run, minutes=2)
        now += 119
        assert not keeps.is_due
        now += 1
        assert keeps.is_due
        keeps.save(trained(), wait=True)
        assert not keeps.is_due
        keeps.close()


def test_background_work_is_done_in_order_while_its_caller_continues():
    background, go = Background(), threading.Event()
    order: list[int] = []
    background.start(lambda: (go.wait(5), order.append(0)) and None)
    assert order == []
    go.set()
    for number in range(1, 5):
        background.start(order.append, number)
    background.close()
    assert order == [0, 1, 2, 3, 4]


def test_a_failure_of_background_work_is_raised_once():
    def fail() -> None:
        raise OSError("full")

    for occasion in (lambda b: b.start(lambda: None), Background.wait, Background.close):
        background = Background()
        background.start(fail)
        with pytest.raises(OSError, match="full"):
            occasion(background)
        background.close()
