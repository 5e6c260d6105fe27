"""Two processes compute the gradients of one, for every objective."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.start import run
from tests.distributed.steps import CASES, ROUNDED

WORKER = ["-m", "tests.distributed.steps"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Train all cases in one process, in two, and in three, which do not divide the batch."""
    folder = tmp_path_factory.mktemp("steps")
    for processes in (1, 2, 3):
        ended = run([*WORKER, str(folder / f"{processes}")], processes=processes)
        assert all(code == 0 for code, _ in ended), ended
    return folder


@pytest.mark.runs
@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
@pytest.mark.parametrize("processes", [2, 3])
def test_gradients_are_those_of_one_process(made, number, processes):
    alone = load_file(made / f"1 0 {number}")
    ranks = [load_file(made / f"{processes} {rank} {number}") for rank in range(processes)]
    assert all(tensors.keys() == alone.keys() for tensors in ranks)
    first = {name for name in alone if name.startswith("00 ")}
    norm = torch.stack([alone[name].double().norm() for name in first]).norm()
    assert norm > 0
    limit = 1e-5 if list(CASES)[number] in ROUNDED else 1e-12
    for name in first:
        error = (ranks[0][name].double() - alone[name].double()).norm()
        assert error <= limit * norm, name
    for name, tensor in ranks[0].items():
        assert all(torch.equal(tensor, other[name]) for other in ranks[1:]), name


@pytest.mark.runs
def test_layers_with_activations_and_without_statistics_see_the_whole_batch(tmp_path):
    for processes in (1, 2):
        words = ["-m", "tests.distributed.layers", str(tmp_path / f"{processes}")]
        assert all(code == 0 for code, _ in run(words, processes=processes))
    alone, first, second = (load_file(tmp_path / name) for name in ("1-0", "2-0", "2-1"))
    for name, expected in alone.items():
        torch.testing.assert_close(first[name], expected, rtol=1e-10, atol=1e-10)
        assert torch.equal(first[name], second[name])
