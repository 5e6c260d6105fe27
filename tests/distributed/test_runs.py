"""Whole runs in two processes: results, stops, lost processes and wrong starts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.start import ROOT, run, start
from tests.reliability.processes import start as start_alone

pytestmark = pytest.mark.runs

FLAGS = ["--method", "peer", "--budget", "quick", "--peer.k", "1", "--crafted", "off",
         "--pretrain.epochs", "1", "--pretrain.steps-per-epoch", "4", "--digits-mini.train", "400",
         "--train.steps-per-epoch", "6", "--threads", "1", "--checkpoint-minutes", "0",
         "--quiet"]  # fmt: skip


def train(*words: str) -> list[str]:
    return ["-m", "peerdg", "train", "digits-mini", *FLAGS, *words]


def weights(run: Path) -> bytes:
    return (run / "model/model.safetensors").read_bytes()


@pytest.mark.parametrize("words", [(), ("batch-norm",)], ids=["plain", "batch-norm"])
def test_the_task_models_are_equal_and_those_of_one_process(tmp_path, words):
    for processes in (1, 2):
        folder = tmp_path / f"{processes}"
        folder.mkdir()
        ended = run(["-m", "tests.distributed.whole_run", str(folder), *words], processes=processes)
        assert all(code == 0 for code, _ in ended), ended
    alone, first, second = (load_file(tmp_path / name) for name in ("1/0", "2/0", "2/1"))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    ours, theirs = (
        torch.cat([t.flatten().double() for t in tensors.values()]) for tensors in (first, alone)
    )
    assert (ours - theirs).norm() < 1e-4 * theirs.norm()  # rounding in float32, over 20 steps
    files = [tmp_path / f"{n}/run/metrics.jsonl" for n in (1, 2)]
    for lines in zip(*(file.read_text().splitlines() for file in files), strict=True):
        one, two = map(json.loads, lines)
        assert one.keys() == two.keys()
        assert one.get("loss") == pytest.approx(two.get("loss"), rel=1e-4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    ended = run(train("--epochs", "3", "--out", str(out)), processes=2)
    assert [code for code, _ in ended] == [0, 0], ended
    return out


def wait_for_epoch(out: Path, epoch: int, *processes: subprocess.Popen) -> None:
    """Wait until a run has finished an epoch of its main phase."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends and all(each.poll() is None for each in processes):
        if (out / "metrics.jsonl").exists():
            text = (out / "metrics.jsonl").read_text()
            if f'"epoch", "phase": "train", "epoch": {epoch}' in text:
                return
        time.sleep(0.02)
    pytest.fail(f"no epoch {epoch}")


def test_a_stop_reaches_all_processes_and_the_run_continues_exactly(tmp_path, undisturbed):
    out = tmp_path / "run"
    words = train("--epochs", "3", "--out", str(out))
    started = start(words, processes=2)
    wait_for_epoch(out, 1, *started)
    started[1].send_signal(signal.SIGTERM)  # only one of them gets it
    texts = [each.communicate(timeout=120)[0] for each in started]
    assert [each.returncode for each in started] == [143, 143], texts
    ended = run([*words, "--resume"], processes=2)
    assert [code for code, _ in ended] == [0, 0], ended
    assert weights(out) == weights(undisturbed)
    assert (out / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()


def test_a_run_of_two_processes_continues_in_one_which_says_so(tmp_path, undisturbed):
    out = tmp_path / "run"
    resume = ["-m", "peerdg", "resume", str(out), "--quiet"]
    shutil.copytree(undisturbed, out)
    (out / "done.json").unlink()
    shutil.rmtree(max((out / "checkpoint").iterdir()))  # the last one: a few steps are left
    ((code, text),) = run(resume, processes=1)
    assert code == 0 and "processes" in text
    assert weights(out) != weights(undisturbed)  # but close
    before, after = (load_file(p / "model/model.safetensors") for p in (undisturbed, out))
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-2, atol=1e-3)


def test_torchrun_repeats_the_command_after_a_process_was_killed(tmp_path, undisturbed):
    out = tmp_path / "run"
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [torchrun, "--standalone", "--max-restarts=3",
               "--nproc-per-node=2", *train("--epochs", "3", "--out", str(out))]  # fmt: skip
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
    wait_for_epoch(out, 1, launcher)
    children = subprocess.run(
        ["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True
    )
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
    _, errors = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, errors.decode()
    assert weights(out) == weights(undisturbed)


def test_processes_with_other_options_are_refused(tmp_path):
    words = train("--out", str(tmp_path / "run"))
    started = start(words, processes=2, each=(["--seed", "0"], ["--seed", "1"]))
    texts = [each.communicate(timeout=120)[0] for each in started]
    assert [each.returncode for each in started] == [2, 2], texts
    assert "options" in texts[0]
    assert not (tmp_path / "run").exists()


OTHER_IMAGES = """
import os, peerdg
from tests.conftest import tiny_classifier, tiny_splits
splits = tiny_splits()
splits.train.images[0, 0, 0, 0] = int(os.environ["RANK"])
peerdg.fit(splits, method="erm", model=tiny_classifier(), out=os.environ["OUT"], progress=False,
           train={"epochs": 1, "batch_size": 8}, pretrain={"epochs": 0}, crafted="off")
"""


def test_processes_with_other_images_are_refused(tmp_path):
    ended = run(["-c", OTHER_IMAGES], processes=2, OUT=str(tmp_path / "run"))
    for code, text in ended:
        assert code == 1 and "Process 1 has other images" in text, text


def test_a_lost_process_is_named_and_the_run_can_be_continued(tmp_path, undisturbed):
    out = tmp_path / "run"
    words = train("--epochs", "3", "--out", str(out))
    launcher = start_alone([sys.executable, *words, "--processes", "2"])
    wait_for_epoch(out, 1, launcher)
    children = subprocess.run(
        ["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True
    )
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
    _, said = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    assert "Process 1 of 2" in said and "SIGKILL" in said
    ended = run([*words, "--resume"], processes=2)
    assert [code for code, _ in ended] == [0, 0], ended
    assert weights(out) == weights(undisturbed)


def test_a_batch_that_the_processes_cannot_share_names_the_nearest_sizes(tmp_path):
    words = train("--out", str(tmp_path / "run"), "--train.batch-size", "65")
    ended = run(words, processes=2)
    assert [code for code, _ in ended] == [2, 2]
    assert "64" in ended[0][1] and "66" in ended[0][1]
    assert not (tmp_path / "run").exists()
