"""A method that changes the images it learns from: order, files, damage, stop and resume."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.errors import ConfigError, DamagedError, Stopped
from peerdg.long_work import iterate
from peerdg.methods.base import Batch, EpochResult, Method, RunContext, Terms
from peerdg.methods.pool import PoolImages
from peerdg.models.classifier import Classifier
from peerdg.rng import seeded
from peerdg.run import checkpoint
from peerdg.run.checkpoint import Checkpointer, checkpoints, load_checkpoint
from peerdg.run.folder import RunFolder
from peerdg.train import loop
from peerdg.train.loop import Hooks, run_phase
from peerdg.train.settings import Phase, PhaseSettings, TransformSettings
from peerdg.train.signals import StopRequest, stop_on_signals
from peerdg.train.source import Source
from peerdg.train.state import TrainState
from tests.conftest import tiny_classifier, tiny_domain

SETTINGS = PhaseSettings(epochs=5, batch_size=8, lr=0.01, epoch_of="pool")
RING = 2  # additions that stay
PARTS = 3


class Grower(Method):
    """Adds images that depend on its weights, the pool and a draw; drops the oldest of three."""

    def __init__(self, model: Classifier, source: Source) -> None:
        super().__init__()
        self.model = model
        self.source = source

    @classmethod
    def build(cls, model: Classifier, settings: Any, context: RunContext) -> Self:
        raise NotImplementedError

    def loss(self, batch: Batch) -> Terms:
        return {"loss": F.cross_entropy(self.model(batch.images), batch.labels)}

    def end_epoch(self, epoch: int) -> EpochResult:
        pool, made = self.source.pool, []
        rows = torch.randperm(len(pool))[:12]
        shift = int(self.model.head.weight.detach().abs().sum() * 1000) % 251
        for part in iterate(rows.chunk(PARTS), "growing"):
            images, labels = pool.clean(part)
            made.append((images + shift, labels))  # uint8 wraps around
        images, labels = (torch.cat(parts) for parts in zip(*made, strict=True))
        drop = max(0, len(pool.additions) - RING + 1)
        return EpochResult(
            {"pool": len(pool)}, new_images=PoolImages(images, labels), drop_oldest=drop
        )

    @property
    def networks(self) -> dict[str, Classifier]:
        return {"model": self.model}


class Saving(Hooks):
    """Saves after every step and records epochs."""

    is_save_due = True

    def __init__(self, run: RunFolder, saves: Checkpointer, stop: StopRequest) -> None:
        super().__init__(stop)
        self.run = run
        self.restore, self.save = saves.restore, saves.save

    def record_epoch(self, state: TrainState, values: dict[str, Any], *_: Any, **__: Any) -> None:
        position = {"phase": state.phase, "epoch": state.epoch + 1}
        self.run.event("epoch", steps=state.step)
        self.run.metrics.append({"kind": "epoch", **position, **state.take_means(), **values})

    def save_stopped(self, state: TrainState, stopped: Stopped) -> None:
        self.save(state, wait=True)


def train(
    out: Path, *, settings: PhaseSettings = SETTINGS, transform: TransformSettings | None = None
) -> Checkpointer:
    """Train from the start, or from where `out` is; leaves the weights beside it."""
    out.mkdir(parents=True, exist_ok=True)
    source = Source(tiny_domain(), transform)
    with seeded(0, "init"):
        method = Grower(tiny_classifier(dropout=0.2), source)
    run = RunFolder(out)
    saves = Checkpointer(run, minutes=0.0)
    with closing(saves), stop_on_signals() as stop:
        hooks = Saving(run, saves, stop)
        run_phase(Phase("train", settings, None), method, source, seed=0, hooks=hooks)
    torch.save(method.state_dict(), out / "weights.pt")
    return saves


def assert_equal(out: Path, whole: Path) -> None:
    ours, theirs = (torch.load(p / "weights.pt") for p in (out, whole))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert stored(out) == stored(whole)


def stored(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoint/pool").glob("*")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(out)
    return out


@pytest.fixture
def rows_seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the pool that batches were made of, in order."""
    seen: list[int] = []
    batch = Source.batch

    def noted(self: Source, rows: Tensor, **rest: Any) -> Batch:
        seen.extend(rows.tolist())
        return batch(self, rows, **rest)

    monkeypatch.setattr(Source, "batch", noted)
    return seen


def steps_of(out: Path) -> list[int]:
    events = RunFolder(out).events.read()
    return [event["steps"] for event in events if event["event"] == "epoch"]


def test_every_epoch_is_a_pass_over_the_pool_as_it_is_then(whole: Path):
    newest = load_checkpoint(checkpoints(whole / "checkpoint")[-1])
    assert [addition.digest for addition in newest.additions] == newest.state["pool"]
    assert len(newest.additions) == RING
    # 24 images, 12 more after each of the first two epochs, then one addition takes another's place
    assert steps_of(whole) == [24 // 8, 36 // 8, 48 // 8, 48 // 8, 48 // 8]


def test_by_default_an_epoch_has_the_steps_of_the_source_and_images_of_the_whole_pool(
    tmp_path: Path, rows_seen: list[int]
):
    train(tmp_path / "run", settings=PhaseSettings(epochs=9, batch_size=8, lr=0.01))
    assert steps_of(tmp_path / "run") == [24 // 8] * 9
    later = rows_seen[2 * 24 :]  # seven epochs with 48 images
    assert {*rows_seen[:24]} == {*range(24)}
    assert {*later} == {*range(48)}
    epochs = [later[start : start + 24] for start in range(0, len(later), 24)]
    assert all(len({*epoch}) == 24 for epoch in epochs)


def test_a_fixed_number_of_steps_stays_and_reaches_the_new_images(
    tmp_path: Path, rows_seen: list[int]
):
    train(tmp_path / "run", settings=PhaseSettings(epochs=4, batch_size=8, steps_per_epoch=2))
    assert steps_of(tmp_path / "run") == [2, 2, 2, 2]
    first, later = rows_seen[:16], rows_seen[16:]
    assert max(first) < 24 <= max(later) < 48


def test_a_batch_has_each_image_with_its_own_label():
    source = Source(tiny_domain())
    added = PoolImages(source.domain.images.flip(3), source.domain.labels)
    source.change_pool(EpochResult(new_images=added))
    assert len(source) == 48
    assert sum(len(chunk) for chunk in source.clean) == 24  # of the source alone
    rows = torch.tensor([30, 5, 47, 24])
    got = source.batch(rows, seed=0, key=("train", 0, 0))
    assert torch.equal(got.images[1], source.domain.images[5])
    for place, row in ((0, 6), (2, 23), (3, 0)):
        assert torch.equal(got.images[place], source.domain.images[row].flip(2))
        assert got.labels[place] == source.domain.labels[row]
    assert got.index is None  # rows of the pool are not rows of the clean images


@contextmanager
def stopping(where: Any, name: str, count: int) -> Iterator[None]:
    """Let a signal arrive at call number `count` of a function."""
    calls, function = iter(range(1, 10**6)), getattr(where, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == count:
            signal.raise_signal(signal.SIGTERM)
        return function(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, counted)
        with pytest.raises(Stopped):
            yield


@pytest.mark.parametrize(
    "count",
    [3, 8, 20, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 7, 13, 14, 19, 25))],
)
def test_stopped_at_a_step_and_resumed_it_ends_equal(tmp_path: Path, whole: Path, count: int):
    """3, 7, 13, 19: the last step of an epoch; 4, 8, 14, 20: the first after the pool changed."""
    out = tmp_path / "run"
    with stopping(loop, "train_step", count):
        train(out)
    train(out)
    assert_equal(out, whole)


@pytest.mark.parametrize("count", [2, PARTS + 1, 3 * PARTS + 3])
def test_stopped_inside_the_work_between_epochs_it_ends_equal(
    tmp_path: Path, whole: Path, count: int
):
    out = tmp_path / "run"
    with stopping(Saving, "before_item", count):
        train(out)
    state = load_checkpoint(checkpoints(out / "checkpoint")[-1]).state
    epoch = (count - 1) // PARTS
    assert (state["epoch"], state["step"]) == (epoch, steps_of(whole)[epoch])
    assert len(state["pool"]) == min(epoch, RING)
    train(out)
    assert_equal(out, whole)


def test_a_random_view_of_a_growing_pool_resumes_exactly(tmp_path: Path):
    view = TransformSettings(size=10, crop=(0.5, 1.0), flip=0.5)
    train(tmp_path / "whole", transform=view)
    with stopping(loop, "train_step", 10):
        train(tmp_path / "run", transform=view)
    train(tmp_path / "run", transform=view)
    assert_equal(tmp_path / "run", tmp_path / "whole")


def test_images_are_stored_once_and_only_while_a_checkpoint_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written: list[str] = []
    present: list[tuple[set[str], set[str]]] = []
    write, save = checkpoint.save_tensors, checkpoint.save_checkpoint

    def noted(path: Path, tensors: dict[str, Tensor]) -> None:
        if "images" in tensors:
            written.append(path.name)
        write(path, tensors)

    def watched(folder: Path, *rest: Any) -> None:
        save(folder, *rest)
        named = {d for path in checkpoints(folder) for d in load_checkpoint(path).state["pool"]}
        found = {p.stem for p in (folder / "pool").glob("*")}
        present.append((named, found))

    monkeypatch.setattr(checkpoint, "save_tensors", noted)
    monkeypatch.setattr(checkpoint, "save_checkpoint", watched)
    (tmp_path / "run/checkpoint/pool").mkdir(parents=True)
    (tmp_path / "run/checkpoint/pool/notes.txt").write_text("of somebody else")
    train(tmp_path / "run")
    assert len(written) == len(set(written)) == 5
    assert all(found - {"notes"} == named for named, found in present)
    assert max(len(named) for named, _ in present) == RING + 1  # of the last two checkpoints
    assert (tmp_path / "run/checkpoint/pool/notes.txt").exists()


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run stopped after its third epoch, and the images that only its newest state names."""
    out = tmp_path_factory.mktemp("grown") / "run"
    with stopping(Saving, "record_epoch", 3):
        train(out)
    older, newest = (load_checkpoint(p).state["pool"] for p in checkpoints(out / "checkpoint"))
    (digest,) = set(newest) - set(older)
    return out, digest


def copy_of(grown: tuple[Path, str], out: Path) -> Path:
    """Copy the run to `out`; returns the file of images that only its newest state names."""
    shutil.copytree(grown[0], out)
    return out / "checkpoint/pool" / f"{grown[1]}.safetensors"


def damage(kind: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        path.unlink()
        if kind == "short":
            path.write_bytes(content[:-7])
        elif kind == "pixel":
            content[-5] ^= 16
            path.write_bytes(content)
        elif kind == "header":
            content[12] ^= 1
            path.write_bytes(content)
        elif kind == "other images":
            other = next(p for p in path.parent.iterdir())
            path.write_bytes(other.read_bytes())

    return change


def test_a_checkpoint_with_damaged_images_is_damaged(tmp_path: Path, grown):
    for kind in ("missing", "short", "pixel", "header", "other images"):
        path = copy_of(grown, tmp_path / kind)
        damage(kind)(path)
        with pytest.raises(DamagedError, match="pool"):
            load_checkpoint(checkpoints(tmp_path / kind / "checkpoint")[-1])


@pytest.mark.parametrize("kind", ["missing", "pixel"])
def test_the_checkpoint_before_damaged_images_is_used_and_the_run_ends_equal(
    tmp_path: Path, whole: Path, grown, kind: str
):
    out = tmp_path / "run"
    path = copy_of(grown, out)
    damage(kind)(path)
    saves = train(out)
    assert len(saves.problems) == 1
    assert "The previous checkpoint is used" in saves.problems[0]
    assert_equal(out, whole)
    for path in checkpoints(out / "checkpoint"):
        load_checkpoint(path)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["before the checkpoint", "while storing images"])
def test_killed_between_images_and_checkpoint_it_resumes_exactly(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    out = tmp_path / "run"
    save, write = checkpoint.save_checkpoint, checkpoint.save_tensors

    def killed_checkpoint(folder: Path, number: int, *rest: Any) -> None:
        if len(stored(out)) == 2:
            raise Killed
        save(folder, number, *rest)

    def killed_images(path: Path, tensors: dict[str, Tensor]) -> None:
        if "images" in tensors and stored(out) - {path.name}:
            path.write_bytes(b"torn")
            os.link(path, path.with_name(f"{path.name[:-8]}deadbeef"))  # what a kill leaves
            raise Killed
        write(path, tensors)

    if moment == "before the checkpoint":
        monkeypatch.setattr(checkpoint, "save_checkpoint", killed_checkpoint)
    else:
        monkeypatch.setattr(checkpoint, "save_tensors", killed_images)
    with pytest.raises(Killed):
        train(out)
    monkeypatch.undo()
    assert any(moment == "before the checkpoint" or n.startswith(".tmp-") for n in stored(out))
    train(out)
    assert_equal(out, whole)


def test_a_pool_that_outgrows_the_memory_for_images_is_refused_and_nothing_is_lost(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "run"
    bytes_of_addition = 12 * 3 * 12 * 12
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", str(2 * bytes_of_addition - 1))
    with pytest.raises(ConfigError, match="memory budget") as caught:
        train(out)
    assert "PEERDG_MEMORY_BUDGET" in (caught.value.hint or "")
    # The oldest additions are dropped: memory for those that stay is enough.
    monkeypatch.setenv("PEERDG_MEMORY_BUDGET", str(RING * bytes_of_addition))
    train(out)
    assert_equal(out, whole)
