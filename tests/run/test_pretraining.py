"""Runs that start alike share their pre-training, and no result or record depends on it."""

import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import peerdg
from peerdg.cli.data import cache_data
from peerdg.data.splits import Splits
from peerdg.errors import PeerdgWarning, Stopped
from peerdg.options import merge
from peerdg.run import pretraining
from peerdg.run.pretraining import FOLDER, shared_pretrainings
from peerdg.run.progress import ProgressDisplay
from peerdg.train import loop
from tests.conftest import tiny_classifier, tiny_splits
from tests.run.stops import stopped_at

OPTIONS = {
    "backbone": "digits-cnn-half",
    "transform": {"size": 32},
    "pretrain": {"epochs": 2, "batch_size": 8, "lr": 0.001},
    "train": {"epochs": 1, "batch_size": 8, "lr": 0.001},
    "checkpoint_minutes": 0.0,
    "crafted": "off",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(pretraining.SWITCH, raising=False)
    # Named networks are shared. Tiny ones take less time.
    tiny = {"digits-cnn-half": True, "digits-cnn": False}
    monkeypatch.setattr(
        "peerdg.run.prepare.build_classifier",
        lambda name, **_: tiny_classifier(batch_norm=tiny[name]),
    )
    return tmp_path / "cache"


def fit(out: Path, method: str = "erm", *, splits=None, existing="refuse", **options):
    own = {"peer": {"k": 1, "head_dim": 4, "head_hidden": 8}} if method == "peer" else {}
    model, progress = options.pop("model", None), options.pop("progress", False)
    return peerdg.fit(
        splits or tiny_splits(),
        out=out,
        model=model,
        method=method,
        existing=existing,
        progress=progress,
        **merge(OPTIONS, own, options),
    )


def events(run) -> list[dict]:
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def was_shared(run) -> bool:
    return any(event["event"] == "shared_pretraining" for event in events(run))


def content(run) -> tuple[bytes, bytes, list[tuple]]:
    epochs = [e for e in events(run) if e["event"] == "epoch"]
    weights = (run.path / "model/model.safetensors").read_bytes()
    metrics = (run.path / "metrics.jsonl").read_bytes()
    return weights, metrics, [(e["phase"], e["epoch"], e["steps"]) for e in epochs]


def entry(cache: Path) -> Path:
    (only,) = shared_pretrainings(cache)
    return only


def test_a_run_ends_bit_for_bit_alike_with_and_without_sharing(tmp_path):
    """Also with the buffers of batch normalization."""
    alone = fit(tmp_path / "alone", "peer", share_pretraining=False)
    first, second = fit(tmp_path / "first", "erm"), fit(tmp_path / "second", "peer")
    assert [was_shared(run) for run in (alone, first, second)] == [False, False, True]
    assert content(second) == content(alone)


def test_targets_method_and_main_phase_do_not_matter_and_nothing_is_trained(tmp_path, monkeypatch):
    fit(tmp_path / "first")
    phases, step = set(), loop.train_step
    monkeypatch.setattr(
        loop,
        "train_step",
        lambda state, *a, **k: (phases.add(state.phase), step(state, *a, **k))[1],
    )
    splits = tiny_splits()
    fewer = replace(splits, targets={"two": splits.targets["two"]})
    assert was_shared(fit(tmp_path / "second", "randaugment", splits=fewer, train={"epochs": 2}))
    assert phases == {"train"}


def other_pixel() -> Splits:
    splits = tiny_splits()
    images = splits.train.images.clone()
    images[3, 1, 4, 4] ^= 1
    return replace(splits, train=replace(splits.train, images=images))


def test_a_change_of_the_weights_is_not_shared(tmp_path, cache, monkeypatch):
    fit(tmp_path / "first")
    changes = [
        {"seed": 1},
        {"pretrain": {"lr": 0.02}},
        {"pretrain": {"epochs": 3}},
        {"pretrain": {"optimizer": "sgd"}},
        {"transform": {"flip": 0.5}},
        {"precision": "bf16"},
        {"splits": other_pixel()},
        {"backbone": "digits-cnn"},
    ]
    for number, change in enumerate(changes):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*bfloat16", category=PeerdgWarning)
            assert not was_shared(fit(tmp_path / str(number), **change)), change
    assert len(shared_pretrainings(cache)) == len(changes) + 1
    for name in pretraining.hardware_of(torch.device("cpu")):
        with monkeypatch.context() as patch:
            here = pretraining.hardware_of(torch.device("cpu"))
            patch.setattr(pretraining, "hardware_of", lambda _, h={**here, name: "other"}: h)
            assert not was_shared(fit(tmp_path / name.replace(" ", "-"))), name


def test_networks_of_the_users_own_are_not_shared(tmp_path, cache):
    for name in ("first", "second"):
        assert not was_shared(fit(tmp_path / name, model=tiny_classifier(), backbone="own"))
    assert shared_pretrainings(cache) == []


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / "tensors.safetensors").read_bytes())
    content[-3] ^= 1
    (path / "tensors.safetensors").write_bytes(content)


def test_a_damaged_one_is_made_again_with_a_warning(tmp_path, cache):
    expected = content(fit(tmp_path / "first"))
    flip_a_bit(entry(cache))
    with pytest.warns(PeerdgWarning, match="be repeated"):
        second = fit(tmp_path / "second")
    assert not was_shared(second) and content(second) == expected
    third = fit(tmp_path / "third")
    assert was_shared(third) and content(third) == expected


def test_a_run_stopped_in_pretraining_resumes_alone_to_the_same_end(tmp_path, cache):
    expected = content(fit(tmp_path / "alone", share_pretraining=False))
    with stopped_at(4):
        fit(tmp_path / "stopped")
    (lock,) = (cache / FOLDER).glob("*.lock")
    with FileLock(lock):  # it waits for no other run
        resumed = fit(tmp_path / "stopped", existing="resume")
    assert content(resumed)[:2] == expected[:2]
    assert shared_pretrainings(cache) == []


def test_a_run_that_took_it_and_was_stopped_resumes_to_the_same_end(tmp_path):
    expected = content(fit(tmp_path / "first"))
    with stopped_at(2):
        fit(tmp_path / "stopped")
    resumed = fit(tmp_path / "stopped", existing="resume", share_pretraining=False)
    assert was_shared(resumed) and content(resumed)[:2] == expected[:2]


def test_switched_off_it_neither_takes_nor_stores(tmp_path, cache, monkeypatch):
    fit(tmp_path / "first", share_pretraining=False)
    assert not (cache / FOLDER).exists()
    fit(tmp_path / "second")
    assert not was_shared(fit(tmp_path / "third", share_pretraining=False))
    monkeypatch.setenv(pretraining.SWITCH, "0")
    assert not was_shared(fit(tmp_path / "fourth"))


class Notes(ProgressDisplay):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@contextmanager
def held(entry: Path, until: Callable[[], bool], then: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of an entry in another thread until a condition is true."""
    ready = threading.Event()

    def hold() -> None:
        with FileLock(entry.with_name(f"{entry.name}.lock")):
            ready.set()
            while not until():
                time.sleep(0.01)
            then()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    yield
    thread.join()


def test_a_run_waits_for_another_that_makes_the_same(tmp_path, cache):
    expected = content(fit(tmp_path / "first"))
    made, hidden, progress = entry(cache), tmp_path / "hidden", Notes()
    made.rename(hidden)

    def is_waiting() -> bool:
        return any(note.startswith("Waiting") for note in progress.notes)

    with held(made, is_waiting, lambda: hidden.rename(made)):
        second = fit(tmp_path / "second", progress=progress)
    assert was_shared(second) and content(second) == expected


def test_a_stop_ends_the_waiting(tmp_path, cache):
    fit(tmp_path / "first")
    made, stopped = entry(cache), threading.Event()
    made.rename(tmp_path / "hidden")

    class StopWhenWaiting(Notes):
        def note(self, text: str) -> None:
            if text.startswith("Waiting"):
                signal.raise_signal(signal.SIGTERM)

    with held(made, stopped.is_set, lambda: None):
        with pytest.raises(Stopped):
            fit(tmp_path / "second", progress=StopWhenWaiting())
        stopped.set()
    assert shared_pretrainings(cache) == []


def test_a_cache_that_cannot_be_written_costs_only_a_warning(tmp_path, cache):
    expected = content(fit(tmp_path / "alone", share_pretraining=False))
    cache.mkdir(exist_ok=True)
    (cache / FOLDER).write_text("a file in the way")
    with pytest.warns(PeerdgWarning, match="not shared"):
        run = fit(tmp_path / "run")
    assert content(run) == expected
    assert (cache / FOLDER).read_text() == "a file in the way"


def test_the_cache_command_lists_and_clears_it(tmp_path, cache, capsys):
    fit(tmp_path / "first")
    cache_data()
    assert "pretraining" in capsys.readouterr().out
    cache_data("pretraining", clear=True)
    assert "Removed 1 entries" in capsys.readouterr().out
    assert shared_pretrainings(cache) == []
    assert not os.path.exists(cache / FOLDER)
