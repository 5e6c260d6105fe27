import gc
import mmap
import os
import platform
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.api import Run
from peerdg.errors import PeerdgWarning
from peerdg.run.checkpoint import Background
from peerdg.run.config import resolve
from peerdg.run.folder import RunFolder
from peerdg.run.hardware import has_bf16, peak_memory
from peerdg.run.prepare import load_inputs
from peerdg.run.progress import ProgressDisplay
from tests.conftest import tiny_classifier, tiny_splits

OPTIONS = {"pretrain": {"epochs": 1, "batch_size": 8}, "evaluate_every": 1}
ERM, PEER = {"method": "erm"}, {"peer": {"k": 1}}


def fit(out: Path, epochs: int = 2, **options) -> Run:
    train = {"epochs": epochs, "batch_size": 8}
    model = tiny_classifier()
    return peerdg.fit(tiny_splits(), out=out, model=model, train=train, **OPTIONS, **options)


# Ask for the same memory twice; says how much of it the process still has after each release.
RELEASE = """
import os
from pathlib import Path
import torch
from peerdg.run.hardware import keep_memory

def held():  # kB in use by the process
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])

def released():
    before = held()
    tensors = [torch.ones(2**k) for k in range(18, 25)]  # 130 MB
    del tensors
    return held() - before

os.environ["MALLOC_ARENA_MAX"] = "2"
keep_memory()
print(released())
del os.environ["MALLOC_ARENA_MAX"]
keep_memory()
print(released())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc what to do")
def test_freed_memory_is_kept_unless_the_user_chose():
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-I", "-c", RELEASE], env=plain, capture_output=True, text=True, check=True
    )
    chosen, kept = map(int, done.stdout.split())
    assert chosen < 30_000
    assert kept > 100_000


def test_no_tensor_is_left_behind_by_a_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Snapshots, features, records: what 9 periods hold is what 4 hold, as 4 policies are kept."""
    sizes = []

    class Count(ProgressDisplay):
        def evaluated(self, epoch: int, records) -> None:
            if epoch < 4:
                return
            gc.collect()
            kinds = (torch.Tensor, torch.nn.Parameter)  # not those that a compiler imagines
            alive = [x for x in gc.get_objects() if type(x) in kinds]
            sizes.append(sum(x.numel() * x.element_size() for x in alive))

    # A model that is still being written in the background would count too.
    monkeypatch.setattr(Background, "start", lambda self, work, *given: work(*given))
    gc.collect()  # what other tests left
    fit(tmp_path, epochs=9, progress=Count(), **PEER)
    assert len(sizes) == 6
    assert len(set(sizes)) == 1, sizes


def test_bfloat16_trains_nearly_as_float32_and_keeps_float32_weights(tmp_path: Path):
    plain = fit(tmp_path / "float32", **ERM)
    if has_bf16(torch.device("cpu")):
        half = fit(tmp_path / "bf16", precision="bf16", **ERM)
    else:
        with pytest.warns(PeerdgWarning, match="emulates bfloat16"):
            half = fit(tmp_path / "bf16", precision="bf16", **ERM)
    weights = half.model.classifier.state_dict()
    assert all(value.dtype == torch.float32 for value in weights.values())
    losses = [[r["loss"] for r in run.records if r["kind"] == "epoch"] for run in (plain, half)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_network_is_the_same_function_and_is_stored_under_the_same_names(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
):
    if backend == "inductor" and shutil.which("c++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    compiled_encoders = []

    def compile_encoder(module: torch.nn.Module) -> None:
        compiled_encoders.append(module)
        module._compiled_call_impl = torch.compile(module._call_impl, backend=backend)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_encoder)
    plain = fit(tmp_path / "plain", **PEER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.compile's own, about its own parts
        compiled = fit(tmp_path / "compiled", compile=True, **PEER)
    assert len(compiled_encoders) == 1
    assert (
        compiled.model.classifier.state_dict().keys() == plain.model.classifier.state_dict().keys()
    )
    losses = [[r["loss"] for r in run.records if r["kind"] == "epoch"] for run in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    again = peerdg.load_model(tmp_path / "compiled", network=tiny_classifier())
    assert again.image_size == 12


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_run_records_the_most_memory_that_its_process_had(tmp_path: Path):
    before = peak_memory()
    assert before is not None
    in_use = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
    more = 256 * 2**20
    with mmap.mmap(-1, before - in_use + more) as ballast:  # new memory, also where freed is kept
        ballast[::4096] = bytes(-(-len(ballast) // 4096))  # it counts once it is written to
        with_ballast = peak_memory()
    assert with_ballast == pytest.approx(before + more, abs=more / 4)
    # The peak, not what is in use; the system counts pages with some delay.
    assert peak_memory() == pytest.approx(with_ballast, rel=0.01)
    fit(tmp_path / "run", **ERM)
    done = RunFolder(tmp_path / "run").events.read()[-1]
    assert done["event"] == "done" and done["peak_memory"] > 0.99 * with_ballast


def test_there_are_no_more_threads_than_cores():
    told: list[str] = []
    small = {"batch_size": 8}
    config = resolve(
        {"benchmark": "own-data", "backbone": "own", "threads": 100_000, "train": small,
         "pretrain": small}
    )  # fmt: skip
    before = torch.get_num_threads()
    try:
        load_inputs(config, splits=tiny_splits(), model=tiny_classifier(), note=told.append)
        assert torch.get_num_threads() <= (os.cpu_count() or 1)
    finally:
        torch.set_num_threads(before)
    assert any("100000" in text and "core" in text for text in told)
