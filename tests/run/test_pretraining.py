"""Runs that begin alike share their pre-training, and no result or record depends on it."""

import json
import os
import signal
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import peerdg
from peerdg.cli.data import cache_data
from peerdg.data.splits import Splits
from peerdg.errors import PeerdgWarning, Stopped
from peerdg.models.classifier import Classifier
from peerdg.options import merge
from peerdg.run import pretraining
from peerdg.run.checkpoint import load_checkpoint, write_checkpoint
from peerdg.run.folder import RunFolder
from peerdg.run.pretraining import (
    FOLDER,
    clear_pretrainings,
    shared_pretrainings,
)
from peerdg.run.progress import ProgressDisplay
from peerdg.train import loop
from tests.conftest import tiny_classifier, tiny_splits
from tests.reliability.processes import environment, start, tiny

OPTIONS = {
    "pretrain": {"epochs": 2, "batch_size": 8, "lr": 0.01},
    "train": {"epochs": 1, "batch_size": 8, "lr": 0.01},
    "checkpoint_minutes": 0.0,
    "crafted": "off",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PEERDG_PRETRAINING_BUDGET", "1GB")
    return tmp_path / "cache"


def network() -> Classifier:
    model = tiny_classifier(batch_norm=True, dropout=0.3)
    return model.to(memory_format=torch.channels_last)


def fit(out: Path, method: str = "erm", *, model=None, splits=None, existing="refuse", **options):
    own = {"peer": {"k": 1, "head_dim": 4, "head_hidden": 8}} if method == "peer" else {}
    return peerdg.fit(
        splits or tiny_splits(),
        out=out,
        model=model or network(),
        method=method,
        existing=existing,
        **merge(OPTIONS, own, options),
    )


def events(run) -> list[dict]:
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def was_shared(run) -> bool:
    return any(event["event"] == "shared_pretraining" for event in events(run))


def epochs_of(run) -> list[tuple]:
    seen = [e for e in events(run) if e["event"] == "epoch"]
    return [(e["phase"], e["epoch"], e["steps"]) for e in seen]


def content(run) -> tuple[bytes, bytes]:
    weights = (run.path / "model/model.safetensors").read_bytes()
    return weights, (run.path / "metrics.jsonl").read_bytes()


def entry(cache: Path) -> Path:
    (only,) = shared_pretrainings(cache)
    return only.path


@pytest.mark.parametrize("method", ["erm", "peer", "randaugment"])
def test_a_run_ends_bit_for_bit_alike_with_and_without_sharing(method, tmp_path):
    alone = fit(tmp_path / "alone", method, share_pretraining=False)
    first = fit(tmp_path / "first", "erm")
    second = fit(tmp_path / "second", method)
    assert [was_shared(run) for run in (alone, first, second)] == [False, False, True]
    assert content(second) == content(alone)
    assert epochs_of(second) == epochs_of(alone)


def test_a_run_that_takes_it_trains_no_epoch_of_it(tmp_path, monkeypatch):
    fit(tmp_path / "first")
    phases = []
    step = loop.train_step
    monkeypatch.setattr(
        loop,
        "train_step",
        lambda state, *a, **k: (phases.append(state.phase), step(state, *a, **k))[1],
    )
    fit(tmp_path / "second")
    assert set(phases) == {"train"}


def other_pixel() -> Splits:
    splits = tiny_splits()
    images = splits.train.images.clone()
    images[3, 1, 4, 4] ^= 1
    return replace(splits, train=replace(splits.train, images=images))


def other_weight() -> Classifier:
    model = network()
    with torch.no_grad():
        model.encoder.fc.bias[0] += 1e-6
    return model


def other_forward() -> Classifier:
    """The same text, layers and weights, but another function."""

    class TinyEncoder(tiny_classifier().encoder.__class__):
        def forward(self, x):
            return super().forward(x * 1.01)

    model = network()
    model.encoder.__class__ = TinyEncoder
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda: {"seed": 1},
        lambda: {"pretrain": {"lr": 0.02}},
        lambda: {"pretrain": {"epochs": 3}},
        lambda: {"pretrain": {"optimizer": "sgd"}},
        lambda: {"transform": {"flip": 0.5}},
        lambda: {"precision": "bf16"},
        lambda: {"splits": other_pixel()},
        lambda: {"model": other_weight()},
        lambda: {"model": other_forward()},
    ],
    ids="seed rate epochs optimizer flip precision pixel weight forward".split(),
)
def test_what_changes_the_weights_is_not_shared(change, tmp_path, cache):
    fit(tmp_path / "first")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*bfloat16", category=PeerdgWarning)
        second = fit(tmp_path / "second", **change())
    assert not was_shared(second)
    assert len(shared_pretrainings(cache)) == 2


def test_targets_method_and_main_phase_do_not_matter(tmp_path):
    fit(tmp_path / "first")
    splits = tiny_splits()
    fewer = replace(splits, targets={"two": splits.targets["two"]})
    second = fit(tmp_path / "second", "randaugment", splits=fewer, train={"epochs": 2})
    assert was_shared(second)


@pytest.mark.parametrize("other", [{"threads": 2}, {"cpu": "OTHER"}, {"device": "other"}], ids=str)
def test_other_hardware_is_not_shared(other, tmp_path, monkeypatch):
    fit(tmp_path / "first")
    here = pretraining.hardware_of
    monkeypatch.setattr(pretraining, "hardware_of", lambda device: replace(here(device), **other))
    assert not was_shared(fit(tmp_path / "second"))


def damage_tensors(path: Path) -> None:
    file = path / "tensors.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-3] ^= 1
    file.write_bytes(whole)


def cut_short(path: Path) -> None:
    file = path / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def remove_manifest(path: Path) -> None:
    (path / "MANIFEST.json").unlink()


def pipe_for_state(path: Path) -> None:
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")


def link_for_tensors(path: Path) -> None:
    copy = path.parents[1] / "elsewhere"
    (path / "tensors.safetensors").rename(copy)
    (path / "tensors.safetensors").symlink_to(copy)


def link_for_entry(path: Path) -> None:
    path.rename(path.parents[1] / "elsewhere")
    path.symlink_to(path.parents[1] / "elsewhere")


def file_for_entry(path: Path) -> None:
    path.rename(path.parents[1] / "elsewhere")
    path.write_text("not a folder")


DAMAGE = [damage_tensors, cut_short, remove_manifest, pipe_for_state, link_for_tensors,
          link_for_entry, file_for_entry]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_one_is_made_again_with_a_word(damage, tmp_path, cache):
    expected = content(fit(tmp_path / "first"))
    path = entry(cache)
    damage(path)
    with pytest.warns(PeerdgWarning, match="cannot be used and is made again"):
        second = fit(tmp_path / "second")
    assert not was_shared(second) and content(second) == expected
    assert entry(cache) == path and path.is_dir() and not path.is_symlink()
    third = fit(tmp_path / "third")
    assert was_shared(third) and content(third) == expected


def test_one_that_was_made_for_another_run_is_not_used(tmp_path, cache):
    fit(tmp_path / "first", seed=1)
    foreign = entry(cache)
    expected = content(fit(tmp_path / "second"))
    own = next(each.path for each in shared_pretrainings(cache) if each.path != foreign)
    own.rename(tmp_path / "own")
    foreign.rename(own)
    with pytest.warns(PeerdgWarning, match="was made for another run"):
        third = fit(tmp_path / "third")
    assert not was_shared(third) and content(third) == expected


def test_forged_weights_with_right_checksums_are_refused(tmp_path, cache):
    expected = content(fit(tmp_path / "first"))
    stored = load_checkpoint(entry(cache))
    tensors = {name: value for name, value in stored.tensors.items() if name != "head.bias"}
    write_checkpoint(entry(cache), tensors, stored.state)
    with pytest.warns(PeerdgWarning, match="weights of another network"):
        assert content(fit(tmp_path / "second")) == expected


def stop_at(monkeypatch, count: int) -> None:
    seen = {"steps": 0}
    step = loop.train_step

    def counted(*args, **kwargs):
        seen["steps"] += 1
        if seen["steps"] == count:
            signal.raise_signal(signal.SIGTERM)
        return step(*args, **kwargs)

    monkeypatch.setattr(loop, "train_step", counted)


def test_a_run_stopped_in_pretraining_resumes_to_the_same_end_and_shares_it(
    tmp_path, cache, monkeypatch
):
    expected = content(fit(tmp_path / "alone", share_pretraining=False))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 4)
        fit(tmp_path / "stopped")
    assert shared_pretrainings(cache) == []
    resumed = fit(tmp_path / "stopped", existing="resume")
    assert content(resumed) == expected and len(shared_pretrainings(cache)) == 1
    second = fit(tmp_path / "second")
    assert was_shared(second) and content(second) == expected


@pytest.mark.parametrize("other", ["code", "switched off"])
def test_a_pretraining_that_was_begun_otherwise_is_not_shared(other, tmp_path, cache, monkeypatch):
    """Its first half may have other last bits than the entry promises."""
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 4)
        if other == "code":
            patch.setattr(pretraining, "code_digest", lambda: "0123456789abcdef")
        fit(tmp_path / "stopped", share_pretraining=other == "code")
    fit(tmp_path / "stopped", existing="resume", share_pretraining=True)
    assert shared_pretrainings(cache) == []


def test_once_in_parts_it_is_not_shared_after_further_stops(tmp_path, cache, monkeypatch):
    """A run of a version that did not record its start."""
    for stop, older in ((3, True), (1, False)):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            stop_at(patch, stop)
            if older:
                patch.setattr(pretraining, "record_start", lambda *_, **__: True)
            fit(tmp_path / "stopped", existing="resume")
    fit(tmp_path / "stopped", existing="resume")
    assert shared_pretrainings(cache) == []


def test_an_entry_has_no_epochs_of_a_main_phase_and_none_twice(tmp_path, cache):
    run = fit(tmp_path / "first")
    folder = RunFolder(run.path)
    folder.event("epoch", phase="pretrain", epoch=2, steps=3, seconds=7.0)  # done again
    again = pretraining.SharedPretraining(cache / FOLDER, "again", "key", budget=10**9)
    again.store(network(), folder)
    events = load_checkpoint(again.path).state["events"]
    assert [(e["phase"], e["epoch"]) for e in events] == [("pretrain", 1), ("pretrain", 2)]
    assert events[-1]["seconds"] == 7.0


def test_a_resumed_pretraining_waits_for_no_other(tmp_path, cache, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 4)
        fit(tmp_path / "stopped")
    (lock,) = (cache / FOLDER).glob("*.lock")
    with FileLock(lock):
        fit(tmp_path / "stopped", existing="resume")
    assert shared_pretrainings(cache) == []


def test_a_run_that_took_it_and_was_stopped_resumes_to_the_same_end(tmp_path, monkeypatch):
    expected = content(fit(tmp_path / "first"))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 2)
        fit(tmp_path / "stopped")
    resumed = fit(tmp_path / "stopped", existing="resume")
    assert was_shared(resumed) and content(resumed) == expected


def test_sharing_may_be_switched_when_a_run_is_resumed(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 7)
        fit(tmp_path / "run")
    fit(tmp_path / "run", existing="resume", share_pretraining=False)


def test_switched_off_it_neither_takes_nor_stores(tmp_path, cache):
    fit(tmp_path / "first", share_pretraining=False)
    assert not (cache / FOLDER).exists()
    fit(tmp_path / "second")
    assert not was_shared(fit(tmp_path / "third", share_pretraining=False))


def test_the_longest_unused_ones_make_room(tmp_path, cache, monkeypatch):
    fit(tmp_path / "0", seed=0)
    size = shared_pretrainings(cache)[0].size
    old = entry(cache)
    os.utime(old, (1, 1))
    fit(tmp_path / "1", seed=1)
    newer = next(each.path for each in shared_pretrainings(cache) if each.path != old)
    os.utime(newer, (2, 2))
    fit(tmp_path / "again", seed=0)  # used: now the other one is the longest unused
    monkeypatch.setenv("PEERDG_PRETRAINING_BUDGET", str(int(2.5 * size)))
    fit(tmp_path / "2", seed=2)
    left = {each.path for each in shared_pretrainings(cache)}
    assert len(left) == 2 and old in left and newer not in left
    assert not list((cache / FOLDER).glob(".tmp-*"))


def test_an_entry_in_use_is_not_removed(tmp_path, cache, monkeypatch):
    fit(tmp_path / "0", seed=0)
    used = entry(cache)
    monkeypatch.setenv("PEERDG_PRETRAINING_BUDGET", "4KB")
    with FileLock(used.with_name(f"{used.name}.lock")):
        fit(tmp_path / "1", seed=1)
        assert used in {each.path for each in shared_pretrainings(cache)}
        assert clear_pretrainings(cache) <= 1
        assert entry(cache) == used
    assert clear_pretrainings(cache) == 1
    assert not (cache / FOLDER).exists()


class Heard(ProgressDisplay):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_run_waits_for_another_that_makes_the_same(tmp_path, cache):
    expected = content(fit(tmp_path / "first"))
    made = entry(cache)
    hidden = tmp_path / "hidden"
    made.rename(hidden)
    heard = Heard()
    lock = FileLock(made.with_name(f"{made.name}.lock"), thread_local=False)
    lock.acquire()

    def finish_later() -> None:
        while not heard.notes:
            time.sleep(0.01)
        hidden.rename(made)
        lock.release()

    other = threading.Thread(target=finish_later)
    other.start()
    second = fit(tmp_path / "second", progress=heard)
    other.join()
    assert heard.notes[0].startswith("Waiting for another run")
    assert was_shared(second) and content(second) == expected


def test_a_stop_ends_the_waiting(tmp_path, cache):
    fit(tmp_path / "first")
    made = entry(cache)
    made.rename(tmp_path / "hidden")

    class StopWhenWaiting(ProgressDisplay):
        def note(self, text: str) -> None:
            if text.startswith("Waiting"):
                signal.raise_signal(signal.SIGTERM)

    with FileLock(made.with_name(f"{made.name}.lock")), pytest.raises(Stopped):
        fit(tmp_path / "second", progress=StopWhenWaiting())
    assert shared_pretrainings(cache) == []


def test_two_processes_at_once_end_alike_and_make_it_once(tmp_path, cache):
    outs = [tmp_path / "a", tmp_path / "b"]
    processes = [start(tiny(out), env=environment()) for out in outs]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    texts = [(out / "events.jsonl").read_text() for out in outs]
    assert sum("shared_pretraining" in text for text in texts) == 1
    weights = [(out / "model/model.safetensors").read_bytes() for out in outs]
    assert weights[0] == weights[1]


def test_a_killed_maker_leaves_nothing_and_the_next_one_makes_it(tmp_path, cache):
    process = start(tiny(tmp_path / "killed", '{"pretrain": {"epochs": 2000}}'), env=environment())
    assert process.stdout.readline().startswith("training pretrain")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert shared_pretrainings(cache) == []
    expected = content(fit(tmp_path / "alone", share_pretraining=False))
    assert content(fit(tmp_path / "first")) == expected
    assert len(shared_pretrainings(cache)) == 1


def test_a_cache_that_cannot_be_written_costs_a_warning_only(tmp_path, cache):
    expected = content(fit(tmp_path / "alone", share_pretraining=False))
    cache.mkdir(exist_ok=True)
    (cache / FOLDER).write_text("a file in the way")
    with pytest.warns(PeerdgWarning, match="not shared"):
        run = fit(tmp_path / "run")
    assert content(run) == expected
    assert (cache / FOLDER).read_text() == "a file in the way"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, cache):
    fit(tmp_path / "first")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock = entry(cache).with_name(f"{entry(cache).name}.lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to(victim)
    with pytest.warns(PeerdgWarning, match="not shared"):
        fit(tmp_path / "second")
    assert victim.read_text() == "precious"


def test_the_cache_command_lists_and_clears_it(tmp_path, cache, capsys):
    fit(tmp_path / "first")
    cache_data()
    assert "pretraining" in capsys.readouterr().out
    cache_data("pretraining", clear=True)
    assert "Removed 1 entries" in capsys.readouterr().out
    assert shared_pretrainings(cache) == []
